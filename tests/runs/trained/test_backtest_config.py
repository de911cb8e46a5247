"""A backtest finds the newest run that a settings file made, and evaluates it."""

import json
import os

import pytest

from ml_pipeline import backtest, train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.trained.backtest_config import parse_backtest

SETTINGS = {
    "agent_config": {"kwargs": {"n_steps": 32, "batch_size": 32, "policy_kwargs": {"net_arch": [8]}}},
    "reward_config": {"type": "fast_profit_reward"},
    "portfolio_config": {"initial_cash": 50_000, "trade_limit_percent": 0.5},
    "num_episodes": 1,
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


@pytest.mark.slow
def test_it_trades_the_newest_run_of_the_file_on_bars_that_it_has_not_seen(file, tmp_path, capsys):
    for age, (name, flags) in enumerate([("old", []), ("new", ["--num-episodes", "2"]), ("other", ["--window", "3"])]):
        assert train_ppo.main(["--config", str(file), "--checkpoint-dir", f"checkpoints/{name}", *flags]) == 0
        os.utime(tmp_path / "checkpoints" / name / "latest.pt", (age, age))
    assert parsed("--config", file).config.checkpoint == tmp_path / "checkpoints" / "new"
    capsys.readouterr()
    assert backtest.main(["--config", str(file), "--fee-bps", "10", "--output-dir", "report"]) == 0
    printed = capsys.readouterr().out
    assert "test split" in printed
    assert "after fees of 10 bps" in printed
    assert (tmp_path / "report" / "report.html").is_file()
    evaluation = json.loads((tmp_path / "report" / "evaluation.json").read_text())
    assert evaluation["initial_cash"] == 50_000


def test_without_a_run_it_says_what_to_do(file):
    with pytest.raises(UserError, match=r"No run was trained with .*settings\.json yet; say train --config"):
        parsed("--config", file)


def test_a_run_may_be_named_and_one_of_both_must_be(file, tmp_path):
    start = parsed("--run", "checkpoints/x", "--split", "validation", "--fee-bps", "2")
    assert (str(start.config.checkpoint), start.config.split, start.changes) == (
        "checkpoints/x",
        "validation",
        {"fee_bps": 2.0},
    )
    for flags in ([], ["--config", file, "--run", "x"]):
        with pytest.raises(UserError, match="Name either the settings file of a training"):
            parsed(*flags)


def test_episodes_are_no_backtest(file):
    file.write_text(json.dumps({"env_id": "CartPole-v1"}))
    with pytest.raises(UserError, match="is about CartPole-v1, and a backtest is of trading"):
        parsed("--config", file)
