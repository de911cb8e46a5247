"""Ranks with batched trading environments, each with its own rows, learn the bits of one process with all of them."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.ranks import rows_of
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.batched import BatchedTradingEnv
from ml_pipeline.trading.envs.prepared_market import PreparedMarket, prepare_market
from ml_pipeline.trading.features.indicators import compute_features
from ml_pipeline.trading.features.scaling import FeatureScaler
from ml_pipeline.trading.market.synthetic import synthetic_market
from tests.models.rl.algorithms.test_trainer_envs import Pull
from tests.models.rl.distributed.rank_server import RankServer
from tests.models.rl.distributed.tasks import before_step, hash_of

pytestmark = pytest.mark.long

N_ENVS, N_STEPS, N_ITERATIONS = 13, 16, 3
NETWORKS: dict[str, dict[str, Any]] = {
    "perceptron": {},
    "shared": {"share_layers": True, "gradient_chunks": 2},
    "memory": {"memory": "gru", "memory_size": 8},
}
DEVICES = {"arrays": None, "tensors": "cpu"}


@cache
def markets() -> list[PreparedMarket]:
    """Two of two symbols each, of other bars; each episode draws one of them."""
    market = synthetic_market(n_bars=160, n_symbols=2)
    table = compute_features(market, ["log_return_1", "rsi_14"])
    prepared = prepare_market(market, table, FeatureScaler.fit(table.values))
    return [prepared.bars(20, 90), prepared.bars(90, 160)]


def envs_of(ranks: Any, device: str | None, n_envs: int = N_ENVS) -> BatchedTradingEnv:
    rows = range(n_envs) if ranks is None else range(n_envs)[rows_of(ranks.rank, ranks.size, n_envs)]
    rules = TradingRules("target_weights", max_gross=1.0)
    return BatchedTradingEnv(markets(), len(rows), rules, window=2, episode_length=7, fee_bps=(0, 20), device=device)


def trainer_of(ranks: Any, kind: str, network: str, *, n_envs: int = N_ENVS, timesteps: int = 0) -> PPOTrainer:
    config = PPOConfig(
        **{"n_steps": N_STEPS, "minibatch_size": 16, "n_epochs": 1, "hidden_sizes": (8,), **NETWORKS[network]},
        normalize_update="rollout",
    )
    steps = timesteps or N_ITERATIONS * N_ENVS * N_STEPS
    return PPOTrainer(envs_of(ranks, DEVICES[kind], n_envs), config, total_timesteps=steps, seed=3, ranks=ranks)


def trained(ranks: Any, kind: str, network: str, state: dict[str, Any] | None = None) -> tuple[str, list[float]]:
    """The hash after training, from a state on if there is one, and the returns of the latest episodes."""
    with trainer_of(ranks, kind, network) as trainer:
        if state is not None:
            trainer.load_state_dict(state)
        trainer.train(progress=False)
        return hash_of(trainer), list(trainer._collector.episodes.state_dict()["recent"])


def stopped_in_a_rollout(ranks: Any, kind: str, network: str) -> tuple[bool, dict[str, Any]]:
    with trainer_of(ranks, kind, network) as trainer:
        if ranks is None or ranks.rank == ranks.size - 1:
            before_step(trainer, N_STEPS + 5, trainer.request_stop)
        trainer.train(progress=False)
        return trainer.mid_rollout, trainer.state_dict()


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("network", NETWORKS)
def test_ranks_learn_what_one_process_learns(server: RankServer, kind: str, network: str):
    (alone,) = server.values(trained, 0, kind, network)
    assert len(alone[1]) > N_ENVS  # episodes began anew
    for size in (1, 2, 3):
        assert server.values(trained, size, kind, network) == [alone] * size


@pytest.mark.parametrize(("kind", "network"), [("arrays", "memory"), ("tensors", "shared")])
def test_any_number_of_ranks_goes_on_from_the_middle_of_a_rollout(server: RankServer, kind: str, network: str):
    (uninterrupted,) = server.values(trained, 0, kind, network)
    for before, after in ((2, 3), (3, 0), (0, 2)):
        stopped = server.values(stopped_in_a_rollout, before, kind, network)
        assert all(mid_rollout for mid_rollout, _ in stopped)
        state = stopped[0][1]
        assert len(state["environments"]) == N_ENVS
        assert set(map(repr, server.values(trained, after, kind, network, state))) == {repr(uninterrupted)}


def in_changing_numbers(ranks: Any, kind: str, numbers: list[int]) -> str:
    """Trains one iteration in each of these numbers of environments."""
    timesteps = N_STEPS * sum(numbers)
    with trainer_of(ranks, kind, "perceptron", n_envs=numbers[0], timesteps=timesteps) as trainer:
        trainer.train_episode_vectorized()
        for n_envs in numbers[1:]:
            assert trainer.replace_envs(envs_of(ranks, DEVICES[kind], n_envs)) == ""
            trainer.train_episode_vectorized()
        return hash_of(trainer)


@pytest.mark.parametrize("kind", DEVICES)
def test_the_number_of_environments_changes_alike_on_all_ranks(server: RankServer, kind: str):
    numbers = [4, 9, 3, 12]
    (alone,) = server.values(in_changing_numbers, 0, kind, numbers)
    for size in (1, 2, 3):
        assert server.values(in_changing_numbers, size, kind, numbers) == [alone] * size


class Stateless(Pull):
    @property
    def get_states(self):
        raise AttributeError


def refused(ranks: Any) -> str:
    with pytest.raises(UserError) as refusal:
        PPOTrainer(Stateless(range(4)), PPOConfig(normalize_update="rollout", minibatch_size=16), ranks=ranks)
    return str(refusal.value)


def refused_state(ranks: Any) -> str:
    with trainer_of(ranks, "arrays", "perceptron") as trainer:
        trainer.train_episode_vectorized()
        state = trainer.state_dict()
        with pytest.raises(UserError) as refusal:
            trainer.load_state_dict({**state, "environments": [{"now": 1, "reward": 2, "generator": 3}]})
        return str(refusal.value)


def test_environments_of_tensors_without_states_are_refused(server: RankServer):
    (sentence,) = set(server.values(refused, 2))
    assert sentence.startswith("Stateless cannot be divided among 2 ranks: it has no get_states(), which gives a state")


def test_the_one_state_of_all_that_an_earlier_version_wrote_is_refused(server: RankServer):
    (sentence,) = set(server.values(refused_state, 2))
    assert sentence.startswith("The states of the environments are of another version; continue with the version")


class Lumped(BatchedTradingEnv):
    def get_states(self):
        return [{"of": "all"}]


def one_state_of_several(ranks: Any) -> str:
    envs = Lumped(markets(), 2)
    with PPOTrainer(envs, PPOConfig(n_steps=8, minibatch_size=16, normalize_update="rollout"), ranks=ranks) as trainer:
        trainer.train_episode_vectorized()
        state = trainer.state_dict()
        assert state["environments"] is None
        return state["environments_missing"]


def test_environments_with_one_state_for_several_are_saved_without_states(server: RankServer):
    assert server.values(one_state_of_several, 2) == ["Lumped gives 1 states for 2 environments"] * 2


def test_environments_of_tensors_go_on_as_arrays():
    from ml_pipeline.models.rl.algorithms.trainer_envs import EnvsOfTensors

    few, more = envs_of(None, "cpu", 2), EnvsOfTensors(envs_of(None, "cpu", 5))
    first = few.reset(seed=1)[0].numpy()
    observations = more.continue_from(few.get_states(), seed=10)
    assert isinstance(observations, np.ndarray)
    np.testing.assert_array_equal(observations[:2], first)
    expected = envs_of(None, "cpu", 3).reset(seed=12)[0]
    assert isinstance(expected, torch.Tensor)
    np.testing.assert_array_equal(observations[2:], expected.numpy())
    assert more.continue_from(more.get_states(), seed=0) is None
