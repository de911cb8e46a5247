import math
import os
import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.fast import FastTradingEnv

SHORT, FLAT, LONG = 0, 1, 2


def test_one_asset_by_hand(tiny_market):
    market = tiny_market(close=[100, 110, 120, 60], open=[100, 100, 110, 120])
    env = FastTradingEnv(market, TradingRules(fee_bps=100, initial_cash=10_100))
    observation, info = env.reset(seed=0)
    np.testing.assert_array_equal(observation, [0, 0])  # bar 0, nothing held
    assert info == {}

    # 10,100 buy 100 at 100 (the open of bar 1) and pay 1 % of 10,000; at the close they are worth 11,000.
    observation, reward, terminated, truncated, _ = env.step(LONG)
    assert reward == pytest.approx(math.log(11_000 / 10_100), rel=1e-12)
    np.testing.assert_array_equal(observation, [1, 1])
    assert (terminated, truncated) == (False, False)

    # The same choice again holds: 12,000 at the close of bar 2.
    _, reward, _, _, _ = env.step(LONG)
    assert reward == pytest.approx(math.log(12_000 / 11_000), rel=1e-12)

    # Long to short at 120: 200 sold for 24,000 less 240. At 60, 100 short are worth -6,000: 17,760 are left.
    observation, reward, terminated, truncated, _ = env.step(SHORT)
    assert reward == pytest.approx(math.log(17_760 / 12_000), rel=1e-12)
    np.testing.assert_allclose(observation, [3, -6_000 / 17_760], rtol=1e-6)
    assert (terminated, truncated) == (False, True)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(FLAT)


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_a_fee_that_is_set_applies_from_the_next_step_on(tiny_market, engine):
    if engine == "compiled":
        pytest.importorskip("numba")
    market = tiny_market(close=[100, 100, 100, 100], open=[100, 100, 100, 100])
    env = FastTradingEnv(market, TradingRules(fee_bps=0, initial_cash=1_000), engine=engine)
    env.reset(seed=0)
    assert env.step(LONG)[1] == 0.0
    env.fee_bps = 100
    state = deepcopy(env.get_plain_state())
    other = FastTradingEnv(market, TradingRules(fee_bps=0, initial_cash=1_000), engine=engine)
    other.set_plain_state(state)
    for each in (env, other):
        assert each.fee_bps == 100
        assert each.step(FLAT)[4] == {}
        assert each.equity == pytest.approx(990)  # 1 % of 1,000
        assert each.step(FLAT)[4] == {"equity": pytest.approx(990)}
    other.set_plain_state({name: value for name, value in state.items() if name != "fee_bps"})
    assert other.fee_bps == 0
    with pytest.raises(UserError, match="fee_bps"):
        env.fee_bps = -1
    assert env.fee_bps == 100


def test_filled_at_the_close_it_was_decided_on(tiny_market):
    market = tiny_market(close=[100, 110], open=[1, 1])
    env = FastTradingEnv(market, TradingRules(fee_bps=0, fill_at="close"))
    env.reset(seed=0)
    assert env.step(LONG)[1] == pytest.approx(math.log(1.1), rel=1e-12)


def test_two_assets_by_hand(tiny_market):
    market = tiny_market(close=[[100, 50], [100, 50], [110, 40]])
    rules = TradingRules(action_mode="target_weights", fee_bps=0, initial_cash=1_000)
    env = FastTradingEnv(market, rules)
    env.reset(seed=0)
    # 5 of A for 500, 5 of B short for 250: cash 750. Prices stand still.
    observation, reward, *_ = env.step(np.array([0.5, -0.25]))
    assert reward == 0.0
    np.testing.assert_allclose(observation, [1, 1, 0.5, -0.25])
    # Everything into A at 110, all B bought back at 40: worth 750 + 550 - 200 = 1,100, so 10 of A.
    observation, reward, *_ = env.step(np.array([1.0, 0.0]))
    assert reward == pytest.approx(math.log(1.1), rel=1e-12)
    np.testing.assert_allclose(observation, [2, 2, 1, 0])


