"""PPO: collect a rollout, estimate advantages, update the policy, report; repeat.

Schedules follow the share of `total_timesteps` before the rollout. The first update therefore has the full learning
rate and clip range; a linear schedule decays from the second update on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from numbers import Real
from typing import Any, Self, Unpack

import gymnasium
from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import function_shown
from ml_pipeline.models.rl.algorithms.callbacks import Callbacks
from ml_pipeline.models.rl.algorithms.interruption import interrupted_between_steps
from ml_pipeline.models.rl.algorithms.iteration_statistics import IterationClock, IterationStatistics, mean_or_nan
from ml_pipeline.models.rl.algorithms.trainer import Every, Moments
from ml_pipeline.models.rl.algorithms.trainer_envs import (
    EnvsOfAll,
    carry_over,
    check_states,
    device_of,
    minibatch_generator,
    new_collector,
    restore_states,
    states_of_all,
    vectorized,
)
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.policies.threads_and_device import choose_device, one_thread
from ml_pipeline.models.rl.ranks import OneRank, Ranks
from ml_pipeline.models.rl.rollout.estimates import Estimates, check_policy, with_normalized_values
from ml_pipeline.models.rl.transitions import TrainingFailed
from ml_pipeline.models.rl.update.ppo_update import CHANGEABLE, PPOUpdate, UpdateStatistics, fastest_steps
from ml_pipeline.monitoring.progress import ProgressBar
from ml_pipeline.monitoring.sinks import MetricsSink, Sinks


class PPOTrainer:
    """Trains a policy by PPO (Schulman et al. 2017, arXiv:1707.06347). Implements `Trainer`.

    All randomness comes from `seed`. On one machine, the same seed and configuration give the same weights, bit for
    bit, for any number of workers and any interruptions.

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
        ranks: Ranks | None = None,
    ) -> None:
        """Set up training; nothing is stepped yet.

        envs: functions that make one environment each. The trainer steps them in parallel, with the number of workers
        that is fastest, and closes them in `close`. Or a single environment, or a Gymnasium vector environment, which
        may return arrays of another library; the trainer does not close these. Every autoreset mode works: steps that
        only reset (NEXT_STEP) are left out, and the trainer resets what does not reset itself (DISABLED). If a vector
        environment has a `device`, it takes and returns tensors on that device, and the policy acts and learns there.
        config: all hyperparameters; None means the defaults.
        total_timesteps: transitions of all environments, rounded up to whole rollouts. `train` ends there, and so do
        schedules.
        policy: the policy to train; None makes a new one from the configuration.
        device: the device of the new policy; None means the device of the environments, or else the CPU.
        sink: receives the metrics of every iteration.
        ranks: the group of ranks that trains this policy; None means this process only. Several ranks end with the
        weights of a single process with `normalize_update` "rollout". Every rank makes a trainer with the same
        arguments. Functions are for all environments, and each rank calls only its own. A vector environment has only
        the rows of its rank (`rows_of`). All ranks call `train`, `state_dict`, `load_state_dict` and `replace_envs`
        together.

        Raises UserError if settings, spaces, device and environments do not fit together.
        """
        if total_timesteps < 1:
            raise UserError(f"total_timesteps must be at least 1, but got {total_timesteps}.")
        if policy is not None and device is not None:
            raise UserError("A policy already has a device; pass either policy or device, not both.")
        self.config = self._first_config = config = config or PPOConfig()
        self.iteration = 0
        self._callbacks = Callbacks()
        self._seed = seed
        self._sink = sink
        self._ranks = ranks = ranks or OneRank()
        self._stop = ranks.new_stop()
        self._envs: Any = vectorized(envs, ranks)
        self._closes_envs = isinstance(envs, Sequence)
        self._requested_timesteps = total_timesteps
        try:
            self.policy = policy or self._new_policy(device, seed)
            self._collector = new_collector(self._envs, self.policy, config, seed=seed, ranks=ranks)
            config.check_batch(self._collector.num_envs)
            generator = minibatch_generator(self._envs, self.policy, seed=seed)
            self._update = PPOUpdate(self.policy, config, fastest_steps(self.policy, config, generator, ranks))
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        progress = f"step {self.global_step:,} of {self.total_timesteps:,}"
        return f"{type(self).__name__}({self._envs!r}, {self.policy!r}, {progress})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the environments that the trainer made. The policy can still act. May be called twice."""
        self._stop.close()
        self._close_own_envs()

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences to show once, at the start."""
        user, found = self.policy.user_network, []
        if user is not None:  # 8 environments, 256 steps, one core: 0.30 s per iteration, and 0.10 s compiled
            found.append(
                f"The network {user.name} acts and learns in torch; it is not compiled. With two layers of 64 units, "
                "CartPole takes 3 times as long as compiled."
            )
        if self.config.use_sde:  # 4 environments, 1,024 steps, minibatches of 64: 8 and 10.5 times
            found.append("With use_sde, a policy is not compiled; Pendulum takes 9 times as long as without it.")
        return tuple(found)

    @property
    def envs(self) -> EnvsOfAll:
        """The environments, for callbacks: `call`, `get_attr` and `set_attr`."""
        return EnvsOfAll(self._envs, self._ranks, self._collector.num_envs)

    @property
    def global_step(self) -> int:
        """Transitions so far, over all environments."""
        return self._collector.global_step

    @property
    def total_timesteps(self) -> int:
        """The `global_step` at which training is finished: the requested number, rounded up to whole rollouts."""
        start = self._collector.rollout_start_step
        return start + self._rollouts_left() * self._rollout_size

    @property
    def total_iterations(self) -> int:
        """The `iteration` at which training is finished with the present number of environments; for display."""
        return self.iteration + self._rollouts_left()

    @property
    def finished(self) -> bool:
        """Whether `total_timesteps` have been reached."""
        return self.global_step >= self.total_timesteps

    @property
    def mid_rollout(self) -> bool:
        """Whether training stopped within a rollout, which the next call continues."""
        return not self._collector.buffer.full

    def train_episode(self) -> IterationStatistics:
        """Collect one rollout of n_steps in a single environment, then update.

        Raises UserError if there are several environments.
        """
        if self._collector.num_envs != 1:
            raise UserError(
                f"train_episode() is for one environment, but there are {self._collector.num_envs}; "
                "call train_episode_vectorized()."
            )
        return self.train_episode_vectorized()

    def train_episode_vectorized(self) -> IterationStatistics:
        """Collect one rollout of n_steps in each environment, then update with n_epochs passes over it."""
        statistics = self._iterate(Callbacks(), should_stop=lambda: False)
        assert statistics is not None
        self._report(statistics, {}, Sinks())
        return statistics

    def train(
        self,
        *,
        callbacks: Sequence[object] | Callbacks = (),
        evaluate: Every[Mapping[str, float]] | None = None,
        save: Every[None] | None = None,
        progress: bool = True,
        **functions: Unpack[Moments],
    ) -> Policy:
        """Train until `total_timesteps`, or until `request_stop` is called; return the policy, ready to act.

        callbacks: objects with some of the methods before_rollout(trainer), after_episode(trainer, episode),
        after_rollout(trainer), after_iteration(trainer, statistics) and after_evaluation(trainer, metrics). functions:
        the same as keywords. `episode` is an `EpisodeRecord` with the last info; `after_episode` is called when the
        rollout is full. A dict of numbers that one returns is written with the metrics of the iteration; of
        `after_episode`, the mean over the iteration's episodes. They may use `envs`, `change` and `request_stop`. An
        object with `state_dict` and `load_state_dict` is part of the trainer's state. With ranks, every rank calls all
        of them, and rank 0 writes the metrics; all values that they receive are equal, except times.
        evaluate: called at its interval, after `after_iteration`; its duration is written as "time/evaluating_s". save:
        called at its interval, after the metrics are written to the sink. Both may call `request_stop`.
        progress: show a progress bar on stderr if that is a terminal or belongs to a notebook.

        A stop takes effect before the next step of the environments. To continue within the rollout, call `train`
        again, or save `state_dict` and load it into another trainer. Ctrl-C stops in the same way, and `train` then
        raises KeyboardInterrupt. Raises CallbackFailed, after the iteration, if a callback raised an error or did not
        return numbers.
        """
        called = callbacks if isinstance(callbacks, Callbacks) else Callbacks(callbacks, **functions)
        if called is not self._callbacks:
            self.attach(called)
        self._stop.begin()
        try:
            with interrupted_between_steps(self.request_stop), self._progress_sink(progress) as progress_sink:
                while not self.finished:
                    statistics = self._iterate(called, should_stop=self._stop.is_due)
                    if statistics is None:
                        break
                    called.after_iteration(self, statistics)
                    own = called.take_metrics()
                    evaluation = self._timed(evaluate, called) if evaluate and evaluate.due(self) else {}
                    self._report(statistics, {**own, **called.take_metrics(), **evaluation}, progress_sink)
                    if save and save.due(self):
                        save.action(self)
                    called.check(self._ranks)
        finally:
            self._stop.end()
        return self.policy

    def attach(self, callbacks: Callbacks) -> None:
        """Pass the saved states to these callbacks, and include theirs in `state_dict` from now on; `train` does this.

        Raises UserError if a callback with a saved state is missing.
        """
        callbacks.go_on_from(self._callbacks)
        self._callbacks = callbacks
        self._collector.episodes.keep_infos(callbacks.has("after_episode"))

    def change(self, **settings: float) -> None:
        """Change settings from the next update on: learning_rate, clip_range, ent_coef, vf_coef or target_kl.

        A schedule goes on from the new value as if it had been the first. The trainer's state holds the change; if a
        trainer with another value of its own loads the state, its own value counts. With ranks, all call this together.
        Raises UserError for another name or an invalid value, and changes nothing.
        """
        for name, value in settings.items():
            if name not in CHANGEABLE:
                raise UserError(f"{name} cannot be changed during training. {nearest(name, CHANGEABLE)}")
            if not isinstance(value, Real):
                raise UserError(f"{name} must be a number, but got {value!r}.")
        plain: dict[str, Any] = {name: float(value) for name, value in settings.items()}  # checkpoints take no NumPy
        self.config = replace(self.config, **plain)
        self._update.use(self.config)

    def request_stop(self) -> None:
        """Make `train` return before the next step; may be called from another thread or a signal handler.

        With ranks, any rank may call this; `train` then returns on all ranks before the same step.
        """
        self._stop.request()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to resume.

        "environments" holds one state per environment: plain data, or a `PickledState` if an environment can only be
        pickled. torch loads plain data with `weights_only=True`; a `PickledState` needs `weights_only=False`, because
        unpickling runs code. The entry is None if the environments cannot be saved at all; "environments_missing" is
        then the reason.
        """
        environments, missing = states_of_all(self._envs, self._ranks)
        callbacks = self._callbacks.state_dict()
        return {
            "iteration": self.iteration,
            "policy": self.policy.state_dict(),
            "update": self._update.state_dict(),
            "collector": self._collector.state_dict(),
            "environments": environments,
            "environments_missing": missing,
            **{name: part for name, part in (("changed", self._changed()), ("callbacks", callbacks)) if part},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`: bit for bit if it holds the environments, else with new episodes.

        The state of a finished run continues to the new end if this trainer has more `total_timesteps`.
        Raises UserError, and changes nothing, if the policy, the number of environments or n_steps differ, or if a
        state of an environment is neither plain data nor a `PickledState`.
        """
        environments = state["environments"]
        self._collector.check_state_dict(state["collector"])
        check_states(environments, self._collector.num_envs, self._ranks)
        self.policy.load_state_dict(state["policy"])
        self._update.load_state_dict(state["update"])
        self.iteration = state["iteration"]
        self.config = self._first_config
        own = {name: _text_or_number(getattr(self.config, name)) for name in CHANGEABLE}
        self.change(**{name: now for name, (first, now) in state.get("changed", {}).items() if first == own[name]})
        self._callbacks = Callbacks.to_come(state.get("callbacks", {}))
        if environments is not None:
            restore_states(self._envs, environments, self._ranks)
        self._collector.load_state_dict(state["collector"], environments_restored=environments is not None)

    def replace_envs(self, envs: Sequence[EnvFactory] | VectorEnv | gymnasium.Env) -> str:
        """Train in these environments from the next rollout on. Call this between two iterations.

        envs: as for the constructor; there may be more or fewer than before. Earlier environments that the trainer made
        are closed. Environment i continues the episode of the earlier environment i; additional ones are reset with
        seed + i. Environments that are left out count as truncated: their last values were bootstrapped, and their
        unfinished episodes are not reported.

        Returns "" or, if the states cannot be carried over and all environments begin new episodes, the reason. Raises
        UserError and keeps the earlier environments within a rollout, or if the new ones do not fit. Raises
        RescaleLater, a UserError, if a worker was just replaced; train one more iteration first. With ranks, all call
        this together, and environments move to the ranks that then own their indices.
        """
        if self.mid_rollout:
            raise UserError(
                "Environments are replaced between two iterations, but a rollout is under way; call train() first."
            )
        later = vectorized(envs, self._ranks)
        try:
            collector = new_collector(later, self.policy, self.config, seed=self._seed, ranks=self._ranks)
            self.config.check_change(collector.num_envs)
            missing = carry_over(self._envs, self._collector, later, collector, ranks=self._ranks)
        except BaseException:
            if isinstance(envs, Sequence):
                later.close()
            raise
        self._close_own_envs()
        self._envs, self._collector, self._closes_envs = later, collector, isinstance(envs, Sequence)
        return missing

    def _new_policy(self, device: str | None, seed: int) -> Policy:
        where = choose_device(device or str(device_of(self._envs) or "cpu"))
        spaces = self._envs.single_observation_space, self._envs.single_action_space
        return Policy(*spaces, self.config, seed=seed, device=where)

    def _close_own_envs(self) -> None:
        if self._closes_envs:
            self._envs.close()

    @property
    def _rollout_size(self) -> int:
        """Transitions in one rollout."""
        return self._collector.num_envs * self.config.n_steps

    def _rollouts_left(self) -> int:
        """Rollouts until the end, including the current one; negative if training has passed the end."""
        return -(-(self._requested_timesteps - self._collector.rollout_start_step) // self._rollout_size)

    def _changed(self) -> dict[str, list[Any]]:
        """The settings that `change` changed, each with its first value and its value now."""
        values = {
            name: [_text_or_number(getattr(each, name)) for each in (self._first_config, self.config)]
            for name in CHANGEABLE
        }
        return {name: [first, now] for name, (first, now) in values.items() if first != now}

    def _iterate(self, callbacks: Callbacks, *, should_stop: Callable[[], bool]) -> IterationStatistics | None:
        if callbacks.has("before_rollout") and not self.mid_rollout:
            if should_stop():  # what comes before this moment is not over, such as an evaluation that was cut short
                return None
            callbacks.before_rollout(self)
            callbacks.check(self._ranks)
        start_step = self._collector.rollout_start_step
        clock = IterationClock(self._collector, self._envs)
        last_good = {"policy": self.policy.state_dict(), "update": self._update.state_dict()}
        try:
            if not self._collector.collect(should_stop=should_stop):
                return None
            callbacks.after_rollout(self, self._collector.episodes.take_infos())
            clock.collected()
            estimates, update = self._learn(progress=start_step / self.total_timesteps)
        except TrainingFailed as error:
            self.policy.load_state_dict(last_good["policy"])
            self._update.load_state_dict(last_good["update"])
            raise TrainingFailed(f"{error} The policy was reset to iteration {self.iteration}.") from error
        time_spent = clock.time_spent()
        self.iteration += 1
        episodes = self._collector.episodes.finished
        return IterationStatistics(
            iteration=self.iteration,
            global_step=self.global_step,
            n_envs=self._collector.num_envs,
            n_steps=self.config.n_steps,
            n_completed_episodes=len(episodes),
            episode_return=mean_or_nan(episode.episode_return for episode in episodes),
            episode_length=mean_or_nan(episode.length for episode in episodes),
            mean_return_100=self._collector.episodes.recent_mean_return(),
            explained_variance=estimates.explained_variance,
            update=update,
            time_spent=time_spent,
            n_worker_restarts=self._collector.num_restarts,
        )

    def _timed(self, evaluate: Every[Mapping[str, float]], callbacks: Callbacks) -> dict[str, float]:
        """Run an evaluation; returns its metrics and its duration."""
        began = time.perf_counter()
        metrics = evaluate.action(self)
        evaluating_s = time.perf_counter() - began
        callbacks.after_evaluation(self, metrics)
        return {**metrics, "time/evaluating_s": evaluating_s}

    def _learn(self, *, progress: float) -> tuple[Estimates, UpdateStatistics]:
        with one_thread():  # several threads share large minibatches in chunks, each with one thread of torch
            estimates = self._collector.estimates()
            check_policy(estimates.batch.inputs, self.policy, self._collector.num_envs)
            batch = with_normalized_values(estimates.batch, self.policy)
            return estimates, self._update(batch, progress=progress)

    def _progress_sink(self, progress: bool) -> AbstractContextManager[MetricsSink]:
        """A progress bar, or a no-op sink if `progress` is False."""
        if not progress:
            return closing(Sinks())
        return closing(ProgressBar(total_steps=self.total_timesteps, first_step=self.global_step))

    def _report(
        self, statistics: IterationStatistics, further: Mapping[str, float], progress_sink: MetricsSink
    ) -> None:
        episodes = self._collector.episodes.take_finished()
        metrics = {**statistics.metrics(), **further}
        if self._sink is not None:
            self._sink.write(metrics, episodes)
        progress_sink.write(metrics, episodes)


def _text_or_number(value: Any) -> Any:
    """The value of a setting; of a function, the text that checkpoints hold."""
    return function_shown(value) if callable(value) else value
