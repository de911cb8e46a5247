"""The launcher with ranks that are a few lines of Python: who is started again, who is killed, and what is returned."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from ml_pipeline.runs.ranks.launcher import RANK_LOST, LocalLauncher, free_port
from tests.training_commands import REPOSITORY

_NOTE = """
import json, os, signal, sys, time
from pathlib import Path
rank, restart = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
folder = Path({folder!r})
def note(name, text=""):
    path = folder / name
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)
"""


def launcher(folder, code, *, size=2, max_restarts=0, said=None, grace_s=5.0):
    command = [sys.executable, "-c", _NOTE.format(folder=str(folder)) + code]
    say = (lambda sentence: None) if said is None else said.append
    return LocalLauncher(command, size=size, max_restarts=max_restarts, say=say, grace_s=grace_s)


def run(*args, **kwargs):
    with launcher(*args, **kwargs) as started:
        return started.run()


def wait_for(condition, timeout_s=60.0):
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail("it did not come")


def test_every_rank_finds_its_place_in_the_variables_of_torchrun(tmp_path):
    assert run(tmp_path, "note(f'{rank}', json.dumps(dict(os.environ)))", size=3) == 0
    variables = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert [each["RANK"] for each in variables] == ["0", "1", "2"]
    for name in ("MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        assert len({each[name] for each in variables}) == 1
    for each in variables:
        assert (each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"], each["MASTER_ADDR"]) == ("3", "3", "127.0.0.1")


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ("sys.exit(2)", 2),  # settings are as wrong the next time
        ("sys.exit(2 if rank else 75)", 2),
        ("sys.exit(1 if rank else 75)", 1),
        ("sys.exit(143)", 143),
        ("sys.exit(75 if rank else 130)", 130),
        ("rank and os.kill(os.getpid(), signal.SIGKILL)", 0),  # the first has ended the run
    ],
)
def test_what_starting_again_would_not_change_is_not_tried_again(tmp_path, ends, code):
    said = []
    assert run(tmp_path, ends, max_restarts=3, said=said) == code
    assert said == []


def test_a_killed_rank_starts_all_again(tmp_path):
    said = []
    code = """
note(f"{rank}-{restart}")
if restart == 0 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(75 if restart == 0 else 0)
"""
    assert run(tmp_path, code, max_restarts=3, said=said) == 0
    assert said == ["Rank 1 was killed by SIGKILL. Restarting all 2 ranks from the last checkpoint (restart 1 of 3)."]
    assert {path.name for path in tmp_path.iterdir()} == {"0-0", "1-0", "0-1", "1-1"}


def test_a_rank_that_dies_after_the_first_has_finished_starts_nothing_again(tmp_path):
    said = []
    code = "if rank: os.kill(os.getpid(), signal.SIGSEGV)"
    assert run(tmp_path, code, max_restarts=3, said=said) == 0
    assert said == []


def test_restarts_are_counted(tmp_path):
    said = []
    assert run(tmp_path, "note(f'{rank}-{restart}'); sys.exit(75)", max_restarts=2, said=said) == 1
    assert len(list(tmp_path.iterdir())) == 6
    assert said[-1].startswith("The ranks lost contact, after 2 restarts; --max-restarts allows no more.")


def test_a_rank_that_hangs_while_another_has_ended_badly_is_killed(tmp_path):
    code = """
note(f"{rank}", str(os.getpid()))
while rank == 0 or not (folder / "0").exists():
    time.sleep(0.01)
sys.exit(2)
"""
    assert run(tmp_path, code, grace_s=0.1) == 2
    assert not psutil.pid_exists(int((tmp_path / "0").read_text()))


def test_a_signal_reaches_every_rank_once_and_nothing_starts_again(tmp_path):
    code = """
signal.signal(signal.SIGTERM, lambda number, frame: note(f"{rank}-signalled"))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
note(f"{rank}")
while not (folder / f"{rank}-signalled").exists():
    time.sleep(0.01)
sys.exit(75)
"""
    with launcher(tmp_path, code, max_restarts=3) as started:
        ended = []
        thread = threading.Thread(target=lambda: ended.append(started.run()))
        thread.start()
        wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        started.pass_on(signal.SIGTERM)
        thread.join(60)
    assert ended == [143]


def test_a_signal_that_comes_before_a_rank_can_handle_it_waits_for_that(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    code = """
note(f"{rank}")
while not (folder / "sent").exists():
    time.sleep(0.01)
note(f"{rank}-undisturbed")
from ml_pipeline.runtime.interrupts import exit_at_once_on_signals
exit_at_once_on_signals("rank")
time.sleep(600)
"""
    with launcher(tmp_path, code) as started, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(started.run)
        wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        started.pass_on(signal.SIGINT)
        (tmp_path / "sent").touch()
        assert ended.result(60) == 130
    assert (tmp_path / "0-undisturbed").exists()
    assert (tmp_path / "1-undisturbed").exists()


def launching(folder, code):
    """A process that launches two ranks."""
    script = _NOTE.format(folder=str(folder)) + code
    started = f"""
from ml_pipeline.runs.ranks.launcher import LocalLauncher
import sys
LocalLauncher([sys.executable, "-c", {script!r}], size=2, max_restarts=0, say=print).run()
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen([sys.executable, "-c", started], cwd=folder, env=environment)


def test_ranks_hear_that_their_launcher_was_killed(tmp_path):
    process = launching(tmp_path, "note(f'{rank}', str(os.getpid())); sys.stdin.read(); note(f'{rank}-alone')")
    try:
        wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: (tmp_path / "0-alone").exists() and (tmp_path / "1-alone").exists())


def test_a_rank_whose_launcher_was_killed_before_it_could_notice_ends(tmp_path):
    code = """
note(f"{rank}")
while not (folder / "killed").exists():
    time.sleep(0.01)
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.ranks.rank_info import end_with_launcher
try:
    end_with_launcher()
    note(f"{rank}-told", "It goes on.")
except UserError as error:
    note(f"{rank}-told", str(error))
"""
    process = launching(tmp_path, code)
    try:
        wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    finally:
        process.kill()
    wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    (tmp_path / "killed").touch()
    told = [tmp_path / f"{rank}-told" for rank in range(2)]
    wait_for(lambda: all(path.exists() for path in told))
    process.wait()
    assert {path.read_text().partition(",")[0] for path in told} == {"The command that started this rank has ended"}


def test_before_any_rank_was_started_there_is_none_to_wait_for(tmp_path):
    with launcher(tmp_path, "") as waiting:  # as for room in a cluster
        waiting.pass_on(signal.SIGTERM)
        assert waiting.wait_for_end() == 0


def test_a_lost_rank_has_a_code_of_its_own():
    assert RANK_LOST not in {0, 1, 2}


def test_a_free_port_can_be_listened_on():
    port = free_port()
    with socket.create_server(("", port)) as server:
        assert server.getsockname()[1] == port
