"""The exceptions of vectorized environments. Each names the environment or worker, the call, and the cause.

    VectorEnvError
    ├── EnvFailedError           an environment misbehaved; carries index, seed, step, action, worker
    │   ├── EnvRaisedError       it raised; also an instance of the class that it raised, which is its cause
    │   └── EnvResultError       it returned something unusable: field, expected, received
    ├── WorkerFailedError        a worker process failed; carries worker and its environments
    │   ├── WorkerDiedError      killed or crashed; carries exit code and signal
    │   └── StepTimeoutError     no reply within step_timeout_s; also a multiprocessing.TimeoutError
    ├── SpacesDifferError        the environments do not share their spaces; also a RuntimeError
    ├── ResetRequiredError       call reset() before the next step(); also Gymnasium's ResetNeeded
    ├── VectorResultError        a vector environment returned something unusable; also a UserError
    ├── ActionsError             actions do not fit the batch; also a TypeError (Gymnasium's) and a UserError
    ├── ReplyNotReadableError    the trainer cannot unpickle a worker's reply
    ├── FactoryNotPicklableError a factory cannot be sent to a worker
    └── StateNotAvailable        an environment's state cannot be saved in full, or cannot be restored

Misuse of the call order raises Gymnasium's own `AlreadyPendingCallError`, `NoAsyncCallError` and
`ClosedEnvironmentError`. If an explicit `timeout=` expires, `multiprocessing.TimeoutError` is raised.
"""

import copy
import functools
import multiprocessing
import pickle
import reprlib
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gymnasium

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.models.rl.core.stepping import by_value

_LONGEST_RECEIVED = 500
_MOST_PICKLED_BYTES = 1 << 20  # of an exception or an action that a report carries


class AlsoFailed(NamedTuple):
    """A worker that failed in the same step as the one whose error is raised."""

    worker: int
    environment: int
    """Index of the environment that raised."""
    type_name: str

    def sentence(self, first: int = 0) -> str:
        return f"Worker {self.worker} failed as well: environment {first + self.environment} raised {self.type_name}."


class VectorEnvError(Exception):
    """Base class of this module's exceptions."""

    _also_failed: Sequence[AlsoFailed] = ()

    def note_failures(self, failures: Sequence[AlsoFailed]) -> None:
        """Add a note for each other worker that failed."""
        self._also_failed = failures
        for failed in failures:
            self.add_note(failed.sentence())

    def number_among(self, first: int, num_envs: int) -> None:
        """Rewrite the message and its notes for indices over all ranks: num_envs environments in total, of which those
        of this vectorized environment begin at `first`. Attributes such as `index` are unchanged."""
        sentence = self._sentence(first, num_envs)
        if sentence is not None:
            self.args = (sentence, *self.args[1:])
        if self._also_failed:
            self.__notes__[:] = [failed.sentence(first) for failed in self._also_failed]

    def _sentence(self, first: int, num_envs: int) -> str | None:
        """The message with these numbers; None if it names no environment."""
        return None


class EnvFailedError(VectorEnvError):
    """One environment misbehaved.

    index: the environment. seed: the seed of its last reset, or None. step: the number of steps since that reset, from
    1. action: the action of that step, or None. worker: the worker that ran it; None if this process did.
    """

    def __init__(self, message: str, report: "FailureReport", worker: int | None) -> None:
        Exception.__init__(self, message)  # other base classes may need other arguments
        self.report = report
        self.index = report.index
        self.seed = report.seed
        self.step = report.step
        self.action = report.action
        self.worker = worker
        self.remote_traceback = report.traceback

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError among the bases would quote it

    def _sentence(self, first: int, num_envs: int) -> str:
        return replace(self.report, index=first + self.index, num_envs=num_envs).sentence(self.worker)


class EnvRaisedError(EnvFailedError):
    """An environment raised an exception. It is the `__cause__`, and its class is a base class of this object."""


class EnvResultError(EnvFailedError):
    """An environment returned an unusable result, which the strings field, expected, received and remedy describe."""

    def __init__(self, message: str, report: "FailureReport", worker: int | None) -> None:
        super().__init__(message, report, worker)
        assert report.invalid is not None
        self.field, self.expected, self.received, self.remedy = report.invalid


class WorkerFailedError(VectorEnvError):
    """A worker process failed. worker: its number; environments: the indices of its environments."""

    def __init__(self, worker: int, environments: range) -> None:
        self.worker = worker
        self.environments = environments
        super().__init__(self._sentence(0, 0))


