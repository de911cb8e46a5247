import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.array_ops import CompiledArrays, NumpyArrays
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.batched import BatchedTradingEnv, one_each
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.prepared_market import prepare_market
from ml_pipeline.trading.envs.rewards import REWARDS, make_reward
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.synthetic import synthetic_market

SHORT, FLAT, LONG = 0, 1, 2


@pytest.mark.parametrize("kind", [NumpyArrays, CompiledArrays])
def test_a_margin_call_or_ruin_terminates_and_only_other_accounts_are_truncated(kind):
    if kind is CompiledArrays:
        pytest.importorskip("numba")
    rows, last_rows = np.array([3, 3, 3, 3, 3]), np.array([9, 4, 9, 4, 4])
    margin_called, equity = np.array([False, False, True, False, True]), np.array([101.0, 101.0, 500.0, 100.0, 100.0])
    found = kind().outcomes(rows, last_rows, margin_called, equity, 100.0)
    expected = [4] * 5, [0, 0, 1, 1, 1], [0, 1, 0, 0, 0], [0, 1, 1, 1, 1]
    for values, numbers, dtype in zip(found, expected, (np.int64, bool, bool, bool), strict=True):
        np.testing.assert_array_equal(values, numbers)
        assert values.dtype == dtype
    np.testing.assert_array_equal(rows, 3)


def test_an_episode_that_ends_gives_its_last_observation_and_begins_anew(tiny_market):
    market = tiny_market(close=[100, 110, 120, 60])
    env = BatchedTradingEnv(market, 3, TradingRules(fee_bps=0), episode_length=2)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    observations, infos = env.reset(seed=0)
    assert infos == {}
    assert observations in env.observation_space
    starts = observations[:, 0]
    actions = np.full(3, LONG)
    assert env.step(actions)[4] == {}
    observations, _, terminated, truncated, infos = env.step(actions)
    assert truncated.all()
    assert not terminated.any()
    np.testing.assert_array_equal(infos["_final_obs"], True)
    np.testing.assert_array_equal(infos["final_obs"][:, 0], starts + 2)
    assert (infos["final_obs"][:, 1] > 0.9).all()  # long at the end, flat anew
    np.testing.assert_array_equal(observations[:, 1], 0)
    np.testing.assert_array_equal(env.equity, 10_000)


def test_only_what_ended_begins_anew(tiny_market):
    env = BatchedTradingEnv(tiny_market(close=[100, 100, 250, 100, 100]), 2, TradingRules(fee_bps=0))
    env.reset(seed=0)
    env.step(np.array([SHORT, FLAT]))
    observations, rewards, terminated, truncated, infos = env.step(np.array([SHORT, FLAT]))
    np.testing.assert_array_equal(terminated, [True, False])
    np.testing.assert_array_equal(truncated, False)
    assert rewards == pytest.approx([np.log(1e-6), 0])
    np.testing.assert_array_equal(infos["final_obs"][:, 0], [2, 2])
    np.testing.assert_array_equal(observations[:, 0], [0, 2])
    np.testing.assert_array_equal(env.step(np.array([FLAT, FLAT]))[0][:, 0], [1, 3])


def test_the_same_seed_gives_the_same_and_another_gives_others(tiny_market):
    prices = np.exp(np.random.default_rng(0).normal(0, 0.01, 200).cumsum())

    def starts(seed):
        env = BatchedTradingEnv(tiny_market(prices), 50, episode_length=20)
        return env.reset(seed=seed)[0][:, 0].tolist()

    assert starts(1) == starts(1) != starts(2)
    assert min(starts(1)) >= 0
    assert max(starts(1)) <= 179
    assert len(set(starts(1))) > 30


def test_each_episode_draws_its_fee_and_spread(tiny_market):
    env = BatchedTradingEnv(
        tiny_market(close=[100, 100, 100]), 200, TradingRules(), fee_bps=(10, 20), slippage_bps=(0, 40)
    )
    env.reset(seed=0)
    rates = 1 - np.exp(env.step(np.full(200, LONG))[1])
    assert rates.min() > 0.00099
    assert rates.max() < 0.006
    assert len(np.unique(rates)) == 200


def test_each_episode_draws_its_symbol():
    market = synthetic_market(n_bars=80, n_symbols=3)
    table = compute_features(market, ["log_return_1", "rsi_14", "time_of_day"])
    prepared = prepare_market(market, table, FeatureScaler.fit(table.values)).bars(20, 80)
    parts = one_each(prepared)
    assert [part.symbols for part in parts] == [("SYNTH1",), ("SYNTH2",), ("SYNTH3",)]
    np.testing.assert_array_equal(parts[1].features, prepared.features[:, [2, 3, 6, 7]])
    np.testing.assert_array_equal(parts[1].close[:, 0], prepared.close[:, 1])
    env = BatchedTradingEnv(parts, 60, TradingRules())
    observations, _ = env.reset(seed=0)
    kinds, counts = np.unique(observations, axis=0, return_counts=True)
    assert len(kinds) == 3
    assert counts.min() > 5
    actions = np.full(60, LONG)
    rewards = env.step(actions)[1]
    for part in parts:
        single = FastTradingEnv(part, TradingRules())
        first, _ = single.reset(seed=0)
        mine = (observations == first).all(axis=1)
        np.testing.assert_allclose(rewards[mine], single.step(LONG)[1], rtol=1e-12)


