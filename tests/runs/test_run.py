"""A run as a notebook, a thread or a service calls it: what it returns, what it leaves, and two of them at once."""

import io
import json
import os
import random
import shutil
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
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.update.ppo_update import TrainingFailed
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.monitoring.metrics_file import MetricsFile
from ml_pipeline.runs import training
from ml_pipeline.runs.checkpoint import load_checkpoint, save_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.run import Run, RunResult
from ml_pipeline.runs.state import FolderClaim, FolderInUse, read_state
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.settings import TradingConfig

PPO = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=2, hidden_sizes=(8,))
TEN_LINES = """
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import make_task
result = Run(config, make_task(config)).train()
outcome = result.folder, result.status, result.best_score
"""


def config_of(folder, *, ppo=PPO, **run):
    usual = {"env_id": "CartPole-v1", "n_envs": 2, "vec_env": "serial", "num_episodes": 4, "eval_episodes": 1}
    return TrainConfig(run=RunConfig(**{**usual, **run}, checkpoint_dir=folder), ppo=ppo)


def trained(folder, **settings):
    config = config_of(folder, **settings)
    return Run(config, make_task(config)).train()


def resumed(folder, **changes):
    config = resumed_config(folder / "latest.pt", changes)
    return Run(config, make_task(config), checkpoint=folder / "latest.pt")


def weights(folder, name="latest.pt"):
    network = load_checkpoint(folder / name)["trainer"]["policy"]["network"]
    return torch.cat([weight.flatten() for weight in network.values()])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class After:
    """A sink that does something after so many iterations."""

    def __init__(self, n_iterations, action):
        self._left, self._action = n_iterations, action
        self.rows, self.closed = [], False

    def write(self, metrics, episodes):
        self.rows.append(metrics)
        if len(self.rows) == self._left:
            self._action()

    def close(self):
        self.closed = True


class Broken(GymTask):
    """Its evaluation raises."""

    def __init__(self, error):
        super().__init__("CartPole-v1", eval_episodes=1, seed=0)
        self._error = error

    def score(self, act):
        raise self._error


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
        "num_episodes": None,
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
    files |= {"learning_curve.png", "report.html"}
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
    config, stop = config_of(tmp_path, num_episodes=10**6, eval_interval=10**6), StopRequest()
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
    assert heard == [(tmp_path, 2, 0, 4, 256), f"Evaluation after iteration 4: {result.best_score:,.4g}", "trained"]


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


def _replaced(folder):
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
def test_a_run_folder_that_goes_away_is_told_and_nothing_is_said_to_be_saved(tmp_path, how):
    folder = tmp_path / "run"
    go = {"deleted": shutil.rmtree, "moved": lambda each: each.rename(tmp_path / "moved"), "replaced": _replaced}[how]
    config, stop = config_of(folder), StopRequest()
    run = Run(config, make_task(config), sinks=[After(2, lambda: (go(folder), stop.request()))], stop=stop)
    told = rf"The run folder {folder} was deleted, moved or replaced while the run wrote it, .* is lost"
    with pytest.raises(UserError, match=told) as error:
        run.train()
    assert (run.result.status, run.result.reason) == ("failed", str(error.value))
    assert not folder.exists() or os.listdir(folder) == []
    if how == "moved":
        assert resumed(tmp_path / "moved").train().status == "finished"


def test_a_run_whose_folder_goes_away_ends_after_the_iteration(tmp_path):
    config = config_of(tmp_path / "run", num_episodes=10**6, checkpoint_interval=10**6, eval_interval=10**6)
    gone = After(2, lambda: shutil.rmtree(tmp_path / "run"))
    run = Run(config, make_task(config), sinks=[gone])
    with pytest.raises(UserError, match="was deleted, moved or replaced"):
        run.train()
    assert run.result.iterations == 3


def test_a_folder_that_goes_away_before_the_report_is_told(tmp_path):
    class Leaving(RunListener):
        def trained(self):
            shutil.rmtree(tmp_path / "run")

    config = config_of(tmp_path / "run")
    with pytest.raises(UserError, match="was deleted, moved or replaced"):
        Run(config, make_task(config), listener=Leaving()).train()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["metrics.jsonl", "monitor.csv", "config.yaml"])
