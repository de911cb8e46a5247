"""A new run begins with the weights and the scaling of an earlier policy, bit for bit, where `init_from` names one."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.run import Run, Training
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import layered
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.settings import TradingConfig
from tests.small_runs import PPO, After, config_of, resumed, trained, weights

SMALL = {"env_id": None, "n_envs": 1, "iterations": 1, "eval_episodes": 10, "ppo": replace(PPO, minibatch_size=32)}
TRADING = TradingConfig(features=("log_return_1", "rsi_14"), window=2, episode_length=16)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "earlier"
    trained(folder)
    return folder


@pytest.fixture(scope="module")
def trader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "trader"
    Run(config := trading_config(folder), make_task(config)).train()
    return folder


def trading_config(folder, trading=TRADING, **run):
    return replace(config_of(folder, **{**SMALL, **run}), trading=trading)


def begun(config):
    """The policy's state of a run before its first step."""
    folder = config.run.checkpoint_dir
    folder.mkdir()
    with closing(Training(Run(config, make_task(config)), config, folder)) as training:
        return training.policy.state_dict()


def equal(ours, theirs):
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, torch.Tensor):
        return torch.equal(ours, theirs)
    return np.array_equal(ours, theirs)


def test_a_new_run_has_every_bit_of_the_earlier_policy(earlier, tmp_path):
    theirs = load_checkpoint(earlier / "best.pt")["trainer"]["policy"]
    assert theirs["normalizer"] is not None, "statistics of observations are taken over, too"
    assert equal(begun(config_of(tmp_path / "new", init_from=earlier, seed=9)), theirs)
    assert not equal(begun(config_of(tmp_path / "random", seed=9)), theirs)
    named = load_checkpoint(earlier / "latest.pt")["trainer"]["policy"]
    assert equal(begun(config_of(tmp_path / "named", init_from=earlier / "latest.pt")), named)


def test_it_counts_and_learns_anew_and_the_same_each_time(earlier, tmp_path):
    results = [trained(tmp_path / name, init_from=earlier, iterations=2) for name in "ab"]
    assert [result.global_step for result in results] == [128, 128]
    assert torch.equal(weights(tmp_path / "a"), weights(tmp_path / "b"))
    trained(tmp_path / "random", iterations=2)
    assert not torch.equal(weights(tmp_path / "a"), weights(tmp_path / "random"))


def test_an_interrupted_run_goes_on_from_its_own_weights(earlier, tmp_path):
    trained(tmp_path / "whole", init_from=earlier)
    config, stop = config_of(tmp_path / "cut", init_from=earlier), StopRequest()
    Run(config, make_task(config), stop=stop, sinks=[After(2, lambda: stop.request("half-way"))]).train()
    resumed(tmp_path / "cut").train()
    assert torch.equal(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_features_are_scaled_as_the_earlier_policy_knows_them(trader, tmp_path):
    later = replace(TRADING, train_fraction=0.2)
    anew = trading_config(tmp_path / "anew", later)
    warm = trading_config(tmp_path / "warm", later, init_from=trader)
    theirs = load_checkpoint(trader / "best.pt")["task"]["scaler"]
    assert make_task(warm).account.scaler.state() == theirs != make_task(anew).account.scaler.state()
    Run(warm, make_task(warm)).train()
    assert load_checkpoint(tmp_path / "warm" / "best.pt")["task"]["scaler"] == theirs


def test_a_run_goes_on_where_the_earlier_policy_was_deleted(trader, tmp_path):
    copied = tmp_path / "copied.pt"
    copied.write_bytes((trader / "best.pt").read_bytes())
    config = trading_config(tmp_path / "run", init_from=copied)
    Run(config, make_task(config)).train()
    copied.unlink()
    assert resumed(tmp_path / "run", iterations=2).train().global_step == 2 * PPO.n_steps


def test_each_symbol_keeps_its_scaling(tmp_path):
    each = replace(TRADING, per_symbol=True)
    first = trading_config(tmp_path / "first", each, n_envs=3)
    Run(first, make_task(first)).train()
    later = trading_config(
        tmp_path / "later", replace(each, train_fraction=0.2), n_envs=3, init_from=tmp_path / "first"
    )
    theirs = load_checkpoint(tmp_path / "first" / "best.pt")["task"]["each_symbol"]
    for symbol, task in make_task(later).accounts.items():
        expected = FeatureScaler.from_state(theirs[symbol]["scaler"])
        np.testing.assert_array_equal(task.scaler.mean, expected.mean)
    with pytest.raises(UserError, match="not trained with per_symbol false"):
        make_task(trading_config(tmp_path / "together", init_from=tmp_path / "first"))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"features": ("log_return_1",)}, "trained with features log_return_1 rsi_14, but the settings have log_ret"),
        ({"window": 3}, "trained with window 2, but the settings have 3"),
        ({"per_symbol": True}, "not trained with per_symbol true"),
    ],
)
def test_a_policy_that_observed_otherwise_is_refused(trader, tmp_path, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        make_task(trading_config(tmp_path / "new", replace(TRADING, **changes), n_envs=3, init_from=trader))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ppo": replace(PPO, hidden_sizes=(16,))}, r"hidden sizes \[8\], but here it is \[16\]"),
        ({"env_id": "Acrobot-v1"}, "observation space"),
        ({"init_from": "nowhere"}, "There is no policy to start from in .*nowhere"),
        ({"algorithm": "A2C", "ppo": PPOConfig(n_steps=32)}, "was trained with PPO, but this run trains with A2C"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused_before_anything_is_written(earlier, tmp_path, settings, sentence):
    if "algorithm" in settings:
        pytest.importorskip("stable_baselines3")
    named = {"init_from": earlier, **settings}
    if named["init_from"] == "nowhere":
        named["init_from"] = tmp_path / "nowhere"
    config = config_of(tmp_path / "new", **named)
    with pytest.raises(UserError, match=sentence):
        Run(config, make_task(config)).train()
    assert not (tmp_path / "new").exists()


def test_the_version_that_is_deployed_is_named_once(tmp_path):
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
    current = tmp_path / "current"
    current.symlink_to("v1")
    settings = layered({"init_from": current})
    current.unlink()
    current.symlink_to("v2")
    assert layered(settings)["init_from"] == (tmp_path / "v1").resolve()
