"""A run that is stopped or interrupted saves what it has, and goes on as if it had not been."""

import json
import signal
import threading

import numpy as np
import pytest
import torch

from ml_pipeline.monitoring.sinks import MetricsFile
from ml_pipeline.runs import checkpoint
from ml_pipeline.runs import run as run_module
from ml_pipeline.runs.checkpoint import load_checkpoint, save_checkpoint
from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from tests.small_runs import After, Broken, config_of, resumed, trained, weights


def test_a_stop_saves_and_a_resumption_ends_as_if_it_had_not_been(tmp_path):
    trained(tmp_path / "whole")
    config, stop = config_of(tmp_path / "parts"), StopRequest()
    asked = After(2, lambda: stop.request("the machine is wanted elsewhere"))
    result = Run(config, make_task(config), sinks=[asked], stop=stop).train()
    assert (result.status, result.reason) == ("stopped", "the machine is wanted elsewhere")
    assert (result.iterations, result.report, result.report_path) == (2, None, None)
    assert read_state(tmp_path / "parts").status == "stopped"
    assert resumed(tmp_path / "parts").train().status == "finished"
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_a_stop_from_another_thread_ends_a_run_that_would_go_on_for_days(tmp_path):
    config, stop = config_of(tmp_path, iterations=10**6, eval_interval=10**6), StopRequest()
    other = threading.Thread(target=stop.request)
    result = Run(config, make_task(config), sinks=[After(1, other.start)], stop=stop).train()
    other.join(30)
    assert (result.status, result.reason) == ("stopped", "A stop was requested.")


def test_a_run_whose_stop_was_requested_before_takes_no_step_and_can_be_resumed(tmp_path):
    config, stop = config_of(tmp_path), StopRequest()
    stop.request()
    assert Run(config, make_task(config), stop=stop).train().global_step == 0
    assert resumed(tmp_path).train().global_step == 256


def test_a_stop_in_the_last_iteration_finds_the_run_finished(tmp_path):
    config, stop = config_of(tmp_path), StopRequest()
    assert Run(config, make_task(config), sinks=[After(4, stop.request)], stop=stop).train().status == "finished"


def test_a_run_that_is_interrupted_while_its_end_is_recorded_has_finished(tmp_path, monkeypatch):
    interruptions = [KeyboardInterrupt]

    def end(*args, **kwargs):
        if interruptions:
            raise interruptions.pop()
        return usual(*args, **kwargs)

    usual = FolderClaim.end
    monkeypatch.setattr(FolderClaim, "end", end)
    config = config_of(tmp_path)
    run = Run(config, make_task(config))
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert run.result.status == "finished"
    assert read_state(tmp_path).status == "finished"


class Unhurried(GymTask):
    """Its evaluation takes until somebody stops it, once."""

    def __init__(self, stop, *, at):
        super().__init__("CartPole-v1", eval_episodes=1, seed=0)
        self._stop, self._at, self.n_scored = stop, at, 0

    def score(self, act):
        self.n_scored += 1
        if self.n_scored == self._at:
            self._stop.request("enough")
            while True:
                act(np.zeros(4, np.float32))
        return super().score(act)


@pytest.mark.parametrize("at", [1, 2])
def test_a_stop_during_an_evaluation_saves_at_once_and_a_resumption_evaluates(tmp_path, at):
    """The second evaluation is that after the last iteration."""
    trained(tmp_path / "whole", eval_interval=2)
    config, stop = config_of(tmp_path / "parts", eval_interval=2), StopRequest()
    result = Run(config, Unhurried(stop, at=at), stop=stop).train()
    assert (result.status, result.reason, result.iterations) == ("stopped", "enough", 2 * at)
    again = resumed(tmp_path / "parts").train()
    assert (again.status, list(again.scores)) == ("finished", [128, 256][at - 1 :])
    for name in ("latest.pt", "best.pt"):
        one, other = (load_checkpoint(tmp_path / each / name) for each in ("parts", "whole"))
        assert one["best_score"] == other["best_score"]
        assert torch.equal(weights(tmp_path / "parts", name), weights(tmp_path / "whole", name))
    one, other = (scores_in(tmp_path / each / "metrics.jsonl") for each in ("parts", "whole"))
    assert one == other