def test_a_file_that_cannot_be_written_refuses_the_run_and_leaves_the_folder_as_it_was(tmp_path, name):
    (tmp_path / name).mkdir()
    n_open = len(os.listdir("/dev/fd")) if os.path.isdir("/dev/fd") else 0
    config = config_of(tmp_path)
    run = Run(config, make_task(config))
    with pytest.raises(UserError, match=name):
        run.train()
    assert os.listdir(tmp_path) == [name]
    assert run.result is None
    assert not n_open or len(os.listdir("/dev/fd")) == n_open


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


def test_a_stop_during_the_evaluation_of_an_early_end_trains_no_further_when_resumed(tmp_path, monkeypatch):
    settings = {"stop_at_return": 1.0, "eval_interval": 100, "checkpoint_interval": 100}
    whole = Run(config_of(tmp_path / "whole", **settings), make_task(config_of(tmp_path / "whole"))).train()
    assert whole.reason == f"Training ends early, after iteration {whole.iterations}."
    stop, saved = StopRequest(), []

    def save(path, state):
        saved.append(path.name)
        save_checkpoint(path, state)

    monkeypatch.setattr(training, "save_checkpoint", save)
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

    monkeypatch.setattr(training, "MetricsFile", Full)
    with pytest.raises(OSError, match="the disk is full"):
        resumed(tmp_path / "run").train()
    assert len(closed) == 1


def scores_in(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["time/global_step"], line.get("eval/score")) for line in lines]


def test_a_run_trains_once(tmp_path):
    config = config_of(tmp_path)
    run = Run(config, make_task(config))
    run.train()
    with pytest.raises(UserError, match="This run has ended; continue it by another Run"):
        run.train()


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
    assert run.result.reason == "Ctrl-C. The training is saved, but its report is not written."


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
        "Stopped without saving; what earlier checkpoints hold is whole.",
    )
    assert load_checkpoint(tmp_path / "latest.pt")["trainer"]["iteration"] == 0


def test_a_folder_that_is_being_written_is_refused_to_a_new_run_and_to_a_resumption(tmp_path):
    config = config_of(tmp_path / "run")
    told = []

    def try_both():
        for other in (Run(config, make_task(config)), resumed(tmp_path / "run")):
            with pytest.raises(FolderInUse, match=f"is being written by process {os.getpid()} on ") as refused:
                other.train()
            told.append(refused.value)
            assert other.result is None
        elsewhere = replace(config, run=replace(config.run, checkpoint_dir=tmp_path / "elsewhere"))
        with pytest.raises(FolderInUse):
            Run(elsewhere, make_task(config), checkpoint=tmp_path / "run" / "latest.pt").train()

    result = Run(config, make_task(config), sinks=[After(2, try_both)]).train()
    assert len(told) == 2
    assert result.status == "finished"
    assert not (tmp_path / "elsewhere").exists()
    trained(tmp_path / "undisturbed")
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "undisturbed"))


@pytest.mark.parametrize("settings", [{"ppo": replace(PPO, squash_actions=True)}, {"device": "mps"}], ids=["a", "b"])
def test_a_run_that_is_refused_leaves_no_trace(tmp_path, settings, monkeypatch):
    if torch.backends.mps.is_available():
        pytest.skip("this machine has the device")
    monkeypatch.setattr("ml_pipeline.runs.folder.runs_folder", lambda: tmp_path)
    for folder in (tmp_path / "mine", None):
        config = config_of(folder, **settings)
        run = Run(config, make_task(config))
        with pytest.raises(UserError):
            run.train()
        assert run.result is None
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_another_run_is_not_continued_into(tmp_path):
    for name in ("one", "other"):
        trained(tmp_path / name)
    before = contents(tmp_path / "other")
    config = resumed_config(tmp_path / "one" / "latest.pt", {"num_episodes": 6, "checkpoint_dir": tmp_path / "other"})
    with pytest.raises(UserError, match="other holds a run already; go on with it by --resume"):
        Run(config, make_task(config), checkpoint=tmp_path / "one" / "latest.pt").train()
    assert contents(tmp_path / "other") == before


