"""A run does not depend on who watches it: its reader leaves, its output cannot be written, its terminal is closed.

Real processes, as a shell starts them.
"""

import contextlib
import fcntl
import json
import os
import pty
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.state import read_state

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parent.parent
PRINTING = """
import logging, sys, warnings
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Printing(CartPoleEnv):
    def step(self, action):
        print("a step")
        warnings.warn("a warning")
        logging.warning("a log")
        sys.stdout.flush()
        return super().step(action)

gymnasium.register("Printing-v0", Printing, max_episode_steps=20, disable_env_checker=True)
"""
N_ITERATIONS = 12
SMALL = ["--n-steps", "32", "--minibatch-size", "64", "--n-epochs", "2", "--hidden-sizes", "8", "--n-envs", "2"]
SMALL += ["--n-workers", "1", "--eval-episodes", "1", "--checkpoint-dir", "run"]
TRAIN = [sys.executable, "-m", "ml_pipeline", "train", *SMALL]
PRINTS = [*TRAIN, "--env-id", "printing:Printing-v0", "--iterations", str(N_ITERATIONS)]
ENDLESS = [*TRAIN, "--env-id", "CartPole-v1", "--iterations", "1000000", "--eval-interval", "1000000"]


@pytest.fixture
def started(tmp_path):
    """Starts a command in tmp_path, where the environment that prints lies; kills what is left of it at the end."""
    (tmp_path / "printing.py").write_text(PRINTING)
    path = os.pathsep.join([str(REPOSITORY), str(tmp_path)])
    with contextlib.ExitStack() as processes:

        def start(command, **options):
            env = {**os.environ, "PYTHONPATH": path}
            process = processes.enter_context(subprocess.Popen(command, cwd=tmp_path, env=env, **options))
            processes.callback(process.kill)
            return process

        yield start


def assert_whole(folder):
    """A run of N_ITERATIONS that ended as if somebody had watched."""
    assert read_state(folder).status == "finished"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["time/iteration"] for line in lines] == list(range(1, N_ITERATIONS + 1))
    assert load_checkpoint(folder / "latest.pt")["trainer"]["iteration"] == N_ITERATIONS
    assert {"best.pt", "evaluation.json", "report.html"} <= set(os.listdir(folder))


@pytest.mark.parametrize("n_workers", [0, 1])
def test_a_run_goes_on_when_its_reader_leaves(started, tmp_path, n_workers):
    """As `train 2>&1 | head -2` does; what its environment prints, here or in a worker, goes to the same pipe."""
    command = [*PRINTS, "--n-workers", str(n_workers)]
    process = started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    next(line for line in process.stdout if "Using 2 parallel environments" in line)
    process.stdout.close()
    assert process.wait(100) == 0
    assert_whole(tmp_path / "run")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_run_goes_on_where_what_it_prints_cannot_be_written(started, tmp_path):
    with open("/dev/full", "w") as full:
        process = started(PRINTS, stdout=full, stderr=subprocess.PIPE, text=True)
        assert "Traceback" not in process.stderr.read()
        assert process.wait(100) == 0
    assert_whole(tmp_path / "run")


@pytest.mark.slow
def test_a_run_goes_on_without_stdout_and_stderr(started, tmp_path):
    process = started(["sh", "-c", '"$@" >&- 2>&-', "sh", *PRINTS])
    assert process.wait(100) == 0
    assert_whole(tmp_path / "run")


@pytest.fixture
def terminal():
    """Both ends of a terminal; the near one is the program's."""
    far, near = pty.openpty()
    ends = {"far": far, "near": near}
    yield ends
    for end in ends.values():
        os.close(end)