def scores_in(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["time/global_step"], line.get("eval/score")) for line in lines]


def test_a_stop_during_the_evaluation_of_an_early_end_trains_no_further_when_resumed(tmp_path, monkeypatch):
    settings = {"stop_at_return": 1.0, "eval_interval": 100, "checkpoint_interval": 100}
    whole = Run(config_of(tmp_path / "whole", **settings), make_task(config_of(tmp_path / "whole"))).train()
    assert whole.reason == f"Training ends early, after iteration {whole.iterations}."
    stop, saved = StopRequest(), []

    def save(path, state):
        saved.append(path.name)
        save_checkpoint(path, state)

    monkeypatch.setattr(checkpoint, "save_checkpoint", save)
    stopped = Run(config_of(tmp_path / "parts", **settings), Unhurried(stop, at=1), stop=stop).train()
    assert (stopped.status, stopped.iterations) == ("stopped", whole.iterations)
    assert saved == ["latest.pt"] * 2  # at the beginning, and once at the end
    again = resumed(tmp_path / "parts").train()
    assert (again.status, again.reason, again.iterations) == ("finished", whole.reason, whole.iterations)
    assert again.scores == whole.scores
    assert torch.equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    assert resumed(tmp_path / "parts").train().iterations > whole.iterations  # it has its score: this asks for more


def test_the_metrics_of_a_late_evaluation_are_closed_where_they_cannot_be_written(tmp_path, monkeypatch):
    stop, closed = StopRequest(), []
    Run(config_of(tmp_path / "run", eval_interval=4), Unhurried(stop, at=1), stop=stop).train()

    class Full(MetricsFile):
        def add_to_last(self, step, values):
            raise OSError("the disk is full")

        def close(self):
            closed.append(self)
            super().close()

    monkeypatch.setattr(run_module, "MetricsFile", Full)
    with pytest.raises(OSError, match="the disk is full"):
        resumed(tmp_path / "run").train()
    assert len(closed) == 1


def test_ctrl_c_in_the_main_thread_saves_and_is_raised(tmp_path):
    config = config_of(tmp_path)
    run = Run(config, make_task(config), sinks=[After(2, lambda: signal.raise_signal(signal.SIGINT))])
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert (run.result.status, run.result.reason, run.result.iterations) == ("stopped", "Ctrl-C.", 2)
    assert load_checkpoint(tmp_path / "latest.pt")["trainer"]["iteration"] == 2
    assert read_state(tmp_path).status == "stopped"


def test_ctrl_c_during_the_report_is_told_as_that(tmp_path, monkeypatch):
    config = config_of(tmp_path)
    task = make_task(config)
    monkeypatch.setattr(task, "report", _interrupted)
    run = Run(config, task)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert run.result.status == "stopped"
    assert run.result.reason == "Ctrl-C. The training is saved, but the report was not written."


def _interrupted(*_):
    raise KeyboardInterrupt


def test_a_run_that_cannot_record_its_end_frees_its_folder(tmp_path, monkeypatch):
    """In the process that goes on, as a notebook's does, another run may take the folder over."""
    config = config_of(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("ml_pipeline.runs.run._record", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            Run(config, make_task(config)).train()
    assert read_state(tmp_path).status == "running"
    result = Run(config, make_task(config), checkpoint=tmp_path / "latest.pt").train()
    assert (result.status, read_state(tmp_path).status) == ("finished", "finished")


def test_an_impatient_ctrl_c_leaves_the_last_checkpoint(tmp_path):
    run = Run(config_of(tmp_path), Broken(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert (run.result.status, run.result.reason) == (
        "stopped",
        "Stopped without saving; earlier checkpoints are intact.",
    )
    assert load_checkpoint(tmp_path / "latest.pt")["trainer"]["iteration"] == 0
