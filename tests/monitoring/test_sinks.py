"""Several sinks are written to and closed as one."""

import csv
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.sinks import EpisodeRecord, LineFile, MetricsFile, MonitorCsv, Sinks, read_lines


class Recorder:
    def __init__(self, name, calls, *, fails=False):
        self.name, self.calls, self.fails = name, calls, fails

    def write(self, metrics, episodes):
        self.calls.append((self.name, dict(metrics), list(episodes)))

    def close(self):
        self.calls.append((self.name, "closed"))
        if self.fails:
            raise OSError(self.name)


def test_every_sink_gets_every_iteration_in_order():
    calls = []
    episode = EpisodeRecord(1.0, 2, 3, 4, 5.0)
    Sinks(Recorder("a", calls), Recorder("b", calls)).write({"x": 1.0}, [episode])
    assert calls == [("a", {"x": 1.0}, [episode]), ("b", {"x": 1.0}, [episode])]


def test_every_sink_is_closed_even_if_one_fails_to():
    calls = []
    with pytest.raises(OSError, match="a"):
        Sinks(Recorder("a", calls, fails=True), Recorder("b", calls)).close()
    assert calls == [("a", "closed"), ("b", "closed")]


def test_a_line_can_be_read_before_the_file_is_closed(tmp_path):
    file = LineFile(tmp_path / "x", ["first"], replace=False)
    file.append(["second"])
    assert read_lines(tmp_path / "x") == ["first", "second"]
    file.close()
    file.close()


def test_a_file_that_is_there_is_not_overwritten(tmp_path):
    (tmp_path / "x").write_text("precious\n")
    with pytest.raises(UserError, match="already exists and would be lost; resume its run, or choose another folder"):
        LineFile(tmp_path / "x", replace=False)
    assert (tmp_path / "x").read_text() == "precious\n"


def test_a_run_that_wrote_nothing_but_its_first_lines_does_not_stand_in_the_way(tmp_path):
    LineFile(tmp_path / "x", ["header"], replace=False).close()
    LineFile(tmp_path / "x", ["header"], replace=False).close()
    assert read_lines(tmp_path / "x") == ["header"]


def test_replacing_leaves_the_given_lines_and_no_other_file(tmp_path):
    (tmp_path / "x").write_text("old\n")
    file = LineFile(tmp_path / "x", ["new"], replace=True)
    file.append(["newer"])
    file.close()
    assert (tmp_path / "x").read_text() == "new\nnewer\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_torn_last_line_is_left_out(tmp_path):
    (tmp_path / "x").write_bytes(b"whole\nto\xc3")  # cut within a character of two bytes
    assert read_lines(tmp_path / "x") == ["whole"]


def test_a_missing_file_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "x") == []


@pytest.mark.parametrize("replace", [True, False])
def test_a_folder_that_cannot_be_written_is_told_in_one_sentence(tmp_path, replace):
    path = tmp_path / "missing" / "x"
    with pytest.raises(UserError) as told:
        LineFile(path, replace=replace)
    reason = "No such file or directory; make room, or choose another folder."
    assert str(told.value) == f"{path} cannot be written: {reason}"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_told_in_one_sentence_and_closes_the_file(tmp_path):
    (tmp_path / "x").symlink_to("/dev/full")
    file = LineFile.__new__(LineFile)  # opening would replace the link
    file.path, file._file = tmp_path / "x", (tmp_path / "x").open("a")
    with pytest.raises(UserError, match="No space left on device; make room, or choose another folder"):
        file.append(["line"])
    file.close()


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_in_place_of_the_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe cannot be read: it is not a regular file"):
        read_lines(tmp_path / "pipe")


def figures(iteration: int) -> dict[str, float]:
    return {"time/iteration": iteration, "time/global_step": 100 * iteration, "train/entropy": 1 / iteration}


def lines(path):
    def never(constant):
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=never) for line in path.read_text().splitlines()]


def test_each_iteration_is_one_line(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    for iteration in (1, 2):
        file.write(figures(iteration), [])
        assert lines(tmp_path / "metrics.jsonl")[-1] == figures(iteration)  # before it is closed
    file.close()
    assert len(lines(tmp_path / "metrics.jsonl")) == 2


def test_what_is_no_number_is_null(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write({"a": math.nan, "b": math.inf, "c": np.float32(0.5), "d": np.int64(3), "e": 2}, [])
    file.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"a": null, "b": null, "c": 0.5, "d": 3, "e": 2}\n'


def test_a_new_run_does_not_overwrite_an_earlier_one(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.write(figures(1), [])
    file.close()
    with pytest.raises(UserError, match="already exists"):
        MetricsFile(tmp_path / "metrics.jsonl")


@given(reached=st.integers(0, 8), saved=st.integers(0, 8), into_rollout=st.integers(0, 99), torn=st.booleans())
def test_an_interrupted_and_resumed_run_has_each_iteration_once(tmp_path_factory, reached, saved, into_rollout, torn):
    saved = min(saved, reached)
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    file = MetricsFile(path)
    for iteration in range(1, reached + 1):
        file.write(figures(iteration), [])
    file.close()
    if torn:
        path.write_text(path.read_text() + '{"time/iteration": 9, "time/glob')
    # The checkpoint was taken at an iteration's end or in the middle of the next one's rollout.
    file = MetricsFile(path, resume_step=100 * saved + into_rollout)
    assert file.last_step == 100 * saved
    for iteration in range(saved + 1, 11):
        file.write(figures(iteration), [])
    file.close()
    assert lines(path) == [figures(iteration) for iteration in range(1, 11)]


def test_resuming_into_another_folder_begins_a_file(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl", resume_step=500)
    assert file.last_step == 0
    file.write(figures(6), [])
    file.close()
    assert lines(tmp_path / "metrics.jsonl") == [figures(6)]


def test_figures_that_come_late_join_the_last_line_if_it_is_that_of_their_step(tmp_path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.add_to_last(100, {"eval/score": 1.0})
    for iteration in (1, 2):
        file.write({**figures(iteration), "b": math.nan}, [])
    file.add_to_last(100, {"eval/score": 1.0})
    file.add_to_last(200, {"eval/score": 2.5})
    file.write(figures(3), [])
    file.close()
    expected = [{**figures(1), "b": None}, {**figures(2), "b": None, "eval/score": 2.5}, figures(3)]
    assert lines(tmp_path / "metrics.jsonl") == expected


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
