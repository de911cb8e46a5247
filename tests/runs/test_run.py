"""A run as a notebook, a thread or a service calls it: what it returns, what it leaves, and two of them at once."""

import io
import json
import os
import random
import signal
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.transitions import TrainingFailed
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.runs.run import Run, RunResult
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.settings import TradingConfig
from tests.small_runs import PPO, After, Broken, config_of, resumed, trained, weights

TEN_LINES = """
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import make_task
result = Run(config, make_task(config)).train()
outcome = result.folder, result.status, result.best_score
"""


@pytest.mark.parametrize(
    "changed",
    [
        {"run": {"env_id": "CartPole-v1", "eval_episodes": 1, "seed": 7}},
        {
            "trading": {
                "fee_bps": 2.0,
                "features": ("rsi_14", "log_return_5"),
                "symbols": ("SYNTH",),
                "sell_fee_bps": None,
            }
        },
    ],
    ids=["gymnasium", "trading"],
)
def test_the_settings_that_a_run_writes_start_another_run_with_the_same(tmp_path, monkeypatch, changed):
    monkeypatch.chdir(tmp_path)
    length = {
        "n_envs": 2,
        "iterations": None,
        "total_timesteps": 64,
        "vec_env": "serial",
        "checkpoint_dir": tmp_path / "run",
    }
    run = RunConfig(**{**length, **changed.get("run", {})})
    config = TrainConfig(run=run, ppo=PPO, trading=TradingConfig(**changed.get("trading", {})))
    stop = StopRequest()
    stop.request()
    Run(config, make_task(config), stop=stop).train()
    again = parse_train_start(["--config", str(tmp_path / "run" / "config.yaml")])
    assert again.config == replace(config, run=replace(run, checkpoint_dir=None))
    result = Run(
        replace(again.config, run=replace(again.config.run, checkpoint_dir=tmp_path / "again")), make_task(config)
    ).train()
    assert result.status == "finished"
    written = [(tmp_path / name / "config.yaml").read_text() for name in ("run", "again")]
    assert written[0] == written[1]


def test_the_lines_that_a_notebook_needs(tmp_path):
    cell = {"config": config_of(tmp_path / "run")}
    exec(TEN_LINES, cell)
    folder, status, best_score = cell["outcome"]
    assert (folder, status) == (tmp_path / "run", "finished")
    assert best_score == cell["result"].scores[256]
    files = {"config.yaml", "metrics.jsonl", "monitor.csv", "latest.pt", "best.pt", "evaluation.json", "state.json"}
    files |= {"learning_curve.png", "report.html", "run.log"}
    assert set(os.listdir(folder)) == files


def test_a_result_tells_how_the_run_ended(tmp_path):
    result = trained(tmp_path, eval_interval=2)
    assert (result.status, result.reason, result.error) == ("finished", None, None)
    assert (result.global_step, result.iterations, list(result.scores)) == (256, 4, [128, 256])
    assert result.best_score == max(result.scores.values())
    assert result.report.startswith("Evaluation on a single CartPole-v1: return ")
    assert json.loads(result.report_path.read_text())["mean_return"] == result.best_score
    state = read_state(tmp_path)
    assert (state.status, state.global_step, state.iterations, state.best_score) == (
        "finished",
        256,
        4,
        result.best_score,
    )


def _process():
    return {
        "environment": dict(os.environ),
        "torch's threads": torch.get_num_threads(),
        "warnings": list(warnings.filters),
        "folder": Path.cwd(),
        "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "streams": (sys.stdout, sys.stderr),
        "random": (random.getstate(), np.random.get_state()[1].tolist()),
        "threads": set(threading.enumerate()),
    }


@pytest.mark.parametrize("run", [{"n_workers": 1, "vec_env": "parallel"}, {"vec_env": "serial"}], ids=str)
def test_a_run_prints_nothing_and_leaves_the_process_as_it_was(tmp_path, capfd, run):
    trained(tmp_path / "first", **run)  # what is compiled or imported once is
    capfd.readouterr()
    before = _process()
    trained(tmp_path / "run", **run)
    assert capfd.readouterr() == ("", "")
    assert _process() == before


def test_a_run_prints_nothing_on_a_terminal_either(tmp_path, monkeypatch):
    terminals = {name: io.StringIO() for name in ("stdout", "stderr")}
    for name, terminal in terminals.items():
        monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, name, terminal)
    trained(tmp_path / "run")
    assert [terminal.getvalue() for terminal in terminals.values()] == ["", ""]