def start_in(terminal, started, command):
    """A process whose terminal this is, as that of a shell's job."""
    near = terminal.pop("near")
    process = started(
        command,
        **dict.fromkeys(("stdin", "stdout", "stderr"), near),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(near)
    return process


def read_until(terminal, words):
    shown = b""
    while words not in shown:
        shown += os.read(terminal["far"], 1 << 16)


def test_a_closed_terminal_stops_a_run_that_can_be_resumed(terminal, started, tmp_path):
    """The kernel sends SIGHUP to the leader of the session, and a shell to every process of its job."""
    process = start_in(terminal, started, ENDLESS)
    read_until(terminal, b"Episode 10/")
    os.close(terminal.pop("far"))
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(100) == 128 + signal.SIGHUP
    state = read_state(tmp_path / "run")
    assert (state.status, state.reason) == ("stopped", "Stopped by SIGHUP.")
    saved = load_checkpoint(tmp_path / "run" / "latest.pt")["trainer"]
    assert saved["iteration"] == state.iterations >= 10
    n_lines = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert n_lines == state.iterations


@pytest.mark.slow
def test_under_nohup_a_run_goes_on_after_its_terminal_was_closed(terminal, started, tmp_path):
    process = start_in(terminal, started, ["nohup", *PRINTS])
    read_until(terminal, b"nohup.out")
    while "Using 2 parallel environments" not in (tmp_path / "nohup.out").read_text():  # nohup itself is over
        assert process.poll() is None
        time.sleep(0.01)
    os.close(terminal.pop("far"))
    assert process.wait(100) == 0
    assert_whole(tmp_path / "run")


PRESSES = """
import os, signal
try:
    os.kill(os.getpid(), signal.{name})
    while True:  # the signal is on its way
        pass
except KeyboardInterrupt:
    pass  # as an import that catches everything does
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("module", ["ml_pipeline", "ml_pipeline.train_ppo"])
@pytest.mark.parametrize("imported", ["tyro", "torch"])
def test_a_signal_while_a_command_begins_is_one_line(started, tmp_path, module, imported, number):
    (tmp_path / f"{imported}.py").write_text(PRESSES.format(name=number.name))
    command = [sys.executable, "-m", module, *(["train"] if module == "ml_pipeline" else []), *PRINTS[4:]]
    process = started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (128 + number, "")
    assert err.endswith(f": Stopped by {number.name}.\n")
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


IMPORTED_SLOWLY = """
import time
from pathlib import Path
Path(__file__).with_name("importing").touch()
time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_while_the_environment_is_imported_is_one_line(started, tmp_path, number):
    (tmp_path / "imported_slowly.py").write_text(IMPORTED_SLOWLY)
    command = [*TRAIN, "--env-id", "imported_slowly:It-v0"]
    process = started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "importing").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.communicate(timeout=100) == ("", f"ml-pipeline train: Stopped by {number.name}.\n")
    assert process.returncode == 128 + number
    assert not (tmp_path / "run").exists()


PRESSES_WHEN_MADE = """
import os, signal
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Pressing(CartPoleEnv):
    def __init__(self, **arguments):
        super().__init__(**arguments)
        Pressing.n_made = getattr(Pressing, "n_made", 0) + 1
        if Pressing.n_made == 2:  # the second that this process makes
            os.kill(os.getpid(), signal.SIGTERM)

gymnasium.register("Pressing-v0", Pressing)
"""


@pytest.mark.slow
def test_a_signal_while_a_run_sets_itself_up_leaves_no_folder(started, tmp_path):
    (tmp_path / "pressing.py").write_text(PRESSES_WHEN_MADE)
    command = [*TRAIN, "--n-workers", "0", "--env-id", "pressing:Pressing-v0"]
    process = started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.communicate(timeout=100) == ("", "ml-pipeline train: Stopped by SIGTERM.\n")
    assert process.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_folder_that_is_deleted_under_a_run_is_one_sentence(started, tmp_path):
    process = started(ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    next(line for line in process.stdout if line.startswith("Episode 10/"))
    (tmp_path / "run").rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    _, err = process.communicate(timeout=100)
    assert err.startswith(f"ml-pipeline train: The run folder {tmp_path / 'run'} was deleted, moved or replaced while ")
    assert (process.returncode, err.count("\n")) == (2, 1)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_the_command_that_continues_is_the_one_that_was_typed_and_can_be_pasted(started, tmp_path):
    command = [*ENDLESS, "--checkpoint-dir", "it's mine; rm -r $HOME"]
    command[0] = os.path.relpath(sys.executable, tmp_path)
    process = started(command, stdout=subprocess.PIPE, text=True)
    next(line for line in process.stdout if line.startswith("Episode 10/"))
    process.send_signal(signal.SIGTERM)
    *_, typed = process.communicate(timeout=100)[0].splitlines()
    assert shlex.split(typed) == [*command[:4], "--resume", command[-1]]
    process = started(["sh", "-c", f"exec {typed} --iterations 1"], stdout=subprocess.PIPE, text=True)
    assert "Resuming after iteration" in process.communicate(timeout=100)[0]
    assert process.returncode == 0