def test_a_run_without_a_folder_gets_one_and_its_checkpoint_tells_which(tmp_path, monkeypatch):
    monkeypatch.setattr("ml_pipeline.runs.folder.runs_folder", lambda: tmp_path)
    folder = trained(None, num_episodes=1).folder
    assert folder.parent == tmp_path
    assert folder.name.startswith("CartPole-v1-2")
    assert load_checkpoint(folder / "latest.pt")["config"]["checkpoint_dir"] == str(folder)


def test_a_finished_run_that_is_resumed_keeps_its_files(tmp_path):
    trained(tmp_path)
    before = contents(tmp_path)
    result = resumed(tmp_path, learning_rate=0.5, checkpoint_interval=3).train()
    after = contents(tmp_path)
    assert (result.status, result.global_step, result.scores) == ("finished", 256, {})
    assert result.best_score == load_checkpoint(tmp_path / "latest.pt")["best_score"]
    assert result.report is not None
    assert {name for name in before if before[name] != after[name]} == {"state.json"}


@pytest.mark.parametrize("written", [None, "seed: [5\n", "seed: 6\n"], ids=repr)
def test_a_finished_run_is_reported_on_again_whatever_became_of_its_config_file(tmp_path, written):
    first = trained(tmp_path)
    (tmp_path / "config.yaml").unlink()
    if written:
        (tmp_path / "config.yaml").write_text(written)
    again = resumed(tmp_path).train()
    assert (again.status, again.report) == ("finished", first.report)


def test_a_finished_run_is_continued_with_more_steps(tmp_path):
    trained(tmp_path / "short")
    result = resumed(tmp_path / "short", total_timesteps=512).train()
    assert (result.status, result.global_step, result.iterations) == ("finished", 512, 8)
    trained(tmp_path / "long", num_episodes=8)
    assert torch.equal(weights(tmp_path / "short"), weights(tmp_path / "long"))
    assert len((tmp_path / "short" / "metrics.jsonl").read_text().splitlines()) == 8
    assert "total_timesteps: 512" in (tmp_path / "short" / "config.yaml").read_text()


def test_new_settings_of_a_resumed_run_are_in_its_checkpoint_from_the_beginning(tmp_path):
    """So that they hold even if the run is killed before it saves, and again after another resumption."""
    trained(tmp_path)
    error = ZeroDivisionError()
    config = resumed_config(tmp_path / "latest.pt", {"num_episodes": 6, "gamma": 0.9, "eval_interval": 5})
    with pytest.raises(ZeroDivisionError):
        Run(config, Broken(error), checkpoint=tmp_path / "latest.pt").train()
    assert resumed_config(tmp_path / "latest.pt", {}) == config
    assert load_checkpoint(tmp_path / "latest.pt")["trainer"]["iteration"] == 4


def test_a_checkpoint_that_was_moved_away_is_continued_where_it_lies(tmp_path):
    trained(tmp_path / "run", eval_interval=2)
    (tmp_path / "moved").mkdir()
    moved = tmp_path / "moved" / "mine.pt"
    save_checkpoint(moved, {**load_checkpoint(tmp_path / "run" / "latest.pt"), "best_score": 1e9})
    finished = Run(resumed_config(moved, {}), make_task(config_of(None)), checkpoint=moved).train()
    assert finished.report is not None  # of the last policy: the best one was left behind
    longer = resumed_config(moved, {"num_episodes": 6})
    result = Run(longer, make_task(longer), checkpoint=moved).train()
    assert (result.folder, result.global_step) == (tmp_path / "moved", 384)
    assert result.best_score == max(result.scores.values())  # of what best.pt holds here
    assert (tmp_path / "moved" / "best.pt").is_file()


def test_a_result_shows_itself_in_one_line():
    told = {"folder": Path("runs/a"), "global_step": 4096, "iterations": 2, "scores": {}}
    finished = RunResult(status="finished", reason=None, best_score=1234.5, report="two\nlines", **told)
    assert repr(finished) == "RunResult(finished in runs/a, step 4,096, best score 1,234)"
    failed = RunResult(status="failed", reason="A worker\nwas killed.", best_score=None, **told)
    assert repr(failed) == "RunResult(failed in runs/a, step 4,096, no score yet, 'A worker was killed.')"
