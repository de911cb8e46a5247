"""The result of `load_policy` for a run with Stable-Baselines3."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces

from ml_pipeline.config.wording import counted
from ml_pipeline.runs.sb3.policy import SB3Policy, untrained_model
from ml_pipeline.runs.train_config import TrainConfig


class LoadedSB3Policy(SB3Policy):
    """The policy of a checkpoint, with the attributes of `LoadedPolicy`. model: Stable-Baselines3's own.

    `act(observation)` gives the best action; `act(observation, generator=...)` a sampled one, if the algorithm
    samples: DQN always gives the best.
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        config: TrainConfig,
        *,
        checkpoint: Path,
        trained_steps: int,
        task_state: Mapping[str, Any],
        device: str,
    ) -> None:
        model = untrained_model(config.run, config.ppo, observation_space, action_space, device=device)
        super().__init__(model, config.run, observation_space, action_space)
        self.config = config
        self.checkpoint = checkpoint
        self.trained_steps = trained_steps
        self.task_state = task_state

    def _described(self) -> list[str]:
        return [*super()._described(), f"trained for {counted(self.trained_steps, 'step')}", str(self.checkpoint)]
