"""`ml-pipeline status` and `watch`, as a user types them: on a terminal, in a pipe, over odd folders."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from ml_pipeline.dashboard.commands import status, watch
from ml_pipeline.service.channel import ServiceChannel
from ml_pipeline.service.store import SERVICE_FOLDER
from tests.dashboard.study_folders import make_study, study_values, write_study
from tests.dashboard.test_summaries import make_run, row

COMMAND = [sys.executable, "-m", "ml_pipeline"]
PLAIN = {**os.environ, "PYTHONUNBUFFERED": "1", "TERM": "xterm"}


@pytest.fixture
def root(tmp_path):
    make_run(tmp_path / "runs", "going", rows=[row(1, 100), row(2, 200)])
    make_run(tmp_path / "runs", "broken", status="failed", reason="Worker 1 was killed.")
    return tmp_path / "runs"


class Terminal:
    """A command on a terminal of 80 columns and 12 lines."""

    def __init__(self, *arguments, cwd):
        self._master, slave = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 80, 0, 0))
        environment = {name: value for name, value in PLAIN.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=environment
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, text):
        """Read until the text has come, or everything where it is None."""
        ends = time.monotonic() + 60
        while text is None or text not in self.text:
            assert time.monotonic() < ends, self.text
            if not select.select([self._master], [], [], 1.0)[0]:
                continue
            try:
                got = os.read(self._master, 65_536)
            except OSError:  # Linux, where the other end is closed
                got = b""
            if not got:
                assert text is None, self.text
                return
            self.text += got.decode(errors="replace")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(root):
    opened = []

    def start(*arguments):
        opened.append(Terminal(*arguments, cwd=root.parent))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_pipe_gets_a_plain_table(root, capsys):
    assert status.main([str(root)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["RUN", "STATE"], ["going", "running"], ["broken", "failed"]]
    assert lines[3] == "2 runs: 1 running, 1 failed"
    assert lines[4] == "broken failed: Worker 1 was killed."
    assert "\x1b" not in out


def test_json_is_for_scripts(root, capsys):
    assert status.main([str(root), "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert (found["going"]["status"], found["going"]["global_step"], found["broken"]["status"]) == (
        "running",
        200,
        "failed",
    )
    assert found["going"]["progress"] == 0.2


def test_queued_runs_that_no_service_will_start_are_told(root, capsys):
    make_run(root, "waits", status="queued", reason="Waits for 2 of 2 cores.")
    assert status.main([str(root)]) == 0
    sentence = f"No service works on {root}; start one: ml-pipeline serve --root {root}"
    assert capsys.readouterr().out.splitlines()[-1] == sentence
    assert status.main([str(root / "waits")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == sentence
    (root / SERVICE_FOLDER).mkdir()
    with closing(ServiceChannel(root, lambda request: None)):
        assert status.main([str(root)]) == 0
        assert "No service" not in capsys.readouterr().out


def test_a_root_whose_service_ended_is_told_and_one_that_had_none_is_not(root, capsys):
    assert status.main([str(root)]) == 0
    assert "No service" not in capsys.readouterr().out
    (root / SERVICE_FOLDER).mkdir()
    assert status.main([str(root)]) == 0
    assert f"\nNo service works on {root}; start one: " in capsys.readouterr().out
    assert status.main([str(root), "--json"]) == 0
    assert "No service" not in capsys.readouterr().out


def test_no_runs_are_told(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert status.main([]) == 0
    assert capsys.readouterr().out == "No runs in checkpoints yet.\n"
    assert status.main([str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_run_is_named_as_other_commands_name_it(root, capsys, monkeypatch):
    monkeypatch.setattr("ml_pipeline.dashboard.terminal.views.runs_folder", lambda: root)
    for name in ("going", "go"):
        assert status.main([name, "--json"]) == 0
        assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["going"]
    make_run(root, "gone", status="finished")
    with pytest.raises(SystemExit):
        status.main(["go"])
    assert '"go" matches the names of 2 runs: going, gone; type more' in capsys.readouterr().err


def test_help_shows_no_empty_default(capsys):
    for command in (status.main, watch.main):
        with pytest.raises(SystemExit):
            command(["--help"])
        out = capsys.readouterr().out
        assert "(default: )" not in out
        assert "--no-json" not in out


@pytest.mark.parametrize(("name", "what"), [("nothing", "does not exist"), ("file", "is not a folder")])
def test_a_root_that_is_no_folder_is_refused(tmp_path, capsys, name, what):
    (tmp_path / "file").touch()
    for command in (status.main, watch.main):
        with pytest.raises(SystemExit) as stop:
            command([str(tmp_path / name)])
        assert stop.value.code == 2
        assert f"{name} {what}; name a folder of runs, such as checkpoints/" in capsys.readouterr().err


def test_two_hundred_runs_are_all_listed_in_a_pipe(tmp_path, capsys):
    for i in range(200):
        make_run(tmp_path, f"run{i}", status="finished")
    assert status.main([str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 202


def test_several_folders_are_shown_together(root, capsys):
    assert status.main([str(root / "broken"), str(root / "going")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:3]] == ["RUN", "broken", "going"]


def test_the_trials_of_a_study_are_one_line_unless_they_are_asked_for(root, capsys):
    make_study(root, "eurusd", n_runs=5, values=(1.0,) * 5)
    assert status.main([str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", "going", "broken", "2", "broken", "Study"]
    assert lines[-1].startswith("Study eurusd: running, 5 of 10 trials, 57.5 trials/hour")
    assert status.main([str(root), "--trials"]) == 0
    assert capsys.readouterr().out.count("eurusd/trial-") == 5
    assert status.main([str(root), "--json"]) == 0
    assert {run["study"] for run in json.loads(capsys.readouterr().out)} == {None, "eurusd"}


def test_a_study_without_runs_of_ones_own_is_told(tmp_path, capsys):
    make_study(tmp_path, "eurusd", n_runs=1)
    assert status.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Study eurusd: running, 3 of 10 trials")


@pytest.mark.slow
def test_a_terminal_of_80_columns_is_not_left(root, terminal):
    shown = terminal("status", "runs")
    shown.wait_for(None)
    assert shown.process.wait() == 0
    assert "going" in shown.text
    assert "\x1b[1m" in shown.text  # the header
    assert "WORKERS" not in shown.text


@pytest.mark.slow
def test_watch_shows_what_changes_and_leaves_the_terminal_as_it_was(root, terminal):
    shown = terminal("watch", "runs", "--interval-s", "0.05")
    shown.wait_for("going")
    for i in range(30):
        make_run(root, f"new{i}", status="finished")
    shown.wait_for(" more")  # than the window has lines
    shown.process.send_signal(signal.SIGINT)
    shown.wait_for(None)
    assert shown.process.wait() == 0
    assert shown.text.endswith("\x1b[?25h\x1b[?1049l")  # the cursor is back, and what stood there before
    assert "Traceback" not in shown.text


@pytest.mark.slow
def test_watch_in_a_pipe_prints_a_table_when_something_changed(root):
    command = [*COMMAND, "watch", str(root), "--interval-s", "0.05"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=PLAIN) as process:
        try:
            lines = [process.stdout.readline() for _ in range(6)]
            assert lines[0].endswith("Z\n")
            assert lines[1].startswith("RUN ")
            (root / "going" / "metrics.jsonl").write_text(
                "".join(json.dumps(row(i, 100 * i)) + "\n" for i in (1, 2, 3))
            )
            while "300" not in (line := process.stdout.readline()):
                assert line
            assert "\x1b" not in line
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.slow
def test_studies_are_drawn_live_and_the_terminal_is_left_as_it_was(root, terminal):
    folder = make_study(root, "eurusd")
    shown = terminal("dashboard", "--training", "runs")
    shown.wait_for("3 of 10 trials")
    shown.wait_for("trial 3    [###")
    write_study(folder, study_values(values=(1.0, 2.0, 3.0, 4.0), running=()))
    shown.wait_for("4 of 10 trials")
    shown.process.send_signal(signal.SIGINT)
    shown.wait_for(None)
    assert shown.process.wait() == 0
    assert shown.text.endswith("\x1b[?25h\x1b[?1049l")
    assert "Traceback" not in shown.text


@pytest.mark.slow
def test_studies_in_a_pipe_are_printed_when_a_trial_has_ended(root):
    folder = make_study(root, "eurusd")
    command = [*COMMAND, "dashboard", "--training", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=PLAIN) as process:
        try:
            while not (line := process.stdout.readline()).startswith("Trials "):
                assert line
            assert line.split()[1:4] == ["3", "of", "10"]
            write_study(folder, study_values(values=(1.0,) * 4))
            while "4 of 10" not in (line := process.stdout.readline()):
                assert line
                assert "\x1b" not in line
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM
        finally:
            process.kill()
