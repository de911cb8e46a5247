"""What a run tells besides figures: that it began, sentences for a reader, and that training is over."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple


class RunStart(NamedTuple):
    """A run that is about to train.

    n_workers: 0 if the trainer's process steps the environments; start_method is None then. first_step: of a resumed
    run, the environment steps that were taken before; total_steps counts them too. n_envs_schedule: other numbers of
    environments that are planned, by global step; the totals take them into account. n_ranks: processes that share the
    environments, of which this is the first; n_workers are its own. one_env_steps: the environment steps of as many
    iterations with one environment; None if the length does not multiply with n_envs. unused_start_method: the start
    method that was set although no worker is started.
    """

    folder: Path
    n_envs: int
    n_workers: int
    start_method: str | None
    total_iterations: int
    total_steps: int
    first_step: int
    n_envs_schedule: Mapping[int, int] = MappingProxyType({})
    n_ranks: int = 1
    one_env_steps: int | None = None
    unused_start_method: str | None = None


class RunEnd(NamedTuple):
    """How a run ended. folder: also holds the report, where the run finished."""

    status: Literal["finished", "stopped", "failed"]
    reason: str | None
    """Why it stopped, failed, or finished before all iterations."""
    global_step: int
    best_score: float | None
    folder: Path


class RunListener:
    """Does nothing; override what you want to hear of. The thread that trains calls it, and its errors end the run."""

    def started(self, start: RunStart) -> None:
        """The run accepted its settings and its folder; training begins."""

    def say(self, sentence: str) -> None:
        """Something that a person who watches the run wants to read."""

    def trained(self) -> None:
        """Training is over and saved; if it finished, the report comes next."""
