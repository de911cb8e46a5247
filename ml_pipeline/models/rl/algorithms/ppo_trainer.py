"""PPO: collect a rollout, estimate advantages, update the policy, report; again. T steps, N environments.

Learning rate and clip range are those of the configuration in the first update; a linear schedule decays before the
second.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.interruption import interrupted_between_steps
from ml_pipeline.models.rl.algorithms.iteration_statistics import IterationStatistics, TimeSpent
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.models.rl.policies.policy import Policy, choose_device
from ml_pipeline.models.rl.rollout.collector import Collector
from ml_pipeline.models.rl.rollout.device_collector import DeviceCollector
from ml_pipeline.models.rl.rollout.device_seeding import device_generator
from ml_pipeline.models.rl.rollout.estimates import Estimates, with_normalized_values
from ml_pipeline.models.rl.rollout.finite_checks import check_policy
from ml_pipeline.models.rl.rollout.host_collector import RolloutCollector
from ml_pipeline.models.rl.update.ppo_update import PPOUpdate, TrainingFailed, UpdateStatistics
from ml_pipeline.models.rl.update.threads import learning_threads
from ml_pipeline.monitoring.sink import MetricsSink
from ml_pipeline.runtime.seeding import random_generator

Result = TypeVar("Result")


class Every(NamedTuple, Generic[Result]):
    """Something that `train` does after every `interval` iterations, and after the last."""

    interval: int
    action: Callable[["PPOTrainer"], Result]

    def due(self, trainer: "PPOTrainer") -> bool:
        return trainer.iteration % self.interval == 0 or trainer.finished


Hook = Callable[["PPOTrainer", IterationStatistics], Mapping[str, float] | None]
"""Called after each iteration; what it returns are metrics of the user's own."""


class PPOTrainer:
    """Trains a policy by PPO (Schulman et al. 2017, arXiv:1707.06347).

    All that is random is drawn from generators derived from `seed`: on one machine the result depends on the seed and
    the configuration alone.

    >>> import gymnasium
    >>> from ml_pipeline.models.rl.algorithms.evaluation import evaluate
    >>> make_env = lambda: gymnasium.make("CartPole-v1")
    >>> policy = PPOTrainer([make_env] * 4, PPOConfig(n_steps=64), total_timesteps=1_000).train()
    >>> evaluate(make_env(), policy.act, n_episodes=3, seed=0).mean_return > 5
    True
    """

    def __init__(
        self,
        envs: Sequence[EnvFactory] | VectorEnv | gymnasium.Env,
        config: PPOConfig | None = None,
        *,
        total_timesteps: int = 1_000_000,
        policy: Policy | None = None,
        device: str | None = None,
        seed: int = 0,
        sink: MetricsSink | None = None,
    ) -> None:
        """envs: functions that make an environment each, which are run side by side, as many at once as pays, and
        closed by `close`; or environments that reset in the step that ends an episode, or a single one, left open.
        Some have a `device`, where they take and give tensors: all else then takes place there too.
        config: every hyperparameter; None is the defaults. total_timesteps: over all environments, rounded up to whole
        iterations: where `train` ends, and the length that schedules are stretched to. policy: what to train; None is
        a new one as the configuration says, on `device`, or else where the environments are, or on the CPU.
        sink: where metrics go.

        Raises UserError where settings, spaces, device and environments do not fit together.
        """
        if total_timesteps < 1:
            raise UserError(f"total_timesteps must be at least 1, but got {total_timesteps}.")
        if policy is not None and device is not None:
            raise UserError("A policy is on its device already; pass either policy or device, not both.")
        self.config = config = config or PPOConfig()
        self.iteration = 0
        self._sink = sink
        self._stop_requested = False
        self._envs: Any = _vectorized(envs)
        self._closes_envs = isinstance(envs, Sequence)
        try:
            config.check_batch(self._envs.num_envs)
            self.total_iterations = -(-total_timesteps // (self._envs.num_envs * config.n_steps))
            self.policy = policy or self._new_policy(device, seed)
            self._collector, self._update = self._parts(seed)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments, if they were made here; the policy goes on acting. May be called twice."""
        if self._closes_envs:
            self._envs.close()

    @property
    def finished(self) -> bool:
        """Whether all iterations are done."""
        return self.iteration >= self.total_iterations

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
    ) -> Policy:
        """Train until all iterations are done or `request_stop` is called; return the policy, ready to act.

        What `evaluate` and `after_iteration` return is written with the metrics of the iteration, and how long
        `evaluate` took as "time/evaluating_s"; `save` comes after they are written. Any of the three may call
        `request_stop`.
        A stop takes effect before the environments' next step. `state_dict` then holds the part of the rollout that is
        there, and a trainer that loads it goes on in mid-rollout, as does this one in another call. Ctrl-C is such a
        stop too, after which KeyboardInterrupt is raised.
        """
        try:
            with interrupted_between_steps(self.request_stop):
                while not self.finished:
                    statistics = self._iterate(should_stop=lambda: self._stop_requested)
                    if statistics is None:
                        break
                    own = after_iteration(self, statistics) if after_iteration else None
                    evaluation = self._timed(evaluate) if evaluate and evaluate.due(self) else {}
                    self._report(statistics, {**(own or {}), **evaluation})
                    if save and save.due(self):
                        save.action(self)
        finally:
            self._stop_requested = False
        return self.policy

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

    def _new_policy(self, device: str | None, seed: int) -> Policy:
        where = choose_device(device or str(getattr(self._envs, "device", None) or "cpu"))
        spaces = self._envs.single_observation_space, self._envs.single_action_space
        return Policy(*spaces, self.config, seed=seed, device=where)

    def _parts(self, seed: int) -> tuple[Collector, PPOUpdate]:
        """What collects and what learns, each with a generator of its own."""
        envs, policy, config = self._envs, self.policy, self.config
        if getattr(envs, "device", None) is None:
            collector: Collector = RolloutCollector(envs, policy, config, seed=seed)
            return collector, PPOUpdate(policy, config, random_generator(seed, "minibatches"))
        collector = DeviceCollector(envs, policy, config, seed=seed)
        return collector, PPOUpdate(policy, config, device_generator(seed, "minibatches", policy.device))

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

    def _timed(self, evaluate: Every[Mapping[str, float]]) -> dict[str, float]:
        """What an evaluation says, and how long it took."""
        began = time.perf_counter()
        metrics = evaluate.action(self)
        return {**metrics, "time/evaluating_s": time.perf_counter() - began}

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


def _vectorized(envs: Sequence[EnvFactory] | VectorEnv | gymnasium.Env) -> VectorEnv:
    if isinstance(envs, Sequence) and not isinstance(envs, str):
        return ParallelEnv(envs, copy=False)  # what is kept of an observation is copied
    if isinstance(envs, gymnasium.Env):
        return SerialEnv([lambda: envs])
    if not isinstance(envs, VectorEnv):
        raise UserError(
            'PPOTrainer needs functions that make an environment each, such as [lambda: gymnasium.make("CartPole-v1")] '
            f"* 8, or environments, but got {envs!r}."
        )
    if envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
        raise UserError(
            "PPOTrainer needs environments that reset in the step that ends an episode, but these have "
            f"{envs.metadata.get('autoreset_mode')}; make them with autoreset_mode=AutoresetMode.SAME_STEP."
        )
    return envs


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
