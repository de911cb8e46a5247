"""monitor.csv has a line a finished episode, each once, however often a run is interrupted."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.monitoring.monitor_csv import MonitorCsv
from ml_pipeline.monitoring.sink import EpisodeRecord


def episode(step: int) -> EpisodeRecord:
    return EpisodeRecord(episode_return=step / 8, length=step, env_index=step % 4, global_step=step, time_s=step / 2)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def test_columns_are_those_of_stable_baselines3_first(tmp_path):
    file = MonitorCsv(tmp_path / "monitor.csv")
    file.write({}, [EpisodeRecord(-12.5, 200, env_index=3, global_step=1600, time_s=1.25)])
    _, *lines = (tmp_path / "monitor.csv").read_text().splitlines()
    assert lines == ["r,l,t,env,global_step", "-12.5,200,1.250000,3,1600"]
    file.close()


def test_stable_baselines3_reads_it_and_a_resumed_run_keeps_its_start(tmp_path):
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    MonitorCsv(tmp_path / "monitor.csv", env_id="CartPole-v1").close()
    first = (tmp_path / "monitor.csv").read_text().splitlines()[0]
    file = MonitorCsv(tmp_path / "monitor.csv", env_id="CartPole-v1", resume_step=0)
    file.write({}, [episode(8), episode(16)])
    file.close()
    assert (tmp_path / "monitor.csv").read_text().splitlines()[0] == first
    results = monitor.load_results(str(tmp_path))
    assert results[["r", "l"]].to_numpy().tolist() == [[1.0, 8], [2.0, 16]]
    assert results["t"].tolist() == pytest.approx([4.0, 8.0], abs=1e-5)  # beside seconds since 1970


def test_small_returns_keep_their_digits(tmp_path):
    file = MonitorCsv(tmp_path / "monitor.csv")
    file.write({}, [EpisodeRecord(1.23456789e-7, 1, 0, 1, 0.0)])
    file.close()
    assert float(rows(tmp_path / "monitor.csv")[0]["r"]) == 1.23456789e-7


def test_an_iteration_without_episodes_adds_nothing(tmp_path):
    file = MonitorCsv(tmp_path / "monitor.csv")
    file.write({}, [])
    file.close()
    assert rows(tmp_path / "monitor.csv") == []


@given(st.lists(st.integers(0, 1000), unique=True).map(sorted), st.integers(0, 1000), st.booleans())
def test_an_interrupted_and_resumed_run_has_each_episode_once(tmp_path_factory, steps, resume_step, torn):
    path = tmp_path_factory.mktemp("run") / "monitor.csv"
    file = MonitorCsv(path)
    file.write({}, [episode(step) for step in steps])
    file.close()
    if torn:
        path.write_text(path.read_text() + "1.5,12,3.0,0,10")  # of 1010: a step that looks earlier than it was
    file = MonitorCsv(path, resume_step=resume_step)
    file.write({}, [episode(step) for step in steps if step > resume_step])
    file.close()
    assert [int(row["global_step"]) for row in rows(path)] == steps
    assert [float(row["r"]) for row in rows(path)] == [step / 8 for step in steps]