@pytest.mark.parametrize("name", [*REWARDS])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_every_reward_is_that_of_the_single_environment(tiny_market, name, device):
    prices = 100 * np.exp(np.random.default_rng(3).normal(0, 0.03, 60).cumsum())
    market = tiny_market(prices)
    reward = make_reward(name, 2.0)
    batched = BatchedTradingEnv(market, 2, reward=reward, device=device)
    single = FastTradingEnv(market, reward=reward)
    batched.reset(seed=0)
    single.reset(seed=0)
    for action in np.random.default_rng(4).integers(0, 3, 59):
        actions = np.array([FLAT, action])
        expected = single.step(int(action))[1]
        got = float(batched.step(actions if device is None else _tensor(actions))[1][1])
        assert got == pytest.approx(
            expected, rel=1e-9 if device is None else 1e-5, abs=1e-12 if device is None else 1e-6
        )


def _tensor(values):
    import torch

    return torch.from_numpy(values)


def test_tensors_stay_tensors(tiny_market):
    import torch

    env = BatchedTradingEnv(tiny_market(close=np.arange(1.0, 30.0)), 4, window=3, device="cpu", episode_length=5)
    observations, _ = env.reset(seed=0)
    assert observations.dtype == torch.float32
    for _ in range(7):
        observations, rewards, terminated, truncated, infos = env.step(torch.full((4,), LONG))
        assert (rewards.dtype, terminated.dtype) == (torch.float32, torch.bool)
        assert infos["final_obs"].shape == observations.shape == (4, 4)
    assert truncated.shape == (4,)


@pytest.mark.parametrize(
    ("rules", "actions", "sentence"),
    [
        (TradingRules(), [3, 0], "action of environment 0 for A is 3, which is not in 0..2"),
        (TradingRules(), [0, -1], "action of environment 1 for A is -1, which is not in 0..2"),
        (TradingRules("buy_hold_sell"), [3, 0], "not in 0..2"),
        (TradingRules("target_weights"), [[np.nan], [0.0]], "not finite"),
        (
            TradingRules("trade"),
            [[0.0], [np.inf]],
            "environment 1 for A is inf, which is not finite; expected numbers from -1 to 1",
        ),
        (TradingRules("trade"), [[1.0, 1.0], [0.0, 0.0]], "need the shape"),
    ],
)
def test_actions_that_cannot_be_used(tiny_market, rules, actions, sentence):
    env = BatchedTradingEnv(tiny_market(close=[1, 1, 1]), 2, rules)
    with pytest.raises(UserError, match="There is no episode yet"):
        env.step(np.array(actions))
    env.reset(seed=0)
    with pytest.raises(UserError, match=sentence):
        env.step(np.array(actions))


def test_batches_that_cannot_be_made(tiny_market):
    market = tiny_market(close=[1, 1, 1])
    with pytest.raises(UserError, match="at least one market"):
        BatchedTradingEnv([], 2)
    with pytest.raises(UserError, match="equal numbers of symbols and features"):
        BatchedTradingEnv([market, tiny_market(close=np.ones((3, 2)))], 2)
    with pytest.raises(UserError, match=r"fee_bps must be a range from 0 to 1000 basis points, but got \(5, 1\)"):
        BatchedTradingEnv(market, 2, fee_bps=(5, 1))
    with pytest.raises(UserError, match="needs 6 bars"):
        BatchedTradingEnv(market, 2, window=5)


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("rules", [TradingRules(), TradingRules(stop_loss=0.02)])
def test_an_environment_with_the_state_of_another_goes_on_as_that_one(tiny_market, device, rules):
    close = 100 * np.exp(np.random.default_rng(5).normal(0, 0.02, 80).cumsum())
    market = tiny_market(close, high=close * 1.01, low=close * 0.99)

    def make():
        given = {"reward": make_reward("calmar_ratio"), "episode_length": 9, "fee_bps": (0, 20), "device": device}
        return BatchedTradingEnv(market, 30, rules, **given)

    actions = np.random.default_rng(6).integers(0, 3, (40, 30))
    actions = actions if device is None else _tensor(actions)
    whole, resumed = make(), make()
    whole.reset(seed=7)
    for action in actions[:20]:
        whole.step(action)
    resumed.set_states(whole.get_states())
    for action in actions[20:]:
        for expected, got in zip(whole.step(action)[:4], resumed.step(action)[:4], strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("engine", ["plain", "compiled"])
def test_what_ends_in_turn_is_observed_as_if_all_were_observed_again(tiny_market, engine):
    if engine == "compiled":
        pytest.importorskip("numba")
    market = tiny_market(100 * np.exp(np.random.default_rng(5).normal(0, 0.02, 80).cumsum()))
    env = BatchedTradingEnv(market, 30, window=2, episode_length=7, engine=engine)
    env.reset(seed=0)
    generator = np.random.default_rng(1)
    state = env._now._replace(last_rows=env._now.rows + generator.integers(1, 7, 30))  # episodes out of step
    env._now = state
    for _ in range(20):
        observations, *_, infos = env.step(generator.integers(0, 3, 30))
        np.testing.assert_array_equal(observations, env._xp.observations(*env._seen()))
        if infos:
            kept = ~infos["_final_obs"]
            assert kept.any()
            np.testing.assert_array_equal(observations[kept], infos["final_obs"][kept])
