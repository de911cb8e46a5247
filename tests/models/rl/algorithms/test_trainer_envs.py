"""Ranks whose environments live in tensors on their device, and learn the bits of one process."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.trainer_envs import EnvsOfTensors
from ml_pipeline.models.rl.ranks import rows_of
from tests.models.rl.distributed.rank_server import RankServer
from tests.models.rl.distributed.tasks import N_ENVS, N_STEPS, TIMESTEPS, hash_of


class Pull(VectorEnv):
    """Points that actions pull left or right; each ends beyond 1, or after as many steps as its number plus 3."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    device = "cpu"

    def __init__(self, rows: range) -> None:
        self.num_envs = len(rows)
        self.single_observation_space, self.single_action_space = spaces.Box(-9, 9, (2,)), spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.number = torch.tensor(rows)

    def reset(self, *, seed=None, options=None):
        self.t, self.x = torch.zeros(self.num_envs, dtype=torch.int64), self.number / 20.0 - 0.3
        return self._seen(), {"seed": seed}

    def step(self, actions):
        assert isinstance(actions, torch.Tensor)
        self.t, self.x = self.t + 1, self.x * 0.97 + 0.2 * (actions - 0.5)
        terminated, truncated = self.x.abs() > 1.0, self.t >= 3 + self.number
        rewards, final, done = 1.0 - self.x.abs(), self._seen(), terminated | truncated
        self.x, self.t = torch.where(done, 0.1, self.x), torch.where(done, 0, self.t)
        return self._seen(), rewards, terminated, truncated, {"final_obs": final, "_final_obs": done}

    def get_states(self):
        return [{"at": [x, t]} for x, t in zip(self.x.tolist(), self.t.tolist(), strict=True)]

    def _seen(self):
        return torch.stack([self.x, self.t / 10.0], dim=1)


def trained(ranks: Any, settings: dict[str, Any]) -> str:
    config = PPOConfig(
        **{"n_steps": N_STEPS, "minibatch_size": 64, "n_epochs": 2, "hidden_sizes": (16,), **settings},
        normalize_update="rollout",
    )
    rows = range(N_ENVS) if ranks is None else range(N_ENVS)[rows_of(ranks.rank, ranks.size, N_ENVS)]
    with PPOTrainer(Pull(rows), config, total_timesteps=TIMESTEPS, seed=3, ranks=ranks) as trainer:
        trainer.train(progress=False)
        return hash_of(trainer)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"share_layers": True, "gradient_chunks": 2}])
def test_ranks_with_tensors_learn_what_one_process_learns(server: RankServer, settings: dict[str, Any]):
    (alone,) = server.values(trained, 0, settings)
    for size in (2, 3):
        assert server.values(trained, size, settings) == [alone] * size


def test_tensors_come_as_arrays_and_actions_go_as_tensors():
    plain, envs = Pull(range(3)), EnvsOfTensors(Pull(range(3)))
    observations, infos = envs.reset(seed=5)
    np.testing.assert_array_equal(observations, plain.reset(seed=5)[0].numpy())
    assert infos == {"seed": 5}
    actions = np.array([0, 1, 1])
    for _ in range(4):
        expected, found = plain.step(torch.from_numpy(actions)), envs.step(actions)
        for tensor, array in zip((*expected[:4], *expected[4].values()), (*found[:4], *found[4].values()), strict=True):
            assert isinstance(array, np.ndarray)
            np.testing.assert_array_equal(array, tensor.numpy())
    assert envs.get_states() == plain.get_states()
    assert envs.num_envs == 3
    with pytest.raises(AttributeError):
        envs.of_another_kind  # noqa: B018
