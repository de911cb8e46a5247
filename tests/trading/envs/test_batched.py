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
    close = np.array([100, 110, 120, 60])
    market = tiny_market(close=close)
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
    first = starts.astype(int)  # bought one bar later
    np.testing.assert_allclose(infos["final_info"]["equity"], 10_000 * close[first + 2] / close[first + 1])
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
    assert 0.00099 < rates.min() < 0.0025
    assert 0.0045 < rates.max() < 0.006
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
    with pytest.raises(UserError, match="same number of symbols, number of features and clip"):
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


DRAWING = {"fee_bps": (0, 20), "slippage_bps": (1, 5), "episode_length": 9, "window": 2}
KINDS = [{"engine": "plain"}, {"engine": "compiled"}, {"device": "cpu"}]
N_ROWS = 23


def drawing(tiny_market, n, kind, **settings):
    """Environments that draw all that there is to draw: of two markets, starts, fees and slippage."""
    if kind.get("engine") == "compiled":
        pytest.importorskip("numba")
    prices = 100 * np.exp(np.random.default_rng(5).normal(0, 0.02, (2, 80, 3)).cumsum(axis=1))
    markets = [tiny_market(each[:length]) for each, length in zip(prices, (80, 40), strict=True)]
    given = {**DRAWING, "reward": make_reward("sharpe_ratio"), **settings, **kind}
    return BatchedTradingEnv(markets, n, TradingRules("target_weights", max_gross=1.0), **given)


def stepped(env, actions):
    """What some steps give, rows along the second axis."""
    actions = actions if env.device is None else _tensor(actions)
    results = [env.step(action)[:4] for action in actions]
    return [np.stack([np.asarray(each) for each in of_kind]) for of_kind in zip(*results, strict=True)]


