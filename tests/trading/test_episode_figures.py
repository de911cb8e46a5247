"""The figures of an episode are those of its ledger, and telling them changes no bit."""

import numpy as np
import pytest

from ml_pipeline.models.rl.core.stepping.state import plain_state_of, set_plain_state
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.fast import FastTradingEnv
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.episode_figures import EPISODE_FIGURES, BatchedEpisodeFiguresEnv, EpisodeFiguresEnv
from ml_pipeline.trading.evaluation import metrics

MODES = [("discrete", 1), ("target_weights", 2), ("trade", 3), ("buy_hold_sell", 1)]


def episode(env, actions):
    env.reset(seed=0)
    for action in actions:
        *_, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    return info


def shaped(actions, env):
    return [action.astype(env.action_space.dtype).reshape(env.action_space.shape) for action in actions]


@pytest.mark.parametrize("engine", ["plain", "auto"])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(("mode", "n_assets"), MODES)
@pytest.mark.parametrize("seed", range(2))
def test_figures_are_those_of_the_ledger(random_case, *, seed, mode, n_assets, within, engine):
    market, rules, actions = random_case(seed, n_assets, mode, 0.03, within=within)
    env, exact = EpisodeFiguresEnv(market, rules, engine=engine), StatefulTradingEnv(market, rules)
    told = episode(env, shaped(actions, env))
    episode(exact, shaped(actions, exact))
    ledger = exact.ledger()
    equity = ledger["equity"]
    assert told["episode"]["l"] == len(equity) - 1
    expected = {
        "drawdown": metrics.drawdown_fraction(equity)[-1],
        "turnover": metrics.turnover(ledger),
        "sharpe_ratio": metrics.sharpe(metrics.returns_of(equity), market.periods_per_year),
        "max_drawdown": metrics.max_drawdown(equity),
    }
    assert {name: told[name] for name in EPISODE_FIGURES} == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)


def test_steps_keep_their_bits_and_only_the_last_one_tells(random_case):
    market, rules, actions = random_case(3, 1, "discrete", 0.01)
    plain, telling = (kind(market, rules, episode_length=20) for kind in (FastTradingEnv, EpisodeFiguresEnv))
    total = 0.0
    for env in (plain, telling):
        env.reset(seed=5)
    for action in actions[:20]:
        expected, got = (env.step(int(action[0])) for env in (plain, telling))
        np.testing.assert_array_equal(expected[0], got[0])
        assert expected[1:4] == got[1:4]
        total += got[1]
        assert bool(got[4]) == (got[2] or got[3])
    assert got[4]["episode"]["r"] == total
    telling.reset()
    assert telling._path == []


def test_an_episode_that_is_restored_tells_of_all_of_it(random_case):
    market, rules, actions = random_case(3, 1, "discrete", 0.01)
    whole, first, second = (EpisodeFiguresEnv(market, rules, episode_length=20) for _ in range(3))
    told = episode(whole, actions[:, 0].tolist())
    first.reset(seed=0)
    for action in actions[:7, 0].tolist():
        first.step(action)
    set_plain_state(second, plain_state_of(first))
    for action in actions[7:20, 0].tolist():
        info = second.step(action)[4]
    assert info == told


def test_an_episode_whose_begin_is_not_known_tells_nothing(random_case):
    market, rules, actions = random_case(3, 1, "discrete", 0.01)
    plain, telling = (kind(market, rules, episode_length=20) for kind in (FastTradingEnv, EpisodeFiguresEnv))
    plain.reset(seed=0)
    plain.step(0)
    set_plain_state(telling, plain_state_of(plain))
    infos = [telling.step(action)[4] for action in actions[1:20, 0].tolist()]
    assert infos[-1].keys() == {"equity"}
    assert "episode" in episode(telling, actions[:, 0].tolist())


def rollout(env, n_steps, seed):
    generator = np.random.default_rng(seed)
    env.reset(seed=1)
    return [env.step(generator.integers(0, 3, env.num_envs)) for _ in range(n_steps)]


@pytest.mark.parametrize("within", [False, True])
def test_a_batch_tells_what_single_environments_tell(random_case, within):
    market, rules, _ = random_case(1, 1, "discrete", 0.02, within=within)
    batch = BatchedEpisodeFiguresEnv(market, 3, rules)
    generator = np.random.default_rng(0)
    choices = generator.integers(0, len(rules.positions), (market.n_bars, 3))
    batch.reset(seed=0)
    for row in choices:
        *_, infos = batch.step(row)
        if infos:
            break
    told = infos["final_info"]
    for i in np.flatnonzero(told["_episode"]):
        alone = episode(EpisodeFiguresEnv(market, rules), choices[:, i].tolist())
        assert told["episode"]["l"][i] == alone["episode"]["l"]
        assert told["episode"]["r"][i] == pytest.approx(alone["episode"]["r"], abs=1e-9)
        for name in EPISODE_FIGURES:
            assert told[name][i] == pytest.approx(alone[name], rel=1e-6, abs=1e-9, nan_ok=True), name


def test_a_batch_keeps_its_bits_and_its_state(random_case):
    market, rules, _ = random_case(2, 1, "discrete", 0.02)
    kinds = (BatchedTradingEnv, BatchedEpisodeFiguresEnv)
    plain, telling = (rollout(kind(market, 4, rules, episode_length=9), 30, 0) for kind in kinds)
    for expected, got in zip(plain, telling, strict=True):
        for one, other in zip(expected[:4], got[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    stopped, resumed = (BatchedEpisodeFiguresEnv(market, 4, rules, episode_length=9) for _ in range(2))
    rollout(stopped, 5, 0)
    resumed.set_states(stopped.get_states())
    generator = np.random.default_rng(9)
    for _ in range(4):
        actions = generator.integers(0, 3, 4)
        one, other = stopped.step(actions)[4], resumed.step(actions)[4]
    np.testing.assert_equal(one["final_info"], other["final_info"])
    assert one["final_info"]["episode"]["l"].tolist() == [9] * 4
