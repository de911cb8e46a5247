"""A block of consecutive environments, stepped one after another into their rows of a batch.

This module does all work on a single environment: autoreset, checks, final observations, infos. The trainer's process
and the workers run the same code, so serial and parallel results are equal.
"""

import copy
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from ml_pipeline.models.rl.core.stepping import state as env_state
from ml_pipeline.models.rl.core.stepping.batch import Batch, rows_between
from ml_pipeline.models.rl.core.stepping.errors import FailureReport, ForkReturned, InvalidResultError
from ml_pipeline.models.rl.core.stepping.protocol import (
    FINISHED,
    NOTHING,
    STEP,
    Command,
    Reply,
    ResetOrder,
    SpaceMismatch,
)
from ml_pipeline.models.rl.core.stepping.results import checked_reset, checked_step, have_equal_rows, observation_rows

EnvFactory = Callable[[], gymnasium.Env]


@dataclass(slots=True)
class _Slot:
    """One environment and its bookkeeping between steps."""

    index: int
    env: gymnasium.Env
    seed: int | None = None
    steps_before: int = 0  # the block's count of steps when it was last reset explicitly
    needs_reset: bool = False  # its episode is over: NEXT_STEP resets it in the next step, DISABLED waits for reset()
    observation: Any = None  # the last one, only if the space is not of fixed size


