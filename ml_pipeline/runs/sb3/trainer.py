"""Trains with an algorithm of Stable-Baselines3, iteration by iteration, as a run needs it.

Stable-Baselines3 collects and learns in its own loop, `learn()`. At the start of each rollout, when the state is
consistent, a callback checks for the end of an iteration or a stop request.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, NamedTuple, NoReturn, Unpack

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.algorithms.callbacks import Callbacks
from ml_pipeline.models.rl.algorithms.interruption import interrupted_between_steps
from ml_pipeline.models.rl.algorithms.trainer import Every, Moments
from ml_pipeline.models.rl.algorithms.trainer_envs import EnvsOfAll
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.policies.threads_and_device import learning_threads
from ml_pipeline.models.rl.ranks import OneRank
from ml_pipeline.models.rl.rollout.collector import EpisodeTracker, plain_info
from ml_pipeline.models.rl.transitions import TrainingFailed
from ml_pipeline.monitoring.progress import ProgressBar
from ml_pipeline.monitoring.sinks import MetricsSink, Sinks
from ml_pipeline.runs.sb3.arguments import is_on_policy
from ml_pipeline.runs.sb3.model import WatchedEnvs, make_model
from ml_pipeline.runs.sb3.policy import SB3Policy
from ml_pipeline.runs.sb3.state import OwnGenerators, learner_state, load_learner_state, load_replay_state, replay_state
from ml_pipeline.runs.sb3.statistics import Clock, SB3Statistics, diverged, logged_figures

# A stop waits for the end of a rollout of at most this many steps, so that nothing is lost; a longer one is dropped.
_SHORT_ROLLOUT = 32
_training = threading.Lock()


class SB3Trainer:
    """A `Trainer` that uses the algorithm from a run's settings.

    An iteration is the fewest whole rollouts of the algorithm in which each environment takes n_steps. On one machine,
    the same seed and settings give the same weights for any number of workers and, except with gSDE, after any stop at
    the end of a rollout. Only one can train at a time in a process: they share its random generators.
    """

    def __init__(
        self,
        envs: ParallelEnv,
        run: RunConfig,
        ppo: PPOConfig,
        *,
        device: str = "cpu",
        sink: MetricsSink | None = None,
    ) -> None:
        """envs: with autoreset_mode SAME_STEP; `close` leaves them open.

        Raises UserError if settings, spaces and algorithm do not fit together.
        """
        self.iteration = 0
        self.total_timesteps = run.timesteps(ppo.n_steps)
        self._iteration_size = envs.num_envs * ppo.n_steps
        self._sink = sink
        self._seed = run.seed
        self._stop_requested = self._cut_short = False
        self._envs, self._watched = envs, WatchedEnvs(envs)
        self._generators = OwnGenerators(torch.device(device))
        with self._generators.in_use():
            self._model = make_model(run, ppo, self._watched, device=device)
        self.notices: tuple[str, ...] = self._model.said
        """Warnings of the algorithm, and the parts missing from a loaded state, as sentences."""
        self._on_policy = is_on_policy(type(self._model))
        self.policy = SB3Policy(self._model, run, envs.single_observation_space, envs.single_action_space)
        self._episodes = EpisodeTracker(envs.num_envs)
        self._clock = Clock(self._watched)
        self._callbacks = Callbacks()
        self._has_begun = False  # the current iteration, and before_rollout was called

    @property
    def envs(self) -> EnvsOfAll:
        """The environments, for callbacks: `call`, `get_attr` and `set_attr`."""
        return EnvsOfAll(self._envs, OneRank(), self._envs.num_envs)

    @property
    def global_step(self) -> int:
        """Transitions so far, over all environments."""
        return int(self._model.num_timesteps)

    @property
    def total_iterations(self) -> int:
        """The `iteration` at which training ends; for display."""
        return self.iteration + max(0, -(-(self.total_timesteps - self.global_step) // self._iteration_size))

    @property
    def finished(self) -> bool:
        """True after `total_timesteps`."""
        return self.global_step >= self.total_timesteps

    def train(
        self,
        *,
        callbacks: Sequence[object] | Callbacks = (),
        evaluate: Every[Mapping[str, float]] | None = None,
        save: Every[None] | None = None,
        progress: bool = True,
        **functions: Unpack[Moments],
    ) -> SB3Policy:
        """Train until `total_timesteps` or until `request_stop`; the arguments are those of `Trainer.train`.

        Callbacks are called once per iteration, `after_episode` and `after_rollout` after its updates.
        A stop takes effect at the end of a rollout of Stable-Baselines3. A rollout of more than 32 steps per
        environment stops between two steps instead, and loses its transitions. Raises UserError if another thread is
        training with Stable-Baselines3, and TrainingFailed if a loss is not finite.
        """
        if not _training.acquire(blocking=False):
            raise UserError(
                "Another thread of this process trains with Stable-Baselines3, and both would use the same random "
                "generators; train in separate processes."
            )
        try:
            called = callbacks if isinstance(callbacks, Callbacks) else Callbacks(callbacks, **functions)
            if called is not self._callbacks:
                self.attach(called)
            n_weights = sum(weights.numel() for weights in self._model.policy.parameters())
            batch_size = getattr(self._model, "batch_size", self._iteration_size)
            with (
                interrupted_between_steps(self.request_stop),
                self._progress_sink(progress) as progress_sink,
                learning_threads(n_weights, batch_size),
                self._generators.in_use(),
            ):
                self._learn(_Between(called, evaluate, save, progress_sink))
        finally:
            self._stop_requested = False
            _training.release()
        return self.policy

    def attach(self, callbacks: Callbacks) -> None:
        """As `PPOTrainer.attach`."""
        callbacks.go_on_from(self._callbacks)
        self._callbacks = callbacks
        self._episodes.keep_infos(callbacks.has("after_episode"))

    def change(self, **settings: float) -> NoReturn:
        """Raise UserError: Stable-Baselines3's algorithms keep their settings."""
        raise UserError(
            f"{type(self._model).__name__} of Stable-Baselines3 keeps its settings while it trains; leave change() out."
        )

    def request_stop(self) -> None:
        """Make `train` return soon; may be called from another thread or a signal handler."""
        self._stop_requested = True

    def close(self) -> None:
        """Does nothing: their creator closes the environments."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume, readable with torch's `weights_only` except pickled environments.

        "replay" is the replay buffer, as views that are valid until the next step; None if there is none.
        """
        environments, missing = None, "the run was stopped during a rollout, which is discarded."
        if self._model._last_obs is None:
            missing = "no step was taken yet."
        elif not self._cut_short:
            try:
                environments = list(self._envs.get_states())
            except StateNotAvailable as error:
                missing = str(error)
        return {
            "iteration": self.iteration,
            "global_step": self.global_step,
            "policy": self.policy.state_dict(),
            "learner": learner_state(self._model),
            "episodes": self._episodes.state_dict(),
            "elapsed_s": self._clock.elapsed_s(),
            "generators": self._generators.state_dict(),
            "environments": environments,
            "environments_missing": missing,
            "replay": replay_state(self._model),
            "has_begun": self._has_begun,
            **({"callbacks": state} if (state := self._callbacks.state_dict()) else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken: bit for bit if it holds environments and replay buffer."""
        environments = state["environments"]
        self.policy.load_state_dict(state["policy"])
        load_learner_state(self._model, state["learner"], environments_restored=environments is not None)
        self._episodes.load_state_dict(state["episodes"], running=environments is not None)
        self._generators.load_state_dict(state["generators"])
        self.iteration = state["iteration"]
        self._has_begun = state.get("has_begun", False)
        self._callbacks = Callbacks.to_come(state.get("callbacks", {}))
        self._clock.elapsed_before_s = state["elapsed_s"]
        if environments is not None:
            self._envs.set_states(environments)
        else:
            self._begin_other_episodes()
        if state.get("replay") is not None:
            load_replay_state(self._model, state["replay"])
        elif not self._on_policy and self.global_step:
            self.notices += ("The replay buffer starts empty because this checkpoint does not hold it.",)

    def _learn(self, between: "_Between") -> None:
        if self.finished or self._stop_requested:
            return
        if self._cut_short:  # the environments are in the middle of a dropped rollout
            self._cut_short = False
            self._begin_other_episodes()
        callback = LoopCallback(
            rollout_starts=lambda: self._rollout_starts(between), stepped=self._stepped, rollout_ends=self._clock.learns
        )
        self._clock.begin(self.global_step)
        try:
            # Without a log_interval the algorithm does not clear its logger, which is read here.
            left = self.total_timesteps - self.global_step
            self._model.learn(left, callback=callback, log_interval=None, reset_num_timesteps=False)
            self._end_iteration(between)
        except _Stopped:
            pass
        finally:
            self._clock.end()

    def _rollout_starts(self, between: "_Between") -> None:
        if self.global_step >= (self.iteration + 1) * self._iteration_size:
            self._end_iteration(between)
        if self._stop_requested:
            raise _Stopped
        if not self._has_begun:
            self._has_begun = True
            with self._generators.set_aside():
                between.called.before_rollout(self)
                between.called.check(OneRank())
        self._rollout_start_step = self.global_step
        self._clock.collects()

    def _stepped(self) -> None:
        self._episodes.count(
            self._watched.last_rewards[None],
            self._watched.last_dones[None],
            global_step=self.global_step - self._envs.num_envs,
            times=np.array([self._clock.elapsed_s()]),
        )
        if self._episodes.infos is not None:
            for i in np.flatnonzero(self._watched.last_dones).tolist():
                info = self._watched.last_infos[i]
                self._episodes.infos[self.global_step, i] = plain_info(
                    {name: value for name, value in info.items() if name != "terminal_observation"}
                )
        if self._stop_requested and self._has_long_rollouts():
            self._cut_short = True
            if self._on_policy:  # these steps are lost: not learned from, not stored
                self._model.num_timesteps = self._rollout_start_step
            raise _Stopped

    def _has_long_rollouts(self) -> bool:
        if self._on_policy:
            return bool(self._model.n_steps > _SHORT_ROLLOUT)
        frequency = self._model.train_freq
        return bool(frequency.unit.value == "episode" or frequency.frequency > _SHORT_ROLLOUT)

    def _begin_other_episodes(self) -> None:
        """Start new episodes, other than those at the start of the run."""
        self._model._last_obs = None
        if self.global_step:
            self._watched.seed(self._seed + self.global_step)  # as PPO's collector does
            unfinished, self._episodes = self._episodes, EpisodeTracker(self._envs.num_envs)
            self._episodes.load_state_dict(unfinished.state_dict(), running=False)

    def _end_iteration(self, between: "_Between") -> None:
        logger = self._model.logger
        own = logged_figures(logger.name_to_value)
        logger.name_to_value.clear()
        if (reason := diverged(own)) is not None:
            raise TrainingFailed(
                f"Training diverged after step {self.global_step:,}: {reason}. Lower the learning rate."
            )
        self.iteration += 1
        n_steps, time_spent = self._clock.take(self.global_step)
        statistics = SB3Statistics(
            iteration=self.iteration,
            global_step=self.global_step,
            n_steps=n_steps,
            episodes=tuple(self._episodes.finished),
            mean_return_100=self._episodes.recent_mean_return(),
            time_spent=time_spent,
            n_worker_restarts=self._envs.num_restarts,
            own=own,
        )
        called, self._has_begun = between.called, False
        with self._generators.set_aside():
            called.after_rollout(self, self._episodes.take_infos())
            called.after_iteration(self, statistics)
            further = called.take_metrics()
            evaluation: dict[str, float] = {}
            if between.evaluate and between.evaluate.due(self):
                began = time.perf_counter()
                evaluation |= between.evaluate.action(self)
                evaluating_s = time.perf_counter() - began
                called.after_evaluation(self, evaluation)
                evaluation["time/evaluating_s"] = evaluating_s
            further |= {**called.take_metrics(), **evaluation}
            metrics, episodes = {**statistics.metrics(), **further}, self._episodes.take_finished()
            for sink in (self._sink, between.progress_sink):
                if sink is not None:
                    sink.write(metrics, episodes)
            if between.save and between.save.due(self):
                between.save.action(self)
            called.check(OneRank())
        self._clock.start_iteration(self.global_step)

    def _progress_sink(self, progress: bool) -> AbstractContextManager[MetricsSink]:
        """A sink that shows progress; a no-op sink if `progress` is False."""
        if not progress:
            return closing(Sinks())
        return closing(ProgressBar(total_steps=self.total_timesteps, first_step=self.global_step))


class _Between(NamedTuple):
    """Callbacks between two iterations."""

    called: Callbacks
    evaluate: Every[Mapping[str, float]] | None
    save: Every[None] | None
    progress_sink: MetricsSink


class _Stopped(Exception):
    """Leaves the loop of Stable-Baselines3."""


class LoopCallback(BaseCallback):
    """Calls functions at the start of a rollout, after each step of the environments, and at the end of a rollout.

    Their exceptions end `learn()`. At the start of a rollout the state is consistent: all transitions are stored, and
    updates on them are done. At a step, the transitions of this step are not stored yet.
    """

    def __init__(
        self, *, rollout_starts: Callable[[], None], stepped: Callable[[], None], rollout_ends: Callable[[], None]
    ) -> None:
        super().__init__()
        self._rollout_starts = rollout_starts
        self._stepped = stepped
        self._rollout_ends = rollout_ends

    def _on_rollout_start(self) -> None:
        self._rollout_starts()

    def _on_step(self) -> bool:
        self._stepped()
        return True

    def _on_rollout_end(self) -> None:
        self._rollout_ends()
