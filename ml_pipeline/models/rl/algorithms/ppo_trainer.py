"""PPO: collect a rollout, estimate advantages, update the policy, report; again. T steps, N environments.

The trainer is handed environments, a policy, a configuration and a sink for metrics, and builds none of them.
Learning rate and clip range are those of the configuration in the first update; a linear schedule decays before the
second.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.alarms import check_policy
from ml_pipeline.models.rl.algorithms.device_rollout import DeviceCollector
from ml_pipeline.models.rl.algorithms.estimates import Estimates, with_normalized_values
from ml_pipeline.models.rl.algorithms.ppo_update import PPOUpdate, TrainingFailed, UpdateStatistics
from ml_pipeline.models.rl.algorithms.rollout import RolloutCollector
from ml_pipeline.models.rl.algorithms.threads import learning_threads
from ml_pipeline.models.rl.core.device_seeding import device_generator
from ml_pipeline.models.rl.core.seeding import random_generator
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.core.vec_errors import StateNotAvailable
from ml_pipeline.models.rl.networks.policy import Policy
from ml_pipeline.monitoring.sink import MetricsSink

Result = TypeVar("Result")


class TimeSpent(NamedTuple):
    """Where the seconds of one iteration went; they add up to it."""

    acting_s: float
    """Choosing actions, and all that a rollout does with what the environments give."""
    stepping_s: float
    """In the environments' step(), as far as this process had something to do there."""
    waiting_s: float
    """For workers."""
    learning_s: float


@dataclass(frozen=True)
class IterationStatistics:
    """One rollout and one update. Episode figures are means over the episodes that ended in it, NaN where none did."""

    iteration: int
    global_step: int
    n_envs: int
    n_steps: int
    n_completed_episodes: int
    episode_return: float
    episode_length: float
    mean_return_100: float
    explained_variance: float
    update: UpdateStatistics
    time_spent: TimeSpent
    n_worker_restarts: int
    """Since the environments were made."""

    def metrics(self) -> dict[str, float]:
        """The same under the names that a metrics file uses."""
        return {
            "time/iteration": self.iteration,
            "time/global_step": self.global_step,
            "time/steps_per_second": self.n_envs * self.n_steps / sum(self.time_spent),
            **{f"time/{name}": seconds for name, seconds in self.time_spent._asdict().items()},
            "rollout/n_worker_restarts": self.n_worker_restarts,
            "rollout/n_completed_episodes": self.n_completed_episodes,
            "rollout/episode_return": self.episode_return,
            "rollout/episode_length": self.episode_length,
            "rollout/mean_return_100": self.mean_return_100,
            "train/explained_variance": self.explained_variance,
            **{f"train/{name}": value for name, value in self.update._asdict().items()},
        }


class Every(NamedTuple, Generic[Result]):
    """Something that `train` does after every `interval` iterations, and after the last."""

    interval: int
    action: Callable[["PPOTrainer"], Result]

    def due(self, trainer: "PPOTrainer") -> bool:
        return trainer.iteration % self.interval == 0 or trainer.iteration == trainer.total_iterations


Hook = Callable[["PPOTrainer", IterationStatistics], Mapping[str, float] | None]
"""Called after each iteration; what it returns are metrics of the user's own."""


