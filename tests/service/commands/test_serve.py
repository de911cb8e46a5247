"""`ml-pipeline serve` as its user sees it: from the first line to Ctrl-C."""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec

import pytest

from ml_pipeline.cli import main
from ml_pipeline.runtime.process_identity import is_alive
from ml_pipeline.service.agent_training_service import AgentTrainingService
from ml_pipeline.service.channel import ask_service
from ml_pipeline.service.commands import serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT"),
]
LONG = {"env_id": "CartPole-v1", "total_timesteps": 10**8, "n_steps": 64, "minibatch_size": 64, "vec_env": "serial"}


def signal_thread(pid, thread, number):
    """Send a signal to one thread of another process; to the process where that thread has ended."""
    if ctypes.CDLL(None, use_errno=True).tgkill(pid, thread, number):
        os.kill(pid, number)


class Serve:
    """The command in a process of its own."""

    def __init__(self, root, *words):
        command = [sys.executable, "-m", "ml_pipeline", "serve", "--root", str(root), *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.lines = []

    def read_until(self, part):
        """The line that holds this part, once it is there."""
        for line in self.process.stdout:
            self.lines.append(line)
            if part in line:
                return line
        raise AssertionError(f"it ended without saying {part!r}: {self.lines}")

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        rest = self.process.stdout.read()
        return self.process.wait(timeout=60), rest

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_ctrl_c_ends_the_service_and_leaves_its_runs_going_on(tmp_path):
    with Serve(tmp_path, "--no-page") as served:
        assert "0 runs to do" in served.read_until("The service works on")
        served.read_until(f"--root {tmp_path}   Ctrl-C ends the service.")
        run = ask_service(tmp_path, {"do": "submit", "settings": LONG, "folder_of_work": str(tmp_path)})
        served.read_until(f"{run} starts, as process")
        code, rest = served.interrupt()
    assert code == 128 + signal.SIGINT
    assert f"1 run continues without the service: {run}" in rest
    assert f"Start the service again with: ml-pipeline serve --root {tmp_path}" in rest
    with AgentTrainingService(tmp_path) as service:
        assert is_alive(service.get(run).process)
        service.stop(run)
        assert [each.status for each in service.wait(timeout_s=60)] == ["stopped"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs pseudo-terminals")
@pytest.mark.skipif(find_spec("uvicorn") is None, reason="the page needs an extra")
@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGINT, signal.SIGTERM)])
def test_ctrl_c_in_a_terminal_ends_the_service_and_its_page(numbers, tmp_path):
    """Its threads take signals as well: the one that waits has to notice."""
    terminal, inside = os.openpty()
    command = [sys.executable, "-m", "ml_pipeline", "serve", "--root", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True)
    os.close(inside)
    said = b""
    try:
        while b"Ctrl-C ends the service." not in said:
            said += os.read(terminal, 4096)
        thread = max(map(int, os.listdir(f"/proc/{process.pid}/task")))
        for number in numbers:
            signal_thread(process.pid, thread, number)
            while number == signal.SIGINT and b"Start the service again" not in said:
                said += os.read(terminal, 4096)
        code = process.wait(timeout=60)
        with suppress(OSError):  # what Linux raises at the end
            while more := os.read(terminal, 4096):
                said += more
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert code == 128 + signal.SIGINT
    assert b"Traceback" not in said


def test_signals_after_the_first_change_neither_the_exit_code_nor_the_end(tmp_path, capfd, monkeypatch):
    usual = serve._say

    def say(sentence):
        usual(sentence)
        if sentence.startswith("Start the service again"):
            signal.raise_signal(signal.SIGTERM)

    def pressed(seconds):
        monkeypatch.undo()
        monkeypatch.setattr(serve, "_say", say)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(serve.time, "sleep", pressed)
    assert serve.main(["--root", str(tmp_path), "--no-page"]) == 128 + signal.SIGINT
    AgentTrainingService(tmp_path).close()  # the root is free


def test_stop_runs_stops_them_at_the_end(tmp_path):
    with Serve(tmp_path, "--no-page", "--stop-runs") as served:
        served.read_until("Ctrl-C ends the service.")
        run = ask_service(tmp_path, {"do": "submit", "settings": LONG, "folder_of_work": str(tmp_path)})
        served.read_until(f"{run} starts, as process")
        code, rest = served.interrupt()
    assert code == 128 + signal.SIGINT
    assert f"{run} stopped" in rest


def test_a_second_service_is_refused_by_a_sentence(tmp_path, capsys):
    with Serve(tmp_path, "--no-page") as served:
        served.read_until("Ctrl-C ends the service.")
        with pytest.raises(SystemExit, match="2"):
            main(["serve", "--root", str(tmp_path), "--no-page"])
        sentence = (
            f"A service works on {tmp_path} already: process {served.process.pid} on {os.uname().nodename}, since "
        )
        assert sentence in capsys.readouterr().err
        served.interrupt()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("max_run: 2\n", 'unknown setting "max_run". Did you mean "max_runs"?'),
        ("max_runs: 0\n", "max_runs must be a whole number of at least 1, but got 0"),
        ("cores: many\n", "cores must be a number or none"),
    ],
)
def test_a_file_of_settings_is_checked(settings, sentence, tmp_path, capsys):
    file = tmp_path / "service.yaml"
    file.write_text(settings)
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--root", str(tmp_path / "root"), "--config", str(file), "--no-page"])
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "root").exists()


@pytest.mark.skipif(find_spec("ml_pipeline.dashboard.server") is None, reason="there is no page yet")
def test_the_page_is_served_and_its_address_printed(tmp_path):
    with Serve(tmp_path, "--port", "0") as served:
        assert "http://127.0.0.1:" in served.read_until("Dashboard: ")
        served.interrupt()
