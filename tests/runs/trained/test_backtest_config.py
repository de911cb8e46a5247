"""A backtest finds the newest run that a settings file made, and evaluates it."""

import json
import os

import pytest

from ml_pipeline import backtest, train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import build, flatten
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.settings_file import StartedWith, read_settings_file
from ml_pipeline.runs.train_config import TrainConfig, layered
from ml_pipeline.runs.trained.configs import parse_backtest

SETTINGS = {
    "agent_config": {"kwargs": {"n_steps": 32, "batch_size": 32, "policy_kwargs": {"net_arch": [8]}}},
    "reward_config": {"type": "fast_profit_reward"},
    "portfolio_config": {"initial_cash": 50_000, "trade_limit_percent": 0.5},
    "iterations": 1,
    "n_workers": 0,
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(SETTINGS))
    return path


def parsed(*flags):
    return parse_backtest([str(flag) for flag in flags], prog="backtest")


def saved_run(folder, file, *, age=0, remembers=False, **changes):
    """A run as the trainer leaves it, as far as its settings are concerned. remembers: the file, and what changed."""
    folder.mkdir(parents=True)
    settings, read = read_settings_file(file)
    config = flatten(build(TrainConfig, layered(settings, changes)))
    save_checkpoint(folder / "latest.pt", {"config": config, "trainer": {}})
    os.utime(folder / "latest.pt", (1e9 - age, 1e9 - age))
    if remembers:
        StartedWith(file=read).with_flags(**changes).record(folder)


@pytest.mark.slow
def test_it_trades_the_newest_run_of_the_file_on_bars_that_it_has_not_seen(file, tmp_path, capsys):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**SETTINGS, "learning_rate": 1e-3}))
    runs = [("old", file, []), ("new", file, ["--iterations", "2", "--seed", "1"]), ("other", other, [])]
    for age, (name, named, flags) in enumerate(runs):
        assert train_ppo.main(["--config", str(named), "--checkpoint-dir", f"checkpoints/{name}", *flags]) == 0
        os.utime(tmp_path / "checkpoints" / name / "latest.pt", (age, age))
    assert parsed("--config", file).config.checkpoint == tmp_path / "checkpoints" / "new"
    capsys.readouterr()
    assert backtest.main(["--config", str(file), "--fee-bps", "10", "--output-dir", "report"]) == 0
    printed = capsys.readouterr().out
    first = f"The newest run of {file} is checkpoints/new, trained with the further flags --iterations 2 --seed 1.\n"
    assert printed.startswith(first)
    assert "test split" in printed
    assert "after fees of 10 bps" in printed
    assert (tmp_path / "report" / "report.html").is_file()
    evaluation = json.loads((tmp_path / "report" / "evaluation.json").read_text())
    assert evaluation["initial_cash"] == 50_000


def test_without_a_run_it_says_what_to_do(file):
    with pytest.raises(UserError, match=r"No run was started with .*; train one with `ml-pipeline train --config .*`,"):
        parsed("--config", file)


def test_a_file_that_names_a_folder_is_looked_for_there(file, tmp_path):
    file.write_text(json.dumps({**SETTINGS, "checkpoint_dir": "out/mine"}))
    saved_run(tmp_path / "out" / "mine", file)
    assert parsed("--config", file).config.checkpoint == tmp_path / "out" / "mine"


def test_a_run_of_another_file_is_never_taken(file, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**SETTINGS, "learning_rate": 1e-3, "ent_coef": 0.1, "n_epochs": 2}))
    saved_run(tmp_path / "checkpoints" / "mine", file, age=9, remembers=True, seed=1)
    saved_run(tmp_path / "checkpoints" / "theirs", other, age=1, remembers=True)
    saved_run(tmp_path / "checkpoints" / "from python", other)
    start = parsed("--config", file)
    assert start.config.checkpoint == tmp_path / "checkpoints" / "mine"
    assert start.notice == f"The newest run of {file} is checkpoints/mine, trained with the further flags --seed 1."
    assert parsed("--config", other).config.checkpoint == tmp_path / "checkpoints" / "from python"


def test_a_run_of_another_checkpoint_dir_is_found(file, tmp_path):
    saved_run(tmp_path / "out" / "mine", file, remembers=True, checkpoint_dir=tmp_path / "out" / "mine")
    start = parsed("--config", file)
    assert start.config.checkpoint == tmp_path / "out" / "mine"
    assert start.notice == f"The newest run of {file} is out/mine, trained without further flags."


def test_a_file_that_changed_since_the_run_is_another(file, tmp_path):
    saved_run(tmp_path / "checkpoints" / "before", file, remembers=True)
    file.write_text(json.dumps({**SETTINGS, "learning_rate": 1e-3}))
    with pytest.raises(UserError, match=r"as it is now; checkpoints/before was started with it before it changed; tra"):
        parsed("--config", file)


def test_a_run_that_cannot_be_read_leaves_a_way_to_go_on(file, tmp_path):
    saved_run(tmp_path / "checkpoints" / "fine", file)
    broken = tmp_path / "checkpoints" / "broken" / "latest.pt"
    broken.parent.mkdir()
    broken.write_bytes(b"cut short")
    with pytest.raises(
        UserError, match=r"cannot be read .* To choose the run yourself, use `ml-pipeline evaluate RUN`\."
    ):
        parsed("--config", file)
    os.utime(broken, (1, 1))
    assert parsed("--config", file).config.checkpoint == tmp_path / "checkpoints" / "fine"


def test_the_settings_file_must_be_named_and_a_run_cannot_be(file):
    with pytest.raises(UserError, match=r"needs --config, .* `ml-pipeline evaluate RUN`"):
        parsed("--split", "validation")
    with pytest.raises(UserError, match="Unknown flag --run"):
        parsed("--config", file, "--run", "x")
    with pytest.raises(
        UserError, match=r"with --config FILE; evaluate the run checkpoints/x with `ml-pipeline evaluate"
    ):
        parsed("checkpoints/x")
    with pytest.raises(UserError, match=r"A backtest takes no bare path; use --config "):
        parsed(file)


def test_it_takes_the_flags_of_an_evaluation(file, tmp_path):
    saved_run(tmp_path / "checkpoints" / "x", file)
    start = parsed("--config", file, "--split", "validation", "--fee-bps", "2", "--certify")
    assert (start.config.split, start.config.certify, start.changes) == ("validation", True, {"fee_bps": 2.0})


def test_episodes_are_no_backtest(file):
    file.write_text(json.dumps({"env_id": "CartPole-v1"}))
    with pytest.raises(
        UserError,
        match="for trading; evaluate its run with `ml-pipeline evaluate RUN`",
    ):
        parsed("--config", file)
