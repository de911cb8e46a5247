import subprocess
import sys

import gymnasium
import numpy as np
import polars as pl
import pytest
from gymnasium.utils.env_checker import check_env

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading import gym_ids
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.gym_ids import make_env
from ml_pipeline.trading.market.synthetic import synthetic_market


@pytest.fixture(scope="module")
def market():
    return synthetic_market(n_bars=300)


@pytest.mark.filterwarnings("ignore:.*render.*")
@pytest.mark.parametrize("name", ["TradingEnv-v1", "FastTradingEnv-v1", "StatefulTradingEnv-v1"])
def test_every_id_passes_gymnasiums_check(market, name):
    env = gymnasium.make(name, market=market, window=2, episode_length=50)
    check_env(env.unwrapped, skip_render_check=name == "FastTradingEnv-v1")
    env.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TradingEnv-v1", StatefulTradingEnv),
        ("StatefulTradingEnv-v1", StatefulTradingEnv),
        ("FastTradingEnv-v1", FastTradingEnv),
    ],
)
def test_every_id_makes_the_class_that_the_docstring_names(market, name, kind):
    assert type(gymnasium.make(name, market=market).unwrapped) is kind
    assert f"`{name}` makes a `{kind.__name__}`" in gym_ids.__doc__ or f"`{name}` is another name" in gym_ids.__doc__


def test_a_path_and_a_frame_are_markets(tmp_path):
    frame = pl.DataFrame({"time": np.arange(300), "close": np.linspace(1, 2, 300)})
    frame = frame.with_columns(pl.from_epoch(frame["time"], time_unit="d"))
    frame.write_csv(tmp_path / "prices.csv")
    for market in (frame, tmp_path / "prices.csv", str(tmp_path / "prices.csv"), None):
        env = gymnasium.make("TradingEnv-v1", market=market, fee_bps=1, features=("rsi_14",))
        assert env.reset(seed=0)[0].shape == (2,)
        assert env.unwrapped.rules.fee_bps == 1


def test_it_draws_the_run_so_far(market):
    env = gymnasium.make("TradingEnv-v1", market=market, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    assert (first.dtype, first.shape) == (np.uint8, (480, 640, 3))
    for _ in range(10):
        env.step(2)
    assert not np.array_equal(env.render(), first)


def test_the_ids_are_known_by_the_module_they_are_in():
    code = (
        "import gymnasium as g; print(g.make('ml_pipeline.trading.gym_ids:FastTradingEnv-v1').reset(seed=0)[0].shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(11,)\n"


@pytest.mark.parametrize(("kind", "mode"), [("stateful", "human"), ("fast", "rgb_array")])
def test_a_render_mode_that_is_none_is_refused(market, kind, mode):
    with pytest.raises(
        UserError, match=f'render_mode must be None, or "rgb_array" with TradingEnv-v1, but got "{mode}"'
    ):
        make_env(market, kind=kind, render_mode=mode)


def test_unknown_settings_are_named(market):
    with pytest.raises(UserError, match=r'no setting "fee"\. Did you mean "fee_bps"'):
        make_env(market, fee=3)


def test_a_text_for_a_number_is_named(market):
    with pytest.raises(UserError, match="fee_bps must be a number, but got 'two'"):
        gymnasium.make("TradingEnv-v1", market=market, fee_bps="two")


def test_a_frame_is_read_as_the_settings_say_and_a_market_that_is_read_already_refuses_them():
    minutes = np.datetime64("2024-01-01", "us") + np.arange(3000) * np.timedelta64(1, "m")
    frame = pl.DataFrame({"time": minutes, "A:close": np.arange(1.0, 3001), "B:close": np.arange(1.0, 3001)})
    settings = {"timeframe": "5m", "session": "06:00-18:00", "symbols": ("B",), "features": ("log_return_1",)}
    task = gym_ids.traded_on(frame, settings)
    assert task.market.symbols == ("B",)
    assert task.market.timing.length == 300 * 10**9
    assert set(task.market.times.astype("datetime64[h]").astype(int) % 24) == set(range(6, 18))
    with pytest.raises(UserError, match="timeframe, session, timezone and adjust_splits apply when bars are read"):
        gym_ids.traded_on(task.market, {"timeframe": "1h"})