def test_without_shorts_the_choices_are_flat_and_long(tiny_market):
    market = tiny_market(close=[[100, 50], [110, 50], [110, 50]])
    env = FastTradingEnv(market, TradingRules(allow_short=False, fee_bps=0))
    assert env.action_space == gymnasium.spaces.MultiDiscrete([2, 2])
    env.reset(seed=0)
    observation, *_ = env.step(np.array([1, 0]))
    np.testing.assert_allclose(observation[2:], [0.5, 0])  # half the equity in A
    weights = FastTradingEnv(market, TradingRules("target_weights", allow_short=False))
    weights.reset(seed=0)
    observation, *_ = weights.step(np.array([-1.0, 0.0]))
    np.testing.assert_array_equal(observation[2:], [0, 0])


def test_a_short_that_loses_everything_is_ruin(tiny_market):
    env = FastTradingEnv(tiny_market(close=[100, 100, 250, 100]), TradingRules(fee_bps=0))
    env.reset(seed=0)
    env.step(SHORT)
    observation, reward, terminated, truncated, _ = env.step(SHORT)
    assert (terminated, truncated) == (True, False)
    assert reward == pytest.approx(math.log(1e-6))
    assert np.all(np.isfinite(observation))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(FLAT)


def test_ruin_in_the_last_bar_terminates_and_does_not_truncate(tiny_market):
    env = FastTradingEnv(tiny_market(close=[100, 100, 250]), TradingRules(fee_bps=0))
    env.reset(seed=0)
    env.step(SHORT)
    assert env.step(SHORT)[2:4] == (True, False)


def test_an_asset_without_a_bar_keeps_what_it_has(tiny_market):
    # B is listed at bar 2 (fillable from a decision at bar 2 on), and A has no bar at 3.
    market = tiny_market(
        close=[[10, 0], [10, 0], [10, 5], [10, 5], [10, 5], [10, 5]],
        tradable=[[1, 0], [1, 0], [1, 1], [0, 1], [1, 1], [1, 1]],
    )
    env = FastTradingEnv(market, TradingRules("target_weights", fee_bps=0))
    env.reset(seed=0)
    weights = [env.step(np.array(w))[0][2:].tolist() for w in ([0, 1], [0.5, 0.5], [1, 0.5], [1, 0], [0, 0])]
    # bar 2 gives B its first bar, unknown when decided; at bar 3 A cannot trade; all is closed at the end.
    assert weights == [[0, 0], [0.5, 0], [0.5, pytest.approx(1 / 3)], [1, 0], [0, 0]]


def test_observations_hold_the_window_oldest_first(tiny_market):
    env = FastTradingEnv(tiny_market(close=np.full(6, 10.0)), window=3)
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation, [0, 1, 2, 0])
    np.testing.assert_array_equal(env.step(FLAT)[0], [1, 2, 3, 0])
    assert observation.dtype == np.float32
    np.testing.assert_array_equal(observation, [0, 1, 2, 0])  # an earlier observation is left alone


def test_training_episodes_begin_anywhere_and_have_their_length(tiny_market):
    env = FastTradingEnv(tiny_market(close=np.full(40, 10.0)), window=2, episode_length=5)
    starts = set()
    for seed in range(200):
        observation, _ = env.reset(seed=seed)
        starts.add(int(observation[1]))
        flags = [env.step(FLAT)[2:4] for _ in range(5)]
        assert flags == [(False, False)] * 4 + [(False, True)]
    assert starts == set(range(1, 35))  # bar 34 + 5 steps is the last, 39
    assert env.reset(seed=3)[0].tolist() == env.reset(seed=3)[0].tolist()


