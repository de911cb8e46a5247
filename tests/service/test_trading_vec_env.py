"""The file of episodes is read by Stable-Baselines3 itself, and holds what the environments told."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.service import build_vec_env
from ml_pipeline.service.trading_vec_env import EpisodeMonitor, monitor_file
from ml_pipeline.trading.episode_figures import EPISODE_FIGURES
from tests.service.forex_files import SMALL, write_folder

monitor = pytest.importorskip("stable_baselines3.common.monitor")
results_plotter = pytest.importorskip("stable_baselines3.common.results_plotter")
KINDS = ["DummyVecEnv", "SubprocVecEnv", "batched"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("forex"), "EURUSD", "GBPUSD", n_bars=200)


def run(folder, path, env_type, n_steps=50):
    """What the environments told, in order."""
    config = {**SMALL, "vectorized": {"env_type": env_type}}
    told = []
    generator = np.random.default_rng(0)
    with closing(build_vec_env(["EURUSD", "GBPUSD"], folder, config, 4, monitor_path=path)) as envs:
        envs.reset(seed=0)
        for _ in range(n_steps):
            infos = envs.step(generator.integers(0, 3, 4))[4]
            if "_episode" in infos.get("final_info", ()):
                info = infos["final_info"]
                told += [
                    [info["episode"]["r"][i], info["episode"]["l"][i], *(info[name][i] for name in EPISODE_FIGURES)]
                    for i in np.flatnonzero(info["_episode"])
                ]
    return told


@pytest.mark.parametrize("env_type", KINDS)
def test_stable_baselines3_reads_the_figures_that_were_told(folder, tmp_path, env_type):
    logs = tmp_path / "logs"
    told = run(folder, logs / "vec_monitor", env_type)
    assert [path.name for path in logs.iterdir()] == ["vec_monitor.monitor.csv"]
    table = monitor.load_results(str(logs))
    assert list(table.columns) == ["index", "r", "l", "t", *EPISODE_FIGURES]
    assert len(table) == len(told) == 8
    np.testing.assert_allclose(table[["r", "l", *EPISODE_FIGURES]].to_numpy(), np.array(told, float), rtol=1e-6)
    assert (table["l"] == 20).all()
    assert (np.diff(table["t"]) >= 0).all()
    assert (table["max_drawdown"] <= table["drawdown"]).all()
    x, y = results_plotter.ts2xy(table, results_plotter.X_TIMESTEPS)
    assert x.tolist() == [20 * (k + 1) for k in range(8)]
    assert len(y) == 8


def test_the_first_lines_are_those_of_a_monitor(folder, tmp_path):
    run(folder, tmp_path / "m", "DummyVecEnv")
    first, header, *_ = (tmp_path / "m.monitor.csv").read_text().splitlines()
    about = json.loads(first.removeprefix("#"))
    assert about["env_id"] == "EURUSD, GBPUSD"
    assert about["t_start"] > 1e9
    assert header == "r,l,t,drawdown,turnover,sharpe_ratio,max_drawdown"


def test_none_writes_none(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(folder, None, "DummyVecEnv")
    assert list(tmp_path.iterdir()) == []


def test_names_are_those_that_stable_baselines3_gives(tmp_path):
    for name in ("vec_monitor", "a.monitor.csv", "monitor.csv"):
        writer = monitor.ResultsWriter(str(tmp_path / name), header={"t_start": 0.0})
        writer.close()
        assert monitor_file(tmp_path / name).is_file()
    monitor.ResultsWriter(str(tmp_path), header={"t_start": 0.0}).close()
    assert monitor_file(tmp_path) == tmp_path / "monitor.csv"


def test_a_ratio_that_is_not_defined_is_read_as_none(tmp_path):
    with closing(EpisodeMonitor(tmp_path / "m", "X")) as writer:
        on = np.array([False, True])
        figures = {name: np.array([0.0, np.nan if name == "sharpe_ratio" else -0.5]) for name in EPISODE_FIGURES}
        writer.write({"_episode": on, "episode": {"r": np.array([0, 1.5]), "l": np.array([0, 3])}, **figures})
        writer.write({})
    table = monitor.load_results(str(tmp_path))
    assert len(table) == 1
    assert table["r"][0] == 1.5
    assert np.isnan(table["sharpe_ratio"][0])


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"The folder .*file cannot be made: .*; choose another monitor_path, or None"):
        EpisodeMonitor(tmp_path / "file" / "m", "X")


KILLED = """
import sys
from ml_pipeline.service import build_vec_env
from tests.service.forex_files import SMALL

if __name__ == "__main__":
    config = {**SMALL, "vectorized": {"env_type": "DummyVecEnv"}}
    envs = build_vec_env(["EURUSD", "GBPUSD"], sys.argv[1], config, 4, monitor_path=sys.argv[2])
    envs.reset(seed=0)
    print("begun", flush=True)
    while True:
        envs.step(envs.action_space.sample())
"""


@pytest.mark.slow
def test_a_kill_leaves_whole_lines(folder, tmp_path):
    command = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "m")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        path = tmp_path / "m.monitor.csv"
        while path.stat().st_size < 10_000:
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
    assert path.read_text().endswith("\n")
    table = monitor.load_results(str(tmp_path))
    assert len(table) > 20
    assert not table[["r", "l", "t", "max_drawdown"]].isna().any().any()