class PPOTrainer:
    """Trains a policy by PPO (Schulman et al. 2017, arXiv:1707.06347).

    All that is random is drawn from generators derived from `seed`: on one machine the result depends on the seed and
    the configuration alone.
    """

    def __init__(
        self,
        envs: VectorEnv | gymnasium.Env,
        policy: Policy,
        config: PPOConfig,
        *,
        total_iterations: int,
        seed: int = 0,
        sink: MetricsSink | None = None,
    ) -> None:
        """envs: environments that reset in the step that ends an episode, or a single one; with a `device`, ones that
        take and give tensors there, where the policy then must be and all else takes place. total_iterations: where
        `train` ends, and the length that schedules are stretched to.

        Raises UserError where the environments reset in another way, or a minibatch is larger than a rollout.
        """
        vector = envs if isinstance(envs, VectorEnv) else SerialEnv([lambda: envs])
        if vector.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise UserError(
                "PPOTrainer needs environments that reset in the step that ends an episode, but these have "
                f"{vector.metadata.get('autoreset_mode')}; make them with autoreset_mode=AutoresetMode.SAME_STEP."
            )
        config.check_batch(vector.num_envs)
        self.policy = policy
        self.config = config
        self.total_iterations = total_iterations
        self.iteration = 0
        self._envs: Any = vector
        self._sink = sink
        self._collector: RolloutCollector | DeviceCollector
        if getattr(vector, "device", None) is None:
            self._collector = RolloutCollector(vector, policy, config, seed=seed)
            self._update = PPOUpdate(policy, config, random_generator(seed, "minibatches"))
        else:
            self._collector = DeviceCollector(vector, policy, config, seed=seed)
            self._update = PPOUpdate(policy, config, device_generator(seed, "minibatches", policy.device))
        self._stop_requested = False

    @property
    def global_step(self) -> int:
        """Transitions taken in all environments together."""
        return self._collector.global_step

    def train_episode(self) -> IterationStatistics:
        """One rollout of n_steps in the only environment, then one update."""
        if self._envs.num_envs != 1:
            raise UserError(
                f"train_episode() is for one environment, but there are {self._envs.num_envs}; "
                "call train_episode_vectorized()."
            )
        return self.train_episode_vectorized()

    def train_episode_vectorized(self) -> IterationStatistics:
        """One rollout of n_steps in each environment, then one update of n_epochs passes over it."""
        statistics = self._iterate(should_stop=lambda: False)
        assert statistics is not None
        self._report(statistics, {})
        return statistics

    def train(
        self,
        *,
        evaluate: Every[Mapping[str, float]] | None = None,
        save: Every[None] | None = None,
        after_iteration: Hook | None = None,
    ) -> bool:
        """Train until `total_iterations` are done or `request_stop` is called; return whether all were done.

        What `evaluate` and `after_iteration` return is written with the metrics of the iteration; `save` comes after
        they are written. Any of the three may call `request_stop`.
        A stop takes effect before the environments' next step. `state_dict` then holds the part of the rollout that is
        there, and a trainer that loads it goes on in mid-rollout.
        """
        while self.iteration < self.total_iterations:
            statistics = self._iterate(should_stop=lambda: self._stop_requested)
            if statistics is None:
                return False
            own = after_iteration(self, statistics) if after_iteration else None
            evaluation = evaluate.action(self) if evaluate and evaluate.due(self) else {}
            self._report(statistics, {**(own or {}), **evaluation})
            if save and save.due(self):
                save.action(self)
        return True

    def request_stop(self) -> None:
        """Let `train` return before the next step; may be called from a signal handler."""
        self._stop_requested = True

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs to go on, readable with torch's `weights_only`.

        "environments" is None where they cannot be pickled, and "environments_missing" then says why.
        """
        environments, missing = None, ""
        try:
            environments = [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in self._envs.get_states()]
        except (AttributeError, StateNotAvailable) as error:
            missing = str(error)
        return {
            "iteration": self.iteration,
            "policy": self.policy.state_dict(),
            "update": self._update.state_dict(),
            "collector": self._collector.state_dict(),
            "environments": environments,
            "environments_missing": missing,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken: bit for bit where it holds the environments, else with new episodes.

        Raises UserError, and changes nothing, where the policy or what a rollout consists of differs.
        """
        environments = state["environments"]
        self._collector.check_state_dict(state["collector"])
        self.policy.load_state_dict(state["policy"])
        self._update.load_state_dict(state["update"])
        self.iteration = state["iteration"]
        if environments is not None:
            self._envs.set_states([environment.numpy().tobytes() for environment in environments])
        self._collector.load_state_dict(state["collector"], environments_restored=environments is not None)

    def _iterate(self, *, should_stop: Callable[[], bool]) -> IterationStatistics | None:
        started, stepped_s, waited_s = time.perf_counter(), self._collector.stepping_s, self._waited_s()
        last_good = {"policy": self.policy.state_dict(), "update": self._update.state_dict()}
        try:
            if not self._collector.collect(should_stop=should_stop):
                return None
            collected = time.perf_counter()
            stepped_s, waited_s = self._collector.stepping_s - stepped_s, self._waited_s() - waited_s
            estimates, update = self._learn()
        except TrainingFailed as error:
            self.policy.load_state_dict(last_good["policy"])
            self._update.load_state_dict(last_good["update"])
            raise TrainingFailed(f"{error} The policy is again as it was after iteration {self.iteration}.") from error
        time_spent = TimeSpent(
            acting_s=collected - started - stepped_s,
            stepping_s=stepped_s - waited_s,
            waiting_s=waited_s,
            learning_s=time.perf_counter() - collected,
        )
        self.iteration += 1
        episodes = self._collector.episodes.finished
        return IterationStatistics(
            iteration=self.iteration,
            global_step=self.global_step,
            n_envs=self._envs.num_envs,
            n_steps=self.config.n_steps,
            n_completed_episodes=len(episodes),
            episode_return=_mean([episode.episode_return for episode in episodes]),
            episode_length=_mean([episode.length for episode in episodes]),
            mean_return_100=self._collector.episodes.recent_mean_return(),
            explained_variance=estimates.explained_variance,
            update=update,
            time_spent=time_spent,
            n_worker_restarts=getattr(self._envs, "num_restarts", 0),
        )

    def _waited_s(self) -> float:
        return getattr(self._envs, "waited_s", 0.0)

    def _learn(self) -> tuple[Estimates, UpdateStatistics]:
        config = self.config
        n_weights = sum(parameter.numel() for parameter in self.policy.network.parameters())
        with learning_threads(n_weights, config.minibatch_size):
            estimates = self._collector.estimates()
            check_policy(estimates.batch.inputs, self._envs.num_envs)
            batch = estimates.batch
            if self.policy.value_normalizer is not None:
                batch = with_normalized_values(batch, self.policy)
            return estimates, self._update(batch, progress=self.iteration / self.total_iterations)

    def _report(self, statistics: IterationStatistics, further: Mapping[str, float]) -> None:
        episodes = self._collector.episodes.take_finished()
        if self._sink is not None:
            self._sink.write({**statistics.metrics(), **further}, episodes)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
