"""Training on a registered Gymnasium environment: makes it, scores a policy in it, reports on it."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import gymnasium

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.models.rl.algorithms.evaluation import EvaluationResult, evaluate
from ml_pipeline.models.rl.preprocessing.action_mask import ActionMaskInObservation, reports_mask_apart
from ml_pipeline.runs.gym_report import result_sentence, write_gym_report
from ml_pipeline.runtime.user_code import failed_import, import_user_module

Act = Callable[[Any], Any]

EVALUATION_SEED_OFFSET = 1_000_000
"""Evaluation plays other episodes than training, whose environment i begins with seed + i."""


class GymTask:
    """A Gymnasium id, played in whole episodes."""

    notices: tuple[str, ...] = ()

    def __init__(self, env_id: str, *, eval_episodes: int, seed: int) -> None:
        """Raises UserError where there is no such environment, or what it needs is not installed."""
        self.name = env_id.replace("/", "-").replace(":", "-")
        self._env_id = env_id
        self._eval_episodes = eval_episodes
        self._seed = seed
        with closing(_make_checked(env_id)) as env:
            self._masks_apart = _masks_apart(env, seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._env_id})"

    def train_env_fns(self, n: int) -> list[Callable[[], gymnasium.Env]]:
        return [partial(_make, self._env_id, self._masks_apart)] * n

    def batched_train_env(self, n: int, *, device: str | None = None) -> NoReturn:
        """Raises UserError: only trading has it."""
        raise UserError(
            f'vec_env "batched" is for trading, but the environment is {self._env_id}; take "parallel" or "serial".'
        )

    def evaluation_env(self, *, render_mode: str | None = None) -> gymnasium.Env:
        """render_mode: "rgb_array" or "human". Raises UserError where the environment cannot be rendered that way."""
        return _make(self._env_id, self._masks_apart, render_mode)

    def score(self, act: Act) -> float:
        """Mean return of an evaluation: what the best policy is chosen by."""
        return self._evaluate(act).mean_return

    def report(self, act: Act, folder: Path) -> str:
        """Evaluate, write the files of `write_gym_report` into `folder`, and say the result in a line."""
        result = self._evaluate(act)
        write_gym_report(folder, self._env_id, result)
        return result_sentence(self._env_id, result)

    def state(self) -> dict[str, Any]:
        """Nothing was fitted to data, so there is nothing to save."""
        return {}

    def _evaluate(self, act: Act) -> EvaluationResult:
        env = self.evaluation_env()
        try:
            return evaluate(env, act, n_episodes=self._eval_episodes, seed=self._seed + EVALUATION_SEED_OFFSET)
        finally:
            env.close()


def _make(env_id: str, masks_apart: bool, render_mode: str | None = None) -> gymnasium.Env:
    env: gymnasium.Env = gymnasium.make(env_id) if render_mode is None else _make_rendered(env_id, render_mode)
    return ActionMaskInObservation(env) if masks_apart else env


def _make_rendered(env_id: str, render_mode: str) -> gymnasium.Env:
    with closing(gymnasium.make(env_id)) as env:
        modes = env.metadata.get("render_modes") or []
    # Gymnasium itself shows the frames of an environment that has no window of its own.
    enough = {"human", "rgb_array"} if render_mode == "human" else {render_mode}
    try:
        if not enough & {*modes}:
            raise TypeError(f"its render modes are {', '.join(map(str, modes)) or 'none'}")
        return gymnasium.make(env_id, render_mode=render_mode)
    except (TypeError, gymnasium.error.Error) as error:  # also of a constructor that does not take render_mode
        raise UserError(f'{env_id} cannot be rendered as "{render_mode}": {str(error).rstrip(".")}.') from error


def _masks_apart(env: gymnasium.Env, seed: int) -> bool:
    try:
        return reports_mask_apart(env, env.reset(seed=seed)[1])
    except Exception:  # an environment that cannot be reset says so in training, with its index and its traceback
        return False


def _make_checked(env_id: str) -> gymnasium.Env:
    module, colon, name = env_id.rpartition(":")
    if colon:
        import_user_module(module)
    try:
        return gymnasium.make(env_id)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"{env_id} needs something that is not installed: {error}") from error
    except ModuleNotFoundError as error:  # in the module of its class, or in its constructor
        raise UserError(f"{env_id} cannot be made: {failed_import(error)}") from error
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.Error) as error:
        registers = f"The module {module} is there, but does not register it. " if colon else ""
        raise UserError(
            f'There is no environment "{env_id}". {registers}{nearest(name, gymnasium.registry)}'
        ) from error
