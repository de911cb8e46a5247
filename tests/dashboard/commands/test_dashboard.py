import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ml_pipeline.dashboard.commands.dashboard import main
from tests.dashboard.run_folders import make_run
from tests.dashboard.study_folders import make_study

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once_though_a_page_is_open(tmp_path):
    make_run(tmp_path, "a")
    command = [sys.executable, "-m", "ml_pipeline", "dashboard", str(tmp_path), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        line = process.stdout.readline()
        assert line.startswith(f"Dashboard of {tmp_path}: http://127.0.0.1:")
        address = line.split()[-1]
        with httpx.Client(trust_env=False, timeout=60) as client:
            assert client.get(f"{address}api/runs").json()["runs"][0]["name"] == "a"
            with client.stream("GET", f"{address}api/events") as stream:
                next(stream.iter_lines())
                process.send_signal(signal.SIGINT)
                told = process.communicate(timeout=60)
    assert (process.returncode, told[1]) == (130, "dashboard: Stopped by SIGINT.\n".replace("dash", "ml-pipeline dash"))


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["nothing"], "nothing does not exist; name a folder of runs"),
        (["a", "b"], "shows one folder of runs, but got 2"),
        (["--port", "99999"], "port must be from 0 to 65535, but got 99999"),
        (["--once"], "--once works only in the terminal; add --training"),
        (["--study", "s"], "--study works only in the terminal; add --training"),
        (["--training", "--study", "s"], 'has no study "s"'),
        (["--token", "x"], "token must have at least 16"),
        (["--prot", "1"], 'Did you mean "--port"'),
    ],
)
def test_bad_input_is_one_sentence(argv, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_port_in_use_is_told(served, tmp_path, capsys, monkeypatch):
    from ml_pipeline.dashboard import server

    used, _ = served(tmp_path)
    monkeypatch.setattr(server.DashboardServer, "wait", lambda self: None)
    assert main([str(tmp_path), "--port", str(used.port)]) == 0
    out = capsys.readouterr().out
    assert f"Port {used.port} is in use;" in out
    assert f"Dashboard of {tmp_path}: http://127.0.0.1:" in out


def test_studies_are_printed_once(tmp_path, capsys):
    make_study(tmp_path, "first")
    make_study(tmp_path, "second", state="stopped")
    assert main(["--training", str(tmp_path), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Study         first, running"
    assert any(line.startswith("CPU ") for line in lines)
    assert lines[-1].startswith("Study second: stopped, 3 of 10 trials")
    assert main(["--training", str(tmp_path), "--study", "second", "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Study         second, stopped")
    assert "first" not in out


def test_a_folder_without_studies_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--training", "--once"]) == 0
    assert capsys.readouterr().out == "No studies in checkpoints yet. Start one with: ml-pipeline tune\n"
