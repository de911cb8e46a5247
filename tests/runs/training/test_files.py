"""What a run writes into its folder besides checkpoints."""

import html
import json

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.runs.folder import FEATURE_WARNINGS_FILE
from ml_pipeline.runs.recording import feature_warnings
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask


def task(**settings):
    close = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, 400).cumsum())
    ahead = {"feature_mine": np.append(close[1:], close[-1])}
    market = market_from_arrays(["X"], np.arange(400).astype("datetime64[D]"), close, columns=ahead)
    return TradingTask(TradingConfig(features=("feature_mine",), **settings), market=market)


def test_a_run_folder_holds_the_warnings_about_its_features(tmp_path):
    run = RunConfig(iterations=1, checkpoint_dir=tmp_path, vec_env="serial")
    config = TrainConfig(run=run, ppo=PPOConfig(n_steps=32, minibatch_size=32, n_epochs=1, hidden_sizes=(8,)))
    accepted = task(accept_feature=("feature_mine", "known before"))
    result = Run(config, accepted).train()
    (record,) = feature_warnings(tmp_path)
    assert record == accepted.feature_warnings[0].record()
    assert (record["features"], record["accepted"], record["is_doubt"]) == (["feature_mine"], "known before", False)
    assert 'Accepted: "known before"' in html.unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert result.status == "finished"


@pytest.mark.parametrize("text", ["[", "{}", '[{"kind": 3}]', "[" * 100_000])
def test_what_holds_no_warnings_is_refused_in_one_sentence(tmp_path, text):
    (tmp_path / FEATURE_WARNINGS_FILE).write_text(text)
    with pytest.raises(UserError, match=FEATURE_WARNINGS_FILE):
        feature_warnings(tmp_path)


def test_a_folder_without_warnings_has_none(tmp_path):
    assert feature_warnings(tmp_path) == []
    (tmp_path / FEATURE_WARNINGS_FILE).write_text(json.dumps([]))
    assert feature_warnings(tmp_path) == []
