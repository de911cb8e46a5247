"""metrics.jsonl is valid JSON, line by line, and has each iteration once, however often a run is interrupted."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.metrics_file import MetricsFile


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
    with pytest.raises(UserError, match="is there already"):
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
