"""However the process of a retraining ends, the session learns how, and nothing of the process is left."""

import os
import re
import threading

import psutil
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs.child import ABANDONED, Child
from ml_pipeline.live.retraining import retrainer
from ml_pipeline.live.retraining.retrainer import RetrainingProcess
from ml_pipeline.live.retraining.task_folder import Outcome, read_outcome
from tests.live.retraining import stand_in
from tests.models.rl.core.workers.probes import wait_until

PATIENCE_S = 60.0
posix = pytest.mark.skipif(os.name != "posix", reason="processes have groups on POSIX alone")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Makes a retraining whose process runs this code; `folder` is there in it."""
    made = []

    def make(code, *, time_limit_s=PATIENCE_S, prepare=lambda: None):
        stand_in.put(monkeypatch, code)
        made.append(RetrainingProcess(tmp_path, prepare, time_limit_s=time_limit_s))
        return made[-1]

    yield make
    for each in made:
        each.end()


def outcome_of(process):
    process.wait(PATIENCE_S)
    assert process.is_done
    return process.outcome


def test_what_the_process_writes_is_what_came_of_it(runs, tmp_path):
    process = runs('open(folder + "/outcome.json", "w").write(\'{"state": "refused", "sentence": "no"}\')')
    assert outcome_of(process) == Outcome(state="refused", sentence="no")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("print('warm'); raise MemoryError('no room')", "exit code 1: MemoryError: no room"),
        ("import os; os._exit(3)", r"ended with exit code 3\.$"),
        ("pass", r"ended with exit code 0\.$"),
        ('open(folder + "/outcome.json", "w").write(\'{"state": "prom\')', "exit code 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
)
def test_one_that_breaks_down_has_failed_and_says_why(runs, tmp_path, code, sentence):
    outcome = outcome_of(runs(code))
    assert outcome.state == "failed"
    assert re.search(sentence, outcome.sentence)
    assert read_outcome(tmp_path) == outcome  # so that it is not tried again at the next start


@posix
@pytest.mark.slow
def test_one_that_hangs_is_ended_with_all_that_it_started(runs, tmp_path):
    process = runs(
        """
        import subprocess, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        open(folder + "/child", "w").write(str(child.pid))
        time.sleep(1000)
        """,
        time_limit_s=3.0,
    )
    wait_until((tmp_path / "child").exists)
    assert "took longer than 3 s" in outcome_of(process).sentence
    child = int((tmp_path / "child").read_text() or 0)
    assert not child or not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert not psutil.pid_exists(process.pid)


def test_a_session_that_stops_ends_it_and_leaves_the_rest_for_later(runs, tmp_path):
    process = runs('open(folder + "/begun", "w").close()\nimport time\ntime.sleep(1000)')
    wait_until((tmp_path / "begun").exists)
    process.end()
    process.end()
    assert process.is_done
    assert not psutil.pid_exists(process.pid)
    assert process.outcome is None
    assert read_outcome(tmp_path) is None


def test_a_session_that_stops_before_the_process_begins_starts_none(runs):
    may_go_on = threading.Event()
    process = runs("pass", prepare=may_go_on.wait)
    ending = threading.Thread(target=process.end)
    ending.start()
    wait_until(lambda: process._ending)
    may_go_on.set()
    ending.join()
    assert process.pid is None
    assert process.outcome is None


def test_a_folder_that_cannot_be_prepared_is_a_failure(runs):
    def refuse():
        raise UserError("There is no checkpoint.")

    assert outcome_of(runs("pass", prepare=refuse)).sentence == "It could not start: There is no checkpoint."


def test_a_full_disk_is_a_failure_even_where_no_file_can_say_so(runs, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(retrainer, "write_outcome", full)
    outcome = outcome_of(runs("pass", prepare=full))
    assert outcome.sentence == "It could not start: No space left on device."
    assert read_outcome(tmp_path) is None


def test_it_ends_with_its_session():
    with Child(retrainer._MODULE, purpose="a test") as process:
        process._process.stdin.close()  # as the system does where the session's process is gone
        assert process.wait(PATIENCE_S) == ABANDONED
