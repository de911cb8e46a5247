"""A training run on the terminal: the lines it opens with, the progress bar, and sentences above the bar."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from ml_pipeline.config.wording import counted, shown_path
from ml_pipeline.monitoring.console import banner
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.progress import Progress
from ml_pipeline.monitoring.sink import EpisodeRecord


class RunConsole(RunListener):
    """A run's listener and one of its sinks; prints to `out`, stdout by default."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._progress: Progress | None = None

    def started(self, start: RunStart) -> None:
        print(*_opening(start), sep="\n", file=self._out, flush=True)
        self._progress = Progress(
            total_iterations=start.total_iterations,
            total_steps=start.total_steps,
            n_envs=start.n_envs,
            first_step=start.first_step,
            n_envs_schedule=start.n_envs_schedule,
            out=self._out,
        )

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        assert self._progress is not None
        self._progress.write(metrics, episodes)

    def say(self, sentence: str) -> None:
        if self._progress is None:
            print(sentence, file=self._out, flush=True)
        else:
            self._progress.say(sentence)

    def trained(self) -> None:
        self.close()

    def close(self) -> None:
        """Leave the bar as it is and go on below it; may be called twice."""
        if self._progress is not None:
            self._progress.close()


def _opening(start: RunStart) -> Iterator[str]:
    """The lines that a run opens with."""
    yield banner(
        n_envs=start.n_envs,
        n_workers=start.n_workers,
        start_method=start.start_method,
        unused_start_method=start.unused_start_method,
    )
    length = (
        f"{counted(start.total_iterations, 'iteration')}, {start.total_steps:,} transitions (environment steps) in all"
    )
    yield f'   {length}; "Episode 1/{start.total_iterations}" is the first iteration (rollout and update)'
    if start.one_env_steps is not None and start.n_envs > 1:
        yield (
            f"   --num-episodes counts iterations, so {start.n_envs} environments train on {start.n_envs} times the "
            f"transitions of one; --total-timesteps {start.one_env_steps} trains on as many as one"
        )
    yield f"   Run folder: {shown_path(start.folder)}"
    if start.n_envs > 1:
        yield f"Parallel mode: {start.n_envs} environments"