def test_an_episode_is_never_longer_than_the_data(tiny_market):
    env = FastTradingEnv(tiny_market(close=np.full(4, 10.0)), episode_length=100)
    env.reset(seed=0)
    assert [env.step(FLAT)[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("mode", ["discrete", "target_weights"])
@pytest.mark.parametrize("n_assets", [1, 3])
def test_gymnasium_accepts_it(tiny_market, mode, n_assets):
    prices = np.exp(np.random.default_rng(0).normal(0, 0.01, (300, n_assets)).cumsum(axis=0))
    env = FastTradingEnv(tiny_market(prices), TradingRules(mode), window=4, episode_length=50)
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize("action", [3, -1])
def test_an_unknown_choice_is_refused(tiny_market, action):
    env = FastTradingEnv(tiny_market(close=[1, 1, 1]))
    env.reset(seed=0)
    with pytest.raises(UserError, match="is not in Discrete"):
        env.step(action)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_weight_that_is_not_finite_is_refused(tiny_market, bad):
    env = FastTradingEnv(tiny_market(close=np.ones((3, 2))), TradingRules("target_weights"))
    env.reset(seed=0)
    with pytest.raises(UserError, match="is not finite"):
        env.step(np.array([0.0, bad]))
    with pytest.raises(UserError, match="one number for each"):
        env.step(np.array([0.5]))


def test_fewer_bars_than_a_window_needs(tiny_market):
    with pytest.raises(UserError, match="needs 6 bars"):
        FastTradingEnv(tiny_market(close=np.ones(5)), window=5)


def test_a_pickled_environment_goes_on_the_same(tiny_market):
    prices = np.exp(np.random.default_rng(0).normal(0, 0.01, 200).cumsum())
    env = FastTradingEnv(tiny_market(prices), window=2, episode_length=20)
    env.reset(seed=1)
    env.step(LONG)
    for copy in (pickle.loads(pickle.dumps(env)), cloudpickle.loads(cloudpickle.dumps(env))):
        twin = pickle.loads(pickle.dumps(env))
        for action in (SHORT, LONG, FLAT):
            assert copy.step(action)[1] == twin.step(action)[1]
        np.testing.assert_array_equal(copy.reset()[0], twin.reset()[0])


def test_a_worker_process_stays_small():
    """Environments import neither torch nor polars nor matplotlib nor pydantic."""
    script = (
        "import sys; import ml_pipeline.trading.envs.stateful, ml_pipeline.trading.envs.prepared_market;"
        "print([m for m in ('torch', 'polars', 'matplotlib', 'pydantic', 'pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_mapped_market_is_read_as_arrays_which_are_quicker_and_not_copied(tiny_market, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    market = tiny_market(close=np.arange(1.0, 9.0), half_spread=np.full(8, 0.01)).mapped()
    env = FastTradingEnv(market, engine="plain")
    for table, mapped in ((env._features, market.features), (env._fill_prices, market.open)):
        assert type(table) is np.ndarray
        assert np.shares_memory(table, mapped)


def test_a_compiler_that_cannot_be_imported_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 1.26 or less. Got NumPy 9.9.')")
    script = (
        "import gymnasium, ml_pipeline.trading.gym_ids\n"
        "env = gymnasium.make('FastTradingEnv-v1')\n"
        "env.reset(seed=0)\n"
        "print(env.step(env.action_space.sample())[1])\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ, check=False)
    assert float(done.stdout) == pytest.approx(0, abs=1)
    assert "numba cannot be imported (Numba needs NumPy 1.26 or less. Got NumPy 9.9.)" in done.stderr


@pytest.mark.parametrize(
    ("mode", "allow_short", "meant"),
    [
        ("discrete", True, {"choices": ["short", "flat", "long"], "weights_of_positions": [-0.5, 0.0, 0.5]}),
        ("discrete", False, {"choices": ["flat", "long"], "weights_of_positions": [0.0, 0.5]}),
        ("buy_hold_sell", True, {"choices": ["sell", "hold", "buy"], "weights_of_positions": [-0.5, 0.0, 0.5]}),
        ("trade", True, {"unit": "orders of 10 % of the equity, negative to sell"}),
        ("target_weights", True, {"unit": "target position as a fraction of the equity, negative for short"}),
    ],
)
def test_it_says_what_observations_and_actions_mean(tiny_market, mode, allow_short, meant):
    market = replace(tiny_market([[1.0, 1.0]] * 5), feature_names=("A.x", "B.x"))
    said = FastTradingEnv(market, TradingRules(mode, allow_short=allow_short), window=2).meaning()
    assert (said["observation"]["features"], said["observation"]["window"]) == (["A.x", "B.x"], 2)
    assert said["action"] == {"symbols": ["A", "B"], "mode": mode, **meant}
