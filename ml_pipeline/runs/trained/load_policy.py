"""`load_policy`: from a run folder or a checkpoint to a policy that acts, without its environment."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.policies.device_choice import choose_device
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.space_data import space_from_data
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.restore import load_run
from ml_pipeline.runs.trained.saved_env import make_saved_env


class LoadedPolicy(Policy):
    """The policy of a checkpoint. config: every setting of its run; trained_steps: for how many environment steps.

    task_state: what the policy depends on besides its weights, such as the scaling of a market's features.
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
        return [*super()._described(), f"trained for {self.trained_steps:,} steps", str(self.checkpoint)]


def load_policy(path: str | Path, *, device: str = "cpu") -> LoadedPolicy:
    """The best policy of a run folder, or the policy of a checkpoint, such as checkpoints/RUN/latest.pt.

    The checkpoint is enough: neither the environment nor market data are needed. A checkpoint of an older version does
    not hold its spaces; for these the environment is made once.
    Raises UserError if there is no checkpoint, or it cannot be used.
    """
    device = choose_device(device)
    checkpoint = find_policy(path)
    with _whole(checkpoint):
        config, saved = load_run(checkpoint)
        state, task_state = saved["trainer"]["policy"], saved["task"]
        trained_steps = saved["trainer"]["collector"]["global_step"]
        saved_spaces = _saved_spaces(state)
    observation_space, action_space = saved_spaces or _spaces_of_env(config, task_state)
    policy = LoadedPolicy(
        observation_space,
        action_space,
        config,
        checkpoint=checkpoint,
        trained_steps=trained_steps,
        task_state=task_state,
        device=device,
    )
    with _whole(checkpoint):
        policy.load_state_dict(state)
    return policy


def find_policy(path: str | Path) -> Path:
    """The checkpoint that a path names: the file itself, or best.pt of a run folder, or latest.pt without one.

    Raises UserError if a folder has neither.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    for name in (BEST_CHECKPOINT, LATEST_CHECKPOINT):
        if (path / name).is_file():
            return path / name
    raise UserError(f"{path} has no {BEST_CHECKPOINT} and no {LATEST_CHECKPOINT}; name a run folder or a checkpoint.")


@contextmanager
def _whole(checkpoint: Path) -> Iterator[None]:
    """Turn the errors of a checkpoint that lacks something, or holds other shapes, into one sentence."""
    try:
        yield
    except (KeyError, AttributeError, RuntimeError) as error:  # torch raises RuntimeError for other shapes
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise UserError(f"{checkpoint} does not hold a whole policy: {reason}.") from error


def _saved_spaces(state: Mapping[str, Any]) -> tuple[spaces.Space, spaces.Space] | None:
    """The spaces of observations and actions that a policy's state holds; None if it does not hold both."""
    data = state.get("spaces", {})
    observation, action = data.get("observation"), data.get("action")
    return None if observation is None or action is None else (space_from_data(observation), space_from_data(action))


def _spaces_of_env(config: TrainConfig, task_state: Mapping[str, Any]) -> tuple[spaces.Space, spaces.Space]:
    with closing(make_saved_env(config, task_state, split="train")) as env:
        return env.observation_space, env.action_space