LSTM = replace(PPO, memory="lstm", memory_size=8, learning_rate_schedule="linear")
KINDS = {
    "compiled": {},
    "memory": {"ppo": LSTM},
    "workers": {"n_workers": 2, "vec_env": "parallel", "seed": 3},
    "normal": {"env_id": "Pendulum-v1"},
}


@pytest.mark.slow
def test_runs_at_once_in_one_process_learn_what_each_learns_alone(tmp_path):
    for kind, settings in KINDS.items():
        trained(tmp_path / "alone" / kind, **settings)
    results = {}

    def train(kind):
        results[kind] = trained(tmp_path / "at once" / kind, **KINDS[kind])

    threads = [threading.Thread(target=train, args=(kind,)) for kind in KINDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    for kind in KINDS:
        assert results[kind].status == "finished"
        for name in ("latest.pt", "best.pt"):
            one, other = (weights(tmp_path / when / kind, name) for when in ("at once", "alone"))
            assert torch.equal(one, other), kind


def test_a_run_in_a_thread_and_another_that_begins_in_the_middle_of_it(tmp_path):
    results = {}
    inner = threading.Thread(target=lambda: results.update(inner=trained(tmp_path / "inner", seed=1)))
    config = config_of(tmp_path / "outer")
    outer = Run(config, make_task(config), sinks=[After(2, lambda: (inner.start(), inner.join(100)))])
    thread = threading.Thread(target=lambda: results.update(outer=outer.train()))
    thread.start()
    thread.join(100)
    assert {name: result.status for name, result in results.items()} == {"inner": "finished", "outer": "finished"}
    trained(tmp_path / "inner alone", seed=1)
    assert torch.equal(weights(tmp_path / "inner"), weights(tmp_path / "inner alone"))


def test_sinks_get_every_iteration_and_stay_open_and_the_listener_hears_of_it(tmp_path):
    heard = []

    class Listener(RunListener):
        def started(self, start):
            heard.append((start.folder, start.n_envs, start.n_workers, start.total_iterations, start.total_steps))

        def say(self, sentence):
            heard.append(sentence)

        def trained(self):
            heard.append("trained")

    config, sink = config_of(tmp_path), After(0, None)
    result = Run(config, make_task(config), sinks=[sink], listener=Listener()).train()
    assert [row["time/iteration"] for row in sink.rows] == [1, 2, 3, 4]
    assert not sink.closed
    assert heard == [
        (tmp_path, 2, 0, 4, 256),
        f"Evaluation after iteration 4: {result.best_score:,.4g} mean return",
        "trained",
    ]


@pytest.mark.parametrize("error", [TrainingFailed("no longer finite"), UserError("disk full."), ZeroDivisionError("0")])
def test_a_run_that_breaks_down_raises_and_tells_it_in_its_result_and_folder(tmp_path, error):
    run = Run(config_of(tmp_path), Broken(error))
    with pytest.raises(type(error)):
        run.train()
    assert (run.result.status, run.result.error, run.result.iterations) == ("failed", error, 4)
    state = read_state(tmp_path)
    assert (state.status, state.reason) == ("failed", run.result.reason)
    assert str(error) in state.reason
    hint = [f"resume the run in {tmp_path}." in note for note in getattr(error, "__notes__", ())]
    assert hint == ([True] if isinstance(error, TrainingFailed) else [])
    assert resumed(tmp_path).train().status == "finished"


def test_a_long_message_is_cut_in_the_state_of_the_run(tmp_path):
    def fail():
        raise ZeroDivisionError("begin " + "x" * 10**6 + " end")

    config = config_of(tmp_path)
    run = Run(config, make_task(config), sinks=[After(2, fail)])
    with pytest.raises(ZeroDivisionError):
        run.train()
    reason = read_state(tmp_path).reason
    assert len(reason) < 20_000
    assert reason.startswith("ZeroDivisionError: begin xxx")
    assert reason.endswith("xxx end")


def test_a_run_trains_once(tmp_path):
    config = config_of(tmp_path)
    run = Run(config, make_task(config))
    run.train()
    with pytest.raises(UserError, match="This run has ended; to continue it, create another Run"):
        run.train()


def test_a_result_shows_itself_in_one_line():
    told = {"folder": Path("runs/a"), "global_step": 4096, "iterations": 2, "scores": {}}
    finished = RunResult(status="finished", reason=None, best_score=1234.5, report="two\nlines", **told)
    assert repr(finished) == "RunResult(finished in runs/a, step 4,096, best score 1,234)"
    failed = RunResult(status="failed", reason="A worker\nwas killed.", best_score=None, **told)
    assert repr(failed) == "RunResult(failed in runs/a, step 4,096, no score yet, 'A worker was killed.')"
