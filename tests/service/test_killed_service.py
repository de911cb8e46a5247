"""The service is killed at random moments: every run is there once, and has run once."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.service.agent_training_service import AgentTrainingService
from ml_pipeline.service.channel import ask_service
from tests.service.brief_run import brief_processes

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform == "win32", reason="kills by SIGKILL"),
]
SERVICE = Path(__file__).with_name("service_process.py")
N_RUNS, N_KILLS = 40, 24


class Submitter(threading.Thread):
    """Hands the runs over, one after another; each again until the service said that it has it."""

    def __init__(self, root, seed):
        super().__init__()
        self._root, self._random = root, random.Random(seed)
        self.ids = [f"run-{i:02}" for i in range(N_RUNS)]
        self.told, self.refusals = [], set()

    def run(self):
        for id in self.ids:
            settings = {"env_id": "CartPole-v1", "seed": self._random.randrange(300), "iterations": 1}
            while id not in self.told:
                try:
                    request = {"do": "submit", "settings": settings, "run_id": id, "folder_of_work": str(self._root)}
                    self.told.append(ask_service(self._root, request))
                except UserError as error:
                    self.refusals.add(str(error).partition(" (")[0])
                    time.sleep(0.02)


@pytest.mark.timeout(300)
def test_each_run_runs_once_though_the_service_is_killed_at_any_moment(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown where it fails
    moments = random.Random(seed)
    submitter = Submitter(tmp_path, seed)
    submitter.start()
    for _ in range(N_KILLS):
        service = subprocess.Popen([sys.executable, str(SERVICE), str(tmp_path)], stdout=subprocess.PIPE)
        if moments.random() < 0.8:  # else also while it starts
            assert service.stdout.readline() == b"ready\n"
            time.sleep(moments.random() * 0.5)
        else:
            time.sleep(moments.random())
        service.kill()
        service.wait()
        service.stdout.close()
    with subprocess.Popen([sys.executable, str(SERVICE), str(tmp_path)], stdout=subprocess.PIPE) as last:
        assert last.stdout.readline() == b"ready\n"
        submitter.join()
        last.kill()
    with AgentTrainingService(tmp_path, processes=brief_processes) as service:
        runs = service.wait(timeout_s=120)
    assert sorted(run.id for run in runs) == submitter.ids == submitter.told
    assert not any("already" in refusal for refusal in submitter.refusals)
    assert {run.status for run in runs} == {"finished"}
    folders = sorted(path for path in tmp_path.iterdir() if path.name != ".service")
    assert [folder.name for folder in folders] == submitter.ids
    for folder in folders:
        assert len((folder / "begun.txt").read_text().splitlines()) == 1, folder
        assert len((folder / "ended.txt").read_text().splitlines()) == 1, folder
