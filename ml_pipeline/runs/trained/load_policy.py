"""`load_policy`: from a run folder or a checkpoint to a policy that acts, without its environment."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.settings import Network
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.policies.threads_and_device import choose_device
from ml_pipeline.models.rl.preprocessing.spaces import space_from_data
from ml_pipeline.runs.checkpoint import reading, trained_steps
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.restore import find_policy, load_run, make_saved_env

if TYPE_CHECKING:
    from ml_pipeline.runs.trained.load_sb3_policy import LoadedSB3Policy


class LoadedPolicy(Policy):
    """The policy of a checkpoint. config: all settings of its run; trained_steps: in environment steps.

    task_state: what the policy needs besides its weights, such as the scaling of a market's features.
    `act(observation)` gives the likeliest action, `act(observation, generator=...)` a sampled one. A policy with memory
    remembers from call to call: call `act.begin_episode()` before each episode.
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
        super().__init__(observation_space, action_space, config.ppo, seed=config.run.seed, device=device)
        self.config = config
        self.checkpoint = checkpoint
        self.trained_steps = trained_steps
        self.task_state = task_state

    def _described(self) -> list[str]:
        return [*super()._described(), f"trained for {counted(self.trained_steps, 'step')}", str(self.checkpoint)]


def load_policy(path: str | Path, *, device: str = "cpu", network: Network = None) -> "LoadedPolicy | LoadedSB3Policy":
    """The best policy of a run folder, or the policy of a checkpoint, such as checkpoints/RUN/latest.pt.

    The checkpoint is enough: neither the environment nor market data are needed. The exception is custom space
    classes, which a checkpoint cannot hold: for these the environment is made once.
    network: the function of a network of your own, if it has moved or cannot be imported; None imports it by its name.
    Raises UserError if the checkpoint is missing or unusable.
    """
    device = choose_device(device)
    checkpoint = find_policy(path)
    with reading(checkpoint):
        config, saved = load_run(checkpoint)
        if network is not None:
            config = replace(config, ppo=replace(config.ppo, network=network))
        state, task_state = saved["trainer"]["policy"], saved["task"]
        steps = trained_steps(saved["trainer"])
        saved_spaces = _saved_spaces(state)
    observation_space, action_space = saved_spaces or _spaces_of_env(config, task_state)
    policy = _loaded_class(config)(
        observation_space,
        action_space,
        config,
        checkpoint=checkpoint,
        trained_steps=steps,
        task_state=task_state,
        device=device,
    )
    with reading(checkpoint):
        policy.load_state_dict(state)
    return policy


def _loaded_class(config: TrainConfig) -> "type[LoadedPolicy] | type[LoadedSB3Policy]":
    if config.run.algorithm == OWN:
        return LoadedPolicy
    from ml_pipeline.runs.trained.load_sb3_policy import LoadedSB3Policy  # needs Stable-Baselines3, an extra

    return LoadedSB3Policy


def _saved_spaces(state: Mapping[str, Any]) -> tuple[spaces.Space, spaces.Space] | None:
    """The observation and action spaces in a policy's state; None if it does not hold both."""
    data = state["spaces"]
    observation, action = data.get("observation"), data.get("action")
    return None if observation is None or action is None else (space_from_data(observation), space_from_data(action))


def _spaces_of_env(config: TrainConfig, task_state: Mapping[str, Any]) -> tuple[spaces.Space, spaces.Space]:
    with closing(make_saved_env(config, task_state, split="train")) as env:
        return env.observation_space, env.action_space
