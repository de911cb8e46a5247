"""Training on a GPU: the same bits each time, interrupted or not, and those of the CPU up to rounding."""

import io
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no CUDA GPU here.")

SMALL = {"n_steps": 64, "minibatch_size": 64}


class Frames(gymnasium.Env[Any, Any]):
    """Frames that count the steps; one of three actions is rewarded."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros((84, 84, 4), np.uint8), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return np.full((84, 84, 4), self._t, np.uint8), float(action == 1), self._t >= 20, False, {}


def cart_pole() -> Any:
    return gymnasium.make("CartPole-v1")


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1")


CASES = {
    "choices": (cart_pole, PPOConfig(**SMALL)),
    "numbers": (pendulum, PPOConfig(**SMALL)),
    "memory": (cart_pole, PPOConfig(**SMALL, memory="gru")),
    "shared layers": (cart_pole, PPOConfig(**SMALL, share_layers=True)),
    "images": (Frames, PPOConfig(**SMALL, n_epochs=2)),
}


@pytest.fixture(params=CASES)
def make_trainer(request: pytest.FixtureRequest) -> Callable[[str], PPOTrainer]:
    make_env, config = CASES[request.param]
    return lambda device: PPOTrainer([make_env] * 4, config, total_timesteps=1_024, device=device, seed=3)


def weights_after(trainer: PPOTrainer, *, n_iterations: int = 4) -> dict[str, torch.Tensor]:
    with trainer:
        for _ in range(n_iterations):
            trainer.train_episode_vectorized()
        return {name: weight.cpu().clone() for name, weight in trainer.policy.network.state_dict().items()}


@pytest.mark.timeout(300)
def test_two_trainings_and_a_continued_one_have_equal_weights(make_trainer: Callable[[str], PPOTrainer]) -> None:
    file = io.BytesIO()
    with make_trainer("cuda") as stopped:
        for _ in range(2):
            stopped.train_episode_vectorized()
        torch.save(stopped.state_dict(), file)
    continued = make_trainer("cuda")
    continued.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=False))  # frames are pickled

    first, second, third = (
        weights_after(make_trainer("cuda")),
        weights_after(make_trainer("cuda")),
        weights_after(continued, n_iterations=2),
    )

    for name, weight in first.items():
        assert torch.equal(weight, second[name]), name
        assert torch.equal(weight, third[name]), name


@pytest.mark.timeout(300)
def test_the_weights_are_near_those_of_the_cpu(make_trainer: Callable[[str], PPOTrainer]) -> None:
    on_gpu, on_cpu = weights_after(make_trainer("cuda")), weights_after(make_trainer("cpu"))

    for name, weight in on_gpu.items():
        torch.testing.assert_close(weight, on_cpu[name], atol=1e-2, rtol=0.0, msg=lambda text, name=name: name + text)
