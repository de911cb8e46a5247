"""Images stay bytes from the environment to the network, and what acting computed is not computed again."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.rollout import estimates as estimates_module
from ml_pipeline.models.rl.rollout.estimates import estimate

N_STEPS, NUM_ENVS = 128, 8
OF_ATARI = (N_STEPS + 1) * NUM_ENVS * 84 * 84 * 4  # bytes, of one rollout's frames and those after it: 29.1 MB


class Frames(gymnasium.Env):
    """Frames of noise; every third step truncates."""

    action_space = spaces.Discrete(3)

    def __init__(self, side=36):
        self.observation_space = spaces.Box(0, 255, (side, side, 4), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        return self._seen(), float(action), False, self.t == 3, {}

    def _seen(self):
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


def trainer_for(side=36, n_steps=4, **settings):
    config = PPOConfig(n_steps=n_steps, minibatch_size=8, n_epochs=1, hidden_sizes=(8,), **settings)
    return PPOTrainer(SerialEnv([lambda: Frames(side)] * NUM_ENVS), config, seed=1)


def bytes_of(value):
    """Of all arrays and tensors in it."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, dict | list | tuple):
        return sum(map(bytes_of, value.values() if isinstance(value, dict) else value))
    return 0


def test_an_atari_rollout_takes_a_byte_per_point():
    with closing(trainer_for(84, N_STEPS)) as trainer:
        assert trainer._collector.buffer.observations.nbytes == OF_ATARI == 29_127_168


@pytest.mark.parametrize("normalize_update", ["step", "rollout"])  # in one process, and as several ranks do
def test_frames_are_bytes_in_rollouts_checkpoints_the_exchange_and_minibatches(normalize_update, monkeypatch):
    with closing(trainer_for(normalize_update=normalize_update)) as trainer:
        collector = trainer._collector
        steps = iter([False, False, False, True])
        assert not collector.collect(should_stop=lambda: next(steps))
        points = 36 * 36 * 4
        saved = collector.state_dict()
        assert saved["buffer"]["observations"].dtype == torch.uint8
        few = 200 * NUM_ENVS  # all else, in bytes
        assert (3 + 1) * NUM_ENVS * points <= bytes_of(saved) <= (3 + 2) * NUM_ENVS * points + few  # and final frames
        assert collector.collect(should_stop=lambda: False)
        if normalize_update == "rollout":
            sent = collector.buffer.arrays(trainer.policy.observations.layout)
            assert bytes_of(sent) <= (4 + 2) * NUM_ENVS * points + few
        batch = collector.estimates().batch
        assert batch.observations.dtype == torch.uint8
        assert batch.observations.data_ptr() == collector._whole.observations.ctypes.data  # not a copy
        seen = []
        forward = trainer.policy.network.forward
        monkeypatch.setattr(
            trainer.policy.network, "forward", lambda rows: (seen.append((len(rows), rows.dtype)), forward(rows))[1]
        )
        trainer._update(batch, progress=0.0)
        assert seen == [(8, torch.uint8)] * 4


@pytest.mark.parametrize("settings", [{}, {"share_encoder": False, "normalize_values": True}])
def test_what_acting_computed_is_what_an_evaluation_gives_and_is_not_computed_again(settings, monkeypatch):
    with closing(trainer_for(**settings)) as trainer:
        collector, policy = trainer._collector, trainer.policy
        assert collector.collect(should_stop=lambda: False)
        evaluated = []
        outputs_of = estimates_module.outputs_of
        monkeypatch.setattr(
            estimates_module,
            "outputs_of",
            lambda network, rows: (evaluated.append(len(rows)), outputs_of(network, rows))[1],
        )
        stored = collector.estimates()
        assert evaluated == [NUM_ENVS, NUM_ENVS]  # the last observations, and the final ones of step 3
        collector.buffer.outputs = None
        again = estimate(collector.buffer, policy, gamma=0.99, gae_lambda=0.95)
        assert evaluated[2:] == [5 * NUM_ENVS, NUM_ENVS]
        for one, other in zip(stored.batch.inputs, again.batch.inputs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [{"memory": "gru"}, {}])
def test_outputs_are_stored_of_policies_without_memory_alone(settings):
    with closing(trainer_for(**settings)) as trainer:
        assert trainer._collector.collect(should_stop=lambda: False)
        outputs = trainer._collector.buffer.outputs
        assert (outputs is None) == bool(settings)
        assert outputs is None or outputs.shape == (4, NUM_ENVS, 3 + 1)
