"""What an evaluation may change, and what it refuses, on a policy that was never trained."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import flatten
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.configs import parse_evaluation
from ml_pipeline.runs.trained.evaluate import evaluate_checkpoint
from ml_pipeline.trading.settings import MarketConditions, TradingConfig
from ml_pipeline.trading.task import TradingTask

TRADING = TradingConfig(features=("rsi_14", "feature_mine"), action_mode="target_weights", sell_fee_bps=30.0)
WALK = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, 200).cumsum())


@pytest.fixture(scope="module")
def undrawn_reports(brief_evaluations):
    """Here they are drawn."""


def _parse(*flags):
    return parse_evaluation(["run/best.pt", *flags], prog="evaluate_ppo.py")


def _write_prices(path, feature):
    days = np.datetime64("2024-01-01") + np.arange(len(WALK))
    rows = zip(days, WALK, range(1, 1 + len(WALK)), feature, strict=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["time", "close", "volume", "feature_mine"], *rows])


@pytest.fixture
def checkpoint(tmp_path):
    """The checkpoint of an untrained policy on prices with a harmless feature of their own."""
    data = tmp_path / "trained_on.csv"
    _write_prices(data, np.arange(len(WALK)))
    config = TrainConfig(trading=replace(TRADING, data=data))
    task = TradingTask(config.trading)
    env = task.evaluation_env()
    policy = Policy(env.observation_space, env.action_space, config.ppo, seed=config.run.seed, device="cpu")
    path = tmp_path / "run" / "best.pt"
    path.parent.mkdir()
    save_checkpoint(path, {"config": flatten(config), "task": task.state(), "trainer": {"policy": policy.state_dict()}})
    return path


def _evaluate(checkpoint, *flags):
    return evaluate_checkpoint(parse_evaluation([str(checkpoint), *map(str, flags)], prog="evaluate_ppo.py"))


def test_every_condition_of_training_is_a_flag_of_evaluation_and_only_what_is_given_changes(capsys):
    assert _parse().changes == {}
    given = ["--max-position", "0.3", "--max-gross", "0.5", "--trade-limit-percent", "20", "--lot-size", "0.1"]
    given += ["--min-order", "5", "--min-cash", "0.1", "--on-limit", "refuse", "--sell-fee-bps", "none"]
    assert _parse(*given).changes == {
        "max_position": 0.3, "max_gross": 0.5, "trade_limit_percent": 20.0, "lot_size": 0.1, "min_order": 5.0,
        "min_cash": 0.1, "on_limit": "refuse", "sell_fee_bps": None,
    }  # fmt: skip
    with pytest.raises(SystemExit):
        _parse("--help")
    text = capsys.readouterr().out
    for name in MarketConditions.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text
    assert text.count("as trained)") >= 10


@pytest.mark.slow
def test_limits_and_fees_are_changed_and_the_report_says_so(checkpoint):
    _evaluate(checkpoint, "--max-position", 0.25, "--fee-bps", 7, "--symbols", "trained_on")
    folder = checkpoint.parent / "evaluation-symbols-trained_on-fee_bps-7-max_position-0.25"
    figures = json.loads((folder / "metrics.json").read_text())
    assert (figures["max_position"], figures["fee_bps"], figures["sell_fee_bps"]) == (0.25, 7, None)
    _evaluate(checkpoint, "--output-dir", folder)
    figures = json.loads((folder / "metrics.json").read_text())
    assert (figures["max_position"], figures["fee_bps"], figures["sell_fee_bps"]) == (1.0, 5, 30)


def test_a_value_with_a_slash_is_one_folder(checkpoint):
    report = _evaluate(checkpoint, "--timezone", "America/New_York")
    assert report.folder == checkpoint.parent / "evaluation-timezone-America-New_York"


def test_other_data_whose_feature_sees_ahead_are_refused(checkpoint, tmp_path):
    other = tmp_path / "other.csv"
    _write_prices(other, np.append(np.diff(np.log(WALK)), 0))
    with pytest.raises(UserError, match=r"other:feature_mine has a rank correlation of 0.9. with the return of the"):
        _evaluate(checkpoint, "--data", other)
    _write_prices(other, np.arange(len(WALK)))
    _evaluate(checkpoint, "--data", other)
    assert (checkpoint.parent / "evaluation-other.csv" / "report.html").is_file()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--fee-bps", "-1"], "fee_bps must be from 0 to 1000 basis points, but got -1"),
        (["--fee-bps", "1e9"], "fee_bps must be from 0 to 1000 basis points"),
        (["--max-position", "2"], "max_position 2 is above max_gross 1, which bounds all positions"),
        (["--eval-episodes", "3"], "--eval-episodes is for Gymnasium environments"),
        (["--max-posit", "1"], 'Unknown flag --max-posit. Did you mean "--max-position"'),
        (["--symbols", "trained"], 'has no symbol "trained". Did you mean "trained_on"'),
        (
            ["--split", "tset"],
            '--split must be train, validation, test, all or none, but got "tset". Did you',
        ),
    ],
)
def test_what_cannot_be_used_is_one_sentence(checkpoint, flags, sentence):
    with pytest.raises(UserError, match=sentence) as told:
        _evaluate(checkpoint, *flags)
    assert "\n" not in str(told.value)


def test_a_flag_of_the_market_is_refused_for_another_environment(tmp_path):
    config = TrainConfig()
    config = replace(config, run=replace(config.run, env_id="CartPole-v1"))
    save_checkpoint(tmp_path / "best.pt", {"config": flatten(config), "task": {}, "trainer": {}})
    for flag, value in (("--max-gross", ["1"]), ("--certify", []), ("--split", ["test"])):
        with pytest.raises(UserError, match=f"of CartPole-v1, but {flag} is for markets; leave it out"):
            _evaluate(tmp_path / "best.pt", flag, *value)


def test_bars_that_the_policy_was_trained_on_are_named(checkpoint):
    assert "trained on" not in " ".join(_evaluate(checkpoint).notices)
    said = _evaluate(checkpoint, "--data", checkpoint.parent.parent / "trained_on.csv").notices[-1]
    assert re.match(r"1\d\d of the 18\d bars were used in training \(from 2024-01-1", said)
