"""Training in a Gymnasium environment: makes it, scores a policy in it, reports on it."""

from collections.abc import Callable
from contextlib import closing
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self

import gymnasium

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.algorithms.evaluation import EvaluationResult, evaluate, random_actions
from ml_pipeline.models.rl.preprocessing.action_mask import ActionMaskInObservation
from ml_pipeline.runs.environments.first_reset import reports_mask_at_reset
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.gym_report import result_sentence, write_gym_report

Act = Callable[[Any], Any]

_TRADING_IDS = "ml_pipeline.trading.gym_ids"

EVALUATION_SEED_OFFSET = 1_000_000
"""Evaluation plays other episodes than training, whose environment i begins with seed + i."""


class GymTask:
    """A Gymnasium environment, played in whole episodes."""

    def __init__(
        self, env: GymEnv | str, *, eval_episodes: int, seed: int, step_timeout_s: float | None = None
    ) -> None:
        """env: the environment, or its id alone. step_timeout_s: for its construction and its first reset.

        Raises UserError if the environment cannot be made or reset.
        """
        self._env = env = GymEnv(env_id=env) if isinstance(env, str) else env
        self.name = env.env_id.replace("/", "-").replace(":", "-")
        self._eval_episodes = eval_episodes
        self._seed = seed
        self._mask_outside_observation = reports_mask_at_reset(env, seed=seed, step_timeout_s=step_timeout_s)

    @property
    def env_id(self) -> str:
        return self._env.env_id

    @property
    def notices(self) -> tuple[str, ...]:
        """A warning for ids of trading: they hold no bars out for evaluation."""
        module, _, name = self.env_id.rpartition(":")
        spec = gymnasium.registry.get(name)
        if module != _TRADING_IDS and not (spec and str(spec.entry_point).startswith(f"{_TRADING_IDS}:")):
            return ()
        return (
            f"{self.env_id} is evaluated on the bars that it trains on, so its figures say nothing about other bars; "
            "to hold bars out, train with --data, or in environments of create_vectorized_env.",
        )

    @classmethod
    def of(cls, run: RunConfig, *, eval_episodes: int | None = None) -> Self:
        """The task that a run's settings name. eval_episodes: in place of the run's."""
        timeout = run.step_timeout_s
        return cls(
            GymEnv.of(run), eval_episodes=eval_episodes or run.eval_episodes, seed=run.seed, step_timeout_s=timeout
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._env.env_id})"

    def with_seed(self, seed: int) -> "GymTask":
        """The same task, with another seed."""
        same = copy(self)
        same._seed = seed
        return same

    def train_env_fns(self, n: int) -> list[Callable[[], gymnasium.Env]]:
        return [partial(_make, self._env, self._mask_outside_observation, training=True)] * n

    def batched_train_env(self, n: int, *, device: str | None = None) -> NoReturn:
        """Raises UserError: only trading has it."""
        raise UserError(
            f'vec_env "batched" is for trading, but the environment is {self._env.env_id}; take "parallel" or "serial".'
        )

    def evaluation_env(self, *, render_mode: str | None = None) -> gymnasium.Env:
        """render_mode: "rgb_array" or "human". Raises UserError where the environment cannot be rendered that way."""
        return _make(self._env, self._mask_outside_observation, render_mode=render_mode)

    def score(self, act: Act) -> float:
        """Mean return of an evaluation: what the best policy is chosen by."""
        return self._evaluate(act).mean_return

    def report(self, act: Act, folder: Path) -> str:
        """Evaluate beside random actions, write the files of `write_gym_report` into `folder`, and say the result in a
        line."""
        result = self._evaluate(act)
        random = self._of_random_actions(most_steps=max(1_000, 10 * sum(result.lengths)))
        write_gym_report(folder, self._env.env_id, result, random, notices=self.notices)
        return result_sentence(self._env.env_id, result, random)

    def state(self) -> dict[str, Any]:
        """Nothing was fitted to data, so there is nothing to save."""
        return {}

    def _evaluate(self, act: Act) -> EvaluationResult:
        with closing(self.evaluation_env()) as env:
            return evaluate(env, act, n_episodes=self._eval_episodes, seed=self._seed + EVALUATION_SEED_OFFSET)

    def _of_random_actions(self, *, most_steps: int) -> EvaluationResult | None:
        """In the same episodes. most_steps: where nothing limits an episode, random actions may never end it."""
        seed = self._seed + EVALUATION_SEED_OFFSET
        with closing(self.evaluation_env()) as env:
            act = random_actions(env.action_space, seed=seed)
            result = evaluate(env, act, n_episodes=self._eval_episodes, seed=seed, most_steps=most_steps)
        return result if result.returns else None


def _make(
    env: GymEnv, mask_outside_observation: bool, *, training: bool = False, render_mode: str | None = None
) -> gymnasium.Env:
    made = env.make(training=training, render_mode=render_mode)
    return ActionMaskInObservation(made) if mask_outside_observation else made