class WorkerDiedError(WorkerFailedError):
    """A worker process ended. exitcode: as in `multiprocessing.Process`, None if its pool is closed; signal: the name
    of the signal that killed it, or None.
    """

    def __init__(
        self, worker: int, environments: range, exitcode: int | None, activity: str, index: int | None = None
    ) -> None:
        """index: the environment that was running, None if none was."""
        self.exitcode = exitcode
        self.signal = _signal_name(exitcode)
        self._activity = activity
        self._index = index
        super().__init__(worker, environments)

    def _sentence(self, first: int, num_envs: int) -> str:
        cause = f"was killed by {self.signal}" if self.signal else f"exited with code {self.exitcode}"
        if self.exitcode is None:
            cause = "ended with an unknown exit code (its pool is closed)"
        at_work = "" if self._index is None else f" of environment {first + self._index}"
        hint = "; the system may have run out of memory" if self.signal == "SIGKILL" else ""
        return f"Worker {self.worker} ({span(self.environments, first)}) {cause} {self._activity}{at_work}{hint}."


class StepTimeoutError(WorkerFailedError, multiprocessing.TimeoutError):
    """A step or reset took longer than step_timeout_s, or a worker did not start in time.

    index: the environment that was running, None if none was. overdue: the call and its time limit. stack: the Python
    stack of the stuck call, as text, innermost call first; empty if the system cannot read it.
    """

    def __init__(self, worker: int, environments: range, index: int | None, overdue: str, stack: str) -> None:
        self.index = index
        self.stack = stack
        self._overdue = overdue
        super().__init__(worker, environments)

    def _sentence(self, first: int, num_envs: int) -> str:
        who = f"environment {first + self.index}" if self.index is not None else span(self.environments, first)
        return (
            f"Worker {self.worker} did not finish its {self._overdue}: {who} has not returned. Raise step_timeout_s if "
            "it may take this long." + (f"\n\n{self.stack}" if self.stack else "")
        )


class SpacesDifferError(VectorEnvError, RuntimeError):
    """The environments of one batch must have equal observation and action spaces."""


class ResetRequiredError(VectorEnvError, gymnasium.error.ResetNeeded):
    """step() was called before a required reset()."""


class VectorResultError(VectorEnvError, UserError):
    """A vector environment of another library returned something unusable, or behaves otherwise than it declares."""


class ActionsError(VectorEnvError, UserError, TypeError):
    """Wrong number of actions, or a shape or dtype that does not match the action space."""


class ReplyNotReadableError(VectorEnvError):
    """A worker's reply cannot be unpickled in this process. worker, environments: the sender."""

    def __init__(self, worker: int, environments: range, command: str, cause: Exception) -> None:
        self.worker = worker
        self.environments = environments
        self._command = command
        self._reason = f"{type(cause).__name__}: {excerpt(str(cause), _LONGEST_RECEIVED)}"
        super().__init__(self._sentence(0, 0))

    def _sentence(self, first: int, num_envs: int) -> str:
        return (
            f"Worker {self.worker} ({span(self.environments, first)}) sent a reply to {self._command} that "
            f"cannot be unpickled in the trainer ({self._reason}); in infos and results, use only types that both "
            "processes can import, or pass num_workers=0."
        )


class FactoryNotPicklableError(VectorEnvError):
    """A factory cannot be sent to a worker process."""


class StateNotAvailable(VectorEnvError):
    """The state of environment `index` cannot be saved in full, or cannot be restored, for this `reason`."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"The state of environment {index} is not available: {reason}")
        self.index = index
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return StateNotAvailable, (self.index, self.reason)


class ForkReturned(BaseException):
    """This process was forked by an environment and returned into the worker's code."""


class InvalidResultError(Exception):
    """An environment returned an unusable value; the block that steps it adds the index, seed and step."""

    def __init__(self, field: str, expected: str, received: str, remedy: str) -> None:
        super().__init__(field, expected, excerpt(received, _LONGEST_RECEIVED), remedy)

    def __str__(self) -> str:
        field, expected, received, remedy = self.args
        return f"{field} must be {expected}, but got {received}; {remedy}"