def random_weights(n_steps, n_rows=N_ROWS):
    return np.random.default_rng(6).uniform(-1, 1, (n_steps, n_rows, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_rows_is_what_it_is_among_all(tiny_market, kind):
    whole = drawing(tiny_market, N_ROWS, kind)
    first, _ = whole.reset(seed=7)
    actions = random_weights(40)
    expected = stepped(whole, actions)
    assert expected[3].sum() > 3 * N_ROWS  # each began four episodes, or more
    for rows in (slice(0, 1), slice(0, 8), slice(8, 13), slice(13, N_ROWS)):
        part = drawing(tiny_market, rows.stop - rows.start, kind)
        np.testing.assert_array_equal(part.reset(seed=7 + rows.start)[0], first[rows])
        for all_rows, got in zip(expected, stepped(part, actions[:, rows]), strict=True):
            np.testing.assert_array_equal(got, all_rows[:, rows])


@pytest.mark.parametrize("kind", KINDS)
def test_when_a_row_ends_does_not_change_what_others_draw(tiny_market, kind):
    """Row 0 ends in the third step of one of them, and in the ninth of the other."""
    one, other = drawing(tiny_market, N_ROWS, kind), drawing(tiny_market, N_ROWS, kind)
    for env in (one, other):
        env.reset(seed=7)
    sooner = one._now.last_rows + 0
    sooner[0] = one._now.rows[0] + 3
    one._now = one._now._replace(last_rows=sooner)
    actions = random_weights(30)
    results, others = stepped(one, actions), stepped(other, actions)
    assert not np.array_equal(results[0][:, 0], others[0][:, 0])
    for first, second in zip(results, others, strict=True):
        np.testing.assert_array_equal(first[:, 1:], second[:, 1:])


def test_arrays_and_tensors_begin_the_same_episodes(tiny_market):
    plain, compiled, tensors = (drawing(tiny_market, N_ROWS, kind) for kind in KINDS)
    for env in (plain, compiled, tensors):
        env.reset(seed=2**63 + 5)
        stepped(env, random_weights(20))
    assert len(np.unique(plain._now.rows)) > 5
    for env in (compiled, tensors):
        for name in ("rows", "last_rows", "buy_rates", "generators"):
            np.testing.assert_array_equal(getattr(env._now, name), getattr(plain._now, name))


def test_starts_do_not_depend_on_whether_fees_are_drawn(tiny_market):
    drawn, fixed = (drawing(tiny_market, N_ROWS, {}, slippage_bps=bps) for bps in ((1, 5), None))
    for env in (drawn, fixed):
        env.reset(seed=4)
        stepped(env, random_weights(20))
    np.testing.assert_array_equal(drawn._now.rows, fixed._now.rows)


def test_every_start_is_as_likely_as_another(tiny_market):
    env = BatchedTradingEnv(tiny_market(np.linspace(100.0, 101.0, 30)), 4000, episode_length=9)
    for seed in (0, None, 1):  # None: the episodes after these
        counts = np.bincount(env.reset(seed=seed)[0][:, 0].astype(int))
        assert len(counts) == 21
        assert counts.min() > 120  # 190 on average, with a deviation of 14
        assert counts.max() < 260


def test_the_market_and_the_start_are_drawn_apart(tiny_market):
    markets = [tiny_market(np.linspace(low, low + 1, 19)) for low in (100.0, 200.0)]
    env = BatchedTradingEnv(markets, 4000, episode_length=9)
    env.reset(seed=0)
    counts = np.bincount(env._now.rows)[[*range(10), *range(19, 29)]]
    assert counts.sum() == 4000
    assert counts.min() > 140  # 200 on average, with a deviation of 14
    assert counts.max() < 260


def test_without_a_seed_each_row_goes_on_to_its_next_episode(tiny_market):
    env = drawing(tiny_market, N_ROWS, {})
    first = env.reset(seed=7)[0]
    second = env.reset()[0]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(env.reset(seed=7)[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)
    unseeded = [drawing(tiny_market, N_ROWS, {}).reset()[0] for _ in range(2)]
    assert not np.array_equal(*unseeded)


@pytest.mark.parametrize("kind", KINDS)
def test_states_of_parts_are_those_of_the_whole(tiny_market, kind):
    whole = drawing(tiny_market, N_ROWS, kind)
    whole.reset(seed=7)
    actions = random_weights(40)
    stepped(whole, actions[:20])
    states = whole.get_states()
    assert len(states) == N_ROWS
    expected = stepped(whole, actions[20:])
    found = []
    for rows in (slice(0, 5), slice(5, N_ROWS)):
        part = drawing(tiny_market, rows.stop - rows.start, kind)
        part.set_states(states[rows])
        assert part.get_states() == states[rows]
        found.append(stepped(part, actions[20:, rows]))
    for all_rows, parts in zip(expected, zip(*found, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), all_rows)


@pytest.mark.parametrize("kind", KINDS)
def test_further_environments_begin_as_seeded_by_their_index(tiny_market, kind):
    few = drawing(tiny_market, 5, kind)
    few.reset(seed=7)
    stepped(few, random_weights(20, 5))
    states = few.get_states()
    more = drawing(tiny_market, N_ROWS, kind)
    seen = more.continue_from(states, seed=100)
    assert more.get_states()[:5] == states
    np.testing.assert_array_equal(seen[5:], drawing(tiny_market, N_ROWS - 5, kind).reset(seed=105)[0])
    fewer = drawing(tiny_market, 3, kind)
    assert fewer.continue_from(states, seed=100) is None
    assert fewer.get_states() == states[:3]
    unknown = drawing(tiny_market, 3, kind)  # the last rank of a growing group has none to go on from
    np.testing.assert_array_equal(unknown.continue_from([], seed=100), drawing(tiny_market, 3, kind).reset(seed=100)[0])


def test_states_of_before_an_episode_are_of_none(tiny_market):
    env = drawing(tiny_market, 2, {})
    assert env.get_states() == [{}, {}]
    other = drawing(tiny_market, 2, {})
    other.reset(seed=0)
    other.set_states([{}, {}])
    with pytest.raises(UserError, match="There is no episode yet"):
        other.step(np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        (lambda states: states[:1], ValueError, "one state per environment, 23, but got 1"),
        (lambda states: [{**states[0], "rows": "no number"}, *states[1:]], TypeError, None),
        (lambda states: [{**states[0], "cash": None}, *states[1:]], TypeError, None),
        (lambda states: [{**state, "rows": 3.5} for state in states], TypeError, None),
        (lambda states: [{**states[0], "holdings": [1.0]}, *states[1:]], ValueError, None),
        (lambda states: [{**state, "holdings": [1.0]} for state in states], ValueError, None),
        (lambda states: [{**state, "holdings": [1.0, 2.0]} for state in states], ValueError, None),
        (lambda states: [{}, *states[1:]], KeyError, "rows"),
        (lambda states: [{"now": 1, "reward": 2, "generator": 3}] * N_ROWS, KeyError, "rows"),
    ],
)
def test_states_of_something_else_are_refused(tiny_market, change, error, sentence):
    env = drawing(tiny_market, N_ROWS, {})
    env.reset(seed=0)
    with pytest.raises(error, match=sentence):
        env.set_states(change(env.get_states()))


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