class EnvBlock:
    """Environments first, first + 1, ... of `num_envs`, made by their factories.

    forked: not empty in a process that was forked from this one.

    Raises EnvFailedError if a factory raises. `execute()` does not raise it; its reply has a report instead. If an
    environment forks this process and also returns in the fork, ForkReturned is raised there before it writes results.
    """

    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        first: int,
        num_envs: int,
        autoreset_mode: AutoresetMode,
        forked: Sequence[int] = (),
    ) -> None:
        self._forked = forked
        self.num_envs = num_envs
        self._same_step = autoreset_mode == AutoresetMode.SAME_STEP
        self._slots: list[_Slot] = []
        self._owners: dict[int, int] = {}  # id() of an environment: the index of its factory
        self._n_steps = 0
        self._at = first
        self._doing_now = "construction"
        self._given: Sequence[Any] | None = None  # the actions of the step under way
        self._blank_reply = Reply()
        for index, env_fn in enumerate(env_fns, start=first):
            self._at = index
            try:
                self._slots.append(_Slot(index, self._checked(env_fn())))
                self._leave_if_forked()
            except Exception as error:
                self._leave_if_forked()
                self.close()
                failed = self._report(error).error()
                raise failed from failed.__cause__

    def attach(self, batch: Batch, worker: int) -> None:
        """Sets the batch that results are written to. `current_env[worker]` is the environment that is running."""
        observation_space, action_space = batch.layout.observation_space, batch.layout.action_space
        self._batch = batch
        self._current_env = memoryview(batch.current_env[worker : worker + 1].data)
        self._current_env[0] = -1
        self._rows = None if batch.observations is None else observation_rows(observation_space, batch.observations)
        self._final_rows = None if batch.final_obs is None else observation_rows(observation_space, batch.final_obs)
        first = self._slots[0].index
        self.span = slice(first, first + len(self._slots))
        self._actions_space = batch_space(action_space, len(self._slots))
        self._action_rows = batch.actions[self.span] if isinstance(batch.actions, np.ndarray) else None
        # Blocks share cache lines here, and processes wait for each other to write one, so write at most once a step.
        # With `current_env` in its own cache line, 8 CartPoles in two processes took 70 µs instead of 86.
        self._rewards: Any = memoryview(batch.rewards[self.span].data)
        self._has_flags = True

    @property
    def envs(self) -> list[gymnasium.Env]:
        """The environments themselves."""
        return [slot.env for slot in self._slots]

    def space_mismatches(self) -> list[SpaceMismatch]:
        """Every space that differs from those of the batch."""
        layout = self._batch.layout
        found = []
        for slot in self._slots:
            for name, expected in (
                ("observation_space", layout.observation_space),
                ("action_space", layout.action_space),
            ):
                received = getattr(slot.env, name)
                if received != expected:
                    has_equal_rows = name == "observation_space" and have_equal_rows(received, expected)
                    found.append(SpaceMismatch(slot.index, name, repr(expected), repr(received), has_equal_rows))
        return found

    def unsendable(self, reply: Reply, error: Exception, is_sendable: Callable[[Any], bool]) -> FailureReport:
        """The report on a reply that cannot be pickled; it names the environment that returned the value."""
        parts: list[tuple[Any, ...]] = [*reply.infos, *reply.finals, *enumerate(reply.values, start=self.span.start)]
        self._at = next((part[0] for part in parts if not is_sendable(part)), self.span.start)
        remedy = "return only picklable values, or pass num_workers=0"
        received = f"a value that cannot be pickled ({type(error).__name__}: {error})"
        invalid = InvalidResultError("its result or info", "picklable", received, remedy)
        return self._report(invalid, step=self._doing_now == "step")

    def execute(self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None) -> Reply:
        """Runs one command on every environment of the block, or up to the first that fails.

        An empty reply is the constant NOTHING or FINISHED.
        """
        reply = self._blank_reply
        self._given = None
        try:
            if command is STEP:
                self._step(reply, per_env)
            elif command == Command.RESET:
                assert per_env is not None
                self._reset(reply, common, per_env)
            else:
                self._other(reply, command, common, per_env)
        except Exception as error:
            self._leave_if_forked()
            self._at = self._current_env[0]
            reply.failure = self._report(error, step=command is STEP)
        except BaseException:  # Ctrl-C
            self._blank_reply = Reply()
            raise
        self._current_env[0] = -1
        if reply.infos or reply.values or reply.finals or reply.failure:
            self._blank_reply = Reply()  # takes 0.3 µs
            return reply
        if reply.finished:
            reply.finished = False
            return FINISHED
        return NOTHING

    def close(self) -> None:
        """Closes every environment, even if one of them raises; raises the first error at the end."""
        errors: list[Exception] = []
        while self._slots:
            try:
                self._slots.pop().env.close()
            except Exception as error:
                errors.append(error)
            self._leave_if_forked()
        if errors:
            raise errors[0]

    def _leave_if_forked(self) -> None:
        if self._forked:
            raise ForkReturned

    def _checked(self, env: gymnasium.Env) -> gymnasium.Env:
        """The factory's result, if it is an environment that no other factory returned."""
        if not hasattr(env, "observation_space"):
            received, remedy = f"a {type(env).__name__}", "return the environment"
            raise InvalidResultError("the factory's result", "a gymnasium.Env", received, remedy)
        first = self._owners.setdefault(id(env.unwrapped), self._at)
        if first != self._at:
            received, remedy = f"that of environment {first}", "make it inside the factory, not before"
            raise InvalidResultError("the factory's result", "a new environment", received, remedy)
        return env

    def _step(self, reply: Reply, actions: Sequence[Any] | None) -> None:
        """The hot path. With 8 environments, this method and its callers take 1.5 µs per environment and step;
        Gymnasium's SyncVectorEnv takes 2.6 µs.
        """
        batch, current_env, observations, rewards = self._batch, self._current_env, self._rows, array("d")
        forked = self._forked
        self._n_steps += 1
        self._given = actions = self._split_actions() if actions is None else actions
        self._clear_flags()
        self._doing_now = "step"
        for slot, action in zip(self._slots, actions, strict=True):
            current_env[0] = index = slot.index
            if slot.needs_reset:
                reward: Any = 0.0
                observation, info = self._reset_after_episode(slot)
                slot.needs_reset = False
            else:
                result = slot.env.step(action)
                try:
                    observation, reward, terminated, truncated, info = result
                    plain = type(reward) is float and terminated is False and truncated is False
                    plain = plain and type(info) is dict and not forked
                except (TypeError, ValueError):
                    plain = False
                # This accepts the result of nearly every step in 0.1 µs; checked_step handles all others.
                if not plain or reward - reward:  # not 0 if the reward is NaN or infinite
                    self._leave_if_forked()
                    observation, reward, terminated, truncated, info = checked_step(result)
                    if terminated or truncated:
                        reply.finished = self._has_flags = True
                        batch.terminated[index] = terminated
                        batch.truncated[index] = truncated
                        if self._same_step:
                            self._keep_final(reply, index, observation, info)
                            observation, info = self._reset_after_episode(slot)
                        else:
                            slot.needs_reset = True
            rewards.append(reward)
            if observations is not None:
                observations.write(index, observation)
            else:
                slot.observation = observation
            if info:
                reply.infos.append((index, info))
        self._rewards[:] = rewards
        if observations is None:
            reply.values = [slot.observation for slot in self._slots]

    def _clear_flags(self) -> None:
        if self._has_flags:
            self._batch.terminated[self.span] = self._batch.truncated[self.span] = self._has_flags = False

    def _split_actions(self) -> list[Any]:
        """One action per environment, copied, since environments may keep actions and the trainer reuses its arrays."""
        if self._action_rows is not None:
            return list(self._action_rows.copy())
        mine = rows_between(self._batch.actions, self.span.start, self.span.stop)
        return list(iterate(self._actions_space, mine))

    def _reset_after_episode(self, slot: _Slot) -> tuple[Any, dict[str, Any]]:
        self._doing_now = "the reset after its episode"
        result = checked_reset(slot.env.reset())
        self._leave_if_forked()
        self._doing_now = "step"
        return result

    def _keep_final(self, reply: Reply, index: int, observation: Any, info: dict[str, Any]) -> None:
        """Copies the episode's last observation and info before the reset; the environment may reuse its arrays."""
        if self._final_rows is not None:
            self._final_rows.write(index, observation)
            if info:
                reply.finals.append((index, None, copy.deepcopy(info)))
        else:
            reply.finals.append((index, copy.deepcopy(observation), copy.deepcopy(info)))

    def _reset(self, reply: Reply, options: dict[str, Any] | None, orders: Sequence[ResetOrder]) -> None:
        batch = self._batch
        self._doing_now = "reset()"
        for slot, (seed, wanted, expired) in zip(self._slots, orders, strict=True):
            if not wanted:
                continue
            index = self._current_env[0] = slot.index
            slot.seed = slot.seed if seed is None else seed
            slot.steps_before = self._n_steps
            slot.needs_reset = expired
            batch.terminated[index] = batch.truncated[index] = False
            observation, info = checked_reset(slot.env.reset(seed=seed, options=copy.copy(options)))
            self._leave_if_forked()
            if self._rows is not None:
                self._rows.write(index, observation)
            else:
                slot.observation = observation
            if info:
                reply.infos.append((index, info))
        if self._rows is None:
            reply.values = [slot.observation for slot in self._slots]

    def _other(self, reply: Reply, command: Command, common: Any, per_env: Sequence[Any] | None) -> None:
        items = per_env if per_env is not None else [None] * len(self._slots)
        for slot, item in zip(self._slots, items, strict=True):
            self._current_env[0] = slot.index
            if command == Command.CALL:
                name, args, kwargs = common
                self._doing_now = f"{name!r}"
                attribute = slot.env.get_wrapper_attr(name)
                reply.values.append(attribute(*args, **kwargs) if callable(attribute) else attribute)
            elif command == Command.SET_ATTR:
                self._doing_now = f"setting {common!r}"
                slot.env.set_wrapper_attr(common, item)
            elif command == Command.APPLY:
                function, args = common
                self._doing_now = f"{getattr(function, '__name__', function)!r}"
                reply.values.append(function(slot.env, *args) if item else None)
            elif command == Command.GET_STATES:
                self._doing_now = "get_states()"
                reply.values.append(self._get_state(slot))
            elif command == Command.SET_STATES:
                self._doing_now = "set_states()"
                if item is not None:
                    self._set_state(slot, item)
                reply.values.append(slot.needs_reset)
            self._leave_if_forked()

    def _get_state(self, slot: _Slot) -> env_state.EnvState:
        observation = slot.observation if self._rows is None else self._rows.read(slot.index)
        steps = self._n_steps - slot.steps_before
        rest = (observation, slot.needs_reset, slot.seed, steps)
        return env_state.dump(slot.index, slot.env, rest)

    def _set_state(self, slot: _Slot, state: env_state.EnvState) -> None:
        slot.env, (observation, slot.needs_reset, slot.seed, steps) = env_state.load(slot.index, slot.env, state)
        slot.steps_before = self._n_steps - steps
        if self._rows is not None:
            self._rows.write(slot.index, observation)
        else:
            slot.observation = observation

    def _report(self, error: Exception, *, step: bool = False) -> FailureReport:
        slot = next((slot for slot in self._slots if slot.index == self._at), None)
        n = None if slot is None else self._n_steps - slot.steps_before
        doing = self._doing_now
        if step and n is not None:
            doing = f"step {n:,}" if doing == "step" else f"{doing}, in step {n:,}"
        return FailureReport.of(
            error,
            caught_in=__file__,
            index=self._at,
            num_envs=self.num_envs,
            seed=None if slot is None else slot.seed,
            step=n,
            action=self._action_of(slot) if step else None,
            doing=doing,
        )

    def _action_of(self, slot: _Slot | None) -> Any:
        """The action of its step; None if it was reset instead."""
        if slot is None or slot.needs_reset or self._given is None:
            return None
        return self._given[slot.index - self._slots[0].index]
