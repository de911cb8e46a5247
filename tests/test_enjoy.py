"""The command that plays a trained policy, on CartPole."""

import os
import signal
import subprocess
import sys

import pytest

from ml_pipeline import enjoy, train_ppo
from ml_pipeline.runs.trained import enjoy as playing

SMALL = ["--n-envs", "2", "--n-steps", "32", "--minibatch-size", "32", "--hidden-sizes", "8", "--n-epochs", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("enjoy") / "run"
    train = ["--env-id", "CartPole-v1", "--iterations", "2", "--vec-env", "serial", "--checkpoint-dir", str(folder)]
    assert train_ppo.main([*SMALL, *train]) == 0
    return folder


def test_it_prints_each_episode_and_who_played(run, capsys):
    assert enjoy.main([str(run), "--episodes", "2"]) == 0
    first, second, policy = capsys.readouterr().out.splitlines()
    assert first.startswith("Episode 1: return ")
    assert second.startswith("Episode 2: return ")
    assert second.endswith(" steps")
    assert policy.startswith("LoadedPolicy(Box(4,) -> Discrete(2), hidden sizes [8], tanh, trained for ")


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_cart_pole_is_recorded(run, tmp_path, capsys, suffix):
    pytest.importorskip("pygame")
    if suffix == ".mp4":
        pytest.importorskip("av")
    video = tmp_path / f"out{suffix}"
    assert enjoy.main([str(run), "--episodes", "1", "--video", str(video)]) == 0
    said = capsys.readouterr().out.splitlines()
    length = int(said[0].split(", ")[1].removesuffix(" steps"))
    assert said[-1] == f"Written to {video}: {length + 1} frames"
    assert video.stat().st_size > 1000


def test_what_is_missing_is_named_in_one_sentence(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(SystemExit, match="2"):
        enjoy.main([str(run), "--video", str(tmp_path / "out.gif")])
    said = capsys.readouterr().err
    assert "CartPole-v1 cannot be rendered: pygame is not installed" in said
    assert 'pip install "gymnasium[classic-control]"' in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_path_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        enjoy.main([str(tmp_path / "none")])
    assert capsys.readouterr().err == f"enjoy: There is no checkpoint {tmp_path / 'none'}.\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_it_with_one_line_and_its_exit_code(run, monkeypatch, capsys, name):
    number = getattr(signal, name)
    monkeypatch.setattr(playing, "_episodes", lambda *_: iter(lambda: signal.raise_signal(number), object()))
    with pytest.raises(SystemExit) as stop:
        enjoy.main([str(run)])
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (128 + number, f"enjoy: Stopped by {name}.\n")
    assert out.startswith("LoadedPolicy(")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a terminal sends Ctrl-C to a process group on POSIX alone")
def test_ctrl_c_of_a_terminal_leaves_a_video_that_plays(run, tmp_path):
    pytest.importorskip("pygame")
    av = pytest.importorskip("av")
    video = tmp_path / "out.mp4"
    command = [sys.executable, "-m", "ml_pipeline", "enjoy", str(run), "--episodes", "1000", "--video", str(video)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        length = int(process.stdout.readline().split(", ")[1].removesuffix(" steps\n"))
        os.killpg(process.pid, signal.SIGINT)
        assert f"Written to {video}" in process.stdout.read()
    assert process.returncode == 130
    with av.open(str(video)) as container:
        assert sum(1 for _ in container.decode(video=0)) > length