@dataclass(frozen=True, slots=True)
class FailureReport:
    """The failure of an environment, in a form that can be sent through a pipe.

    doing: the call ("step 12", "reset()", ...). traceback: a long one is cut in the middle. exception: the exception
    that was raised, or a shortened copy if it is too large to send; None if it cannot be pickled. invalid: (field,
    expected, received, remedy) of an unusable result.
    """

    index: int
    num_envs: int
    seed: int | None
    step: int | None
    action: Any
    doing: str
    type_name: str
    traceback: str
    exception: BaseException | None
    invalid: tuple[str, str, str, str] | None = None

    @staticmethod
    def of(error: BaseException, caught_in: str, **where: Any) -> "FailureReport":
        """The report on a caught error; its traceback omits the frames of the file `caught_in`."""
        invalid = error.args if isinstance(error, InvalidResultError) else None
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == caught_in:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace))
        short = excerpt(text)
        kept = error if short == text else _shortened(error)
        return FailureReport(type_name=type(error).__name__, traceback=short, exception=kept, invalid=invalid, **where)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in self.__slots__}
        if not _survives_pickling(self.exception):
            short = None if self.exception is None else _shortened(self.exception)
            state["exception"] = short if _survives_pickling(short) else None
        state["action"] = self.action if _survives_pickling(self.action) else reprlib.repr(self.action)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def error(self, worker: int | None = None) -> VectorEnvError:
        """The exception to raise in the trainer, with its cause set."""
        if isinstance(self.exception, VectorEnvError):
            return self.exception
        message = self.sentence(worker)
        if self.invalid is not None:
            return EnvResultError(message, self, worker)
        try:
            error = _raised_class(type(self.exception))(message, self, worker)  # type: ignore[arg-type]  # unhashable?
        except Exception:  # the class's __new__ needs other arguments, as that of ExceptionGroup
            error = EnvRaisedError(message, self, worker)
        error.__cause__ = self.exception
        return error

    def sentence(self, worker: int | None = None) -> str:
        """The message: the environment, the call, and the error."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        place = f"environment {self.index} of {self.num_envs}{seed}"
        who = f"Environment {self.index} of {self.num_envs}" + (f" ({seed[2:]})" if seed else "")
        who = who if worker is None else f"Worker {worker} ({place})"
        action = "" if self.action is None else f" with action {reprlib.repr(self.action)}"
        if self.invalid is not None:
            return f"{who} returned an unusable result in {self.doing}: {InvalidResultError(*self.invalid)}."
        return f"{who} raised {self.type_name} in {self.doing}{action}:\n\n{self.traceback}"


@functools.cache
def _raised_class(raised: type[BaseException]) -> type[EnvRaisedError]:
    """EnvRaisedError that `except <raised>` catches as well, as it would with the environment stepped directly."""
    if not issubclass(raised, Exception) or issubclass(EnvRaisedError, raised):
        return EnvRaisedError
    try:
        return type("EnvRaisedError", (EnvRaisedError, raised), {"__module__": EnvRaisedError.__module__})
    except TypeError:  # classes whose memory layouts exclude each other
        return EnvRaisedError


def _shortened(error: BaseException) -> BaseException | None:
    """One of its class that says no more than excerpts, and holds nothing else; None if that cannot be made."""
    try:
        short = copy.copy(error)
        short.__dict__.clear()
        short.args = tuple(excerpt(part) if isinstance(part, str) else part for part in error.args)
        is_short = str(short) == excerpt(str(short))
    except Exception:  # whatever a foreign object does when copied
        return None
    return short.with_traceback(error.__traceback__) if is_short else None


def _survives_pickling(value: Any) -> bool:
    """Whether the value can be pickled and is small enough to send."""
    try:
        pickled = by_value.dumps(value)
        if len(pickled) > _MOST_PICKLED_BYTES:
            return False
        pickle.loads(pickled)
    except Exception:  # foreign objects may raise anything when pickled, and the report must still be sent
        return False
    return True


def _signal_name(exitcode: int | None) -> str | None:
    if exitcode is None or exitcode >= 0:
        return None
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"


def span(environments: Sequence[int], first: int = 0) -> str:
    """Names consecutive environments, with indices shifted by `first`.

    >>> span(range(3, 4)), span(range(3, 6)), span(range(3, 6), 10)
    ('environment 3', 'environments 3 to 5', 'environments 13 to 15')
    """
    if len(environments) == 1:
        return f"environment {first + environments[0]}"
    return f"environments {first + environments[0]} to {first + environments[-1]}"
