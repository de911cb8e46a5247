"""A run folder that goes away, is in use, holds another run, or is resumed."""

import os
import shutil
from dataclasses import replace

import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.runs.checkpoint import load_checkpoint, save_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.folder_claim import FolderInUse
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from tests.small_runs import PPO, After, Broken, config_of, contents, resumed, trained, weights


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
    config = config_of(tmp_path / "run", iterations=10**6, checkpoint_interval=10**6, eval_interval=10**6)
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
    config = resumed_config(tmp_path / "one" / "latest.pt", {"iterations": 6, "checkpoint_dir": tmp_path / "other"})
    with pytest.raises(UserError, match="other already holds a run; continue it with --resume"):
        Run(config, make_task(config), checkpoint=tmp_path / "one" / "latest.pt").train()
    assert contents(tmp_path / "other") == before


def test_a_run_without_a_folder_gets_one_and_its_checkpoint_tells_which(tmp_path, monkeypatch):
    monkeypatch.setattr("ml_pipeline.runs.folder.runs_folder", lambda: tmp_path)
    folder = trained(None, iterations=1).folder
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
    assert {name for name in before if before[name] != after[name]} == {"state.json", "run.log"}


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
    trained(tmp_path / "long", iterations=8)
    assert torch.equal(weights(tmp_path / "short"), weights(tmp_path / "long"))
    assert len((tmp_path / "short" / "metrics.jsonl").read_text().splitlines()) == 8
    assert "total_timesteps: 512" in (tmp_path / "short" / "config.yaml").read_text()


def test_new_settings_of_a_resumed_run_are_in_its_checkpoint_from_the_beginning(tmp_path):
    """So that they hold even if the run is killed before it saves, and again after another resumption."""
    trained(tmp_path)
    error = ZeroDivisionError()
    config = resumed_config(tmp_path / "latest.pt", {"iterations": 6, "gamma": 0.9, "eval_interval": 5})
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
    longer = resumed_config(moved, {"iterations": 6})
    result = Run(longer, make_task(longer), checkpoint=moved).train()
    assert (result.folder, result.global_step) == (tmp_path / "moved", 384)
    assert result.best_score == max(result.scores.values())  # of what best.pt holds here
    assert (tmp_path / "moved" / "best.pt").is_file()
