"""Console output of a training: opening lines, a progress bar or progress lines, blocks of metrics, and messages."""

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TextIO

from tqdm import tqdm

from ml_pipeline.config.env_schedule import Schedule, n_envs_at, planned_end
from ml_pipeline.config.wording import counted, shown_path
from ml_pipeline.monitoring.console import banner
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.sinks import EpisodeRecord


class _Bar(tqdm):
    """tqdm without its monitor thread, because workers may be forked at any time."""

    monitor_interval = 0


_Bar.set_lock(threading.RLock())  # tqdm's default lock is shared between processes


class ProgressBar:
    """A progress bar of environment steps with the mean return, in a terminal or notebook; elsewhere no output."""

    def __init__(self, *, total_steps: int, first_step: int = 0, out: TextIO | None = None) -> None:
        """first_step: step from which training continues. out: stderr by default, as for tqdm."""
        out = out or sys.stderr
        self._bar = _make_bar(
            total_steps, first_step, out, shown=out is not None and (out.isatty() or _is_notebook(out))
        )

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Show one iteration."""
        with contextlib.suppress(OSError):  # the reader is gone; training continues
            mean = metrics["rollout/mean_return_100"]
            self._bar.set_postfix_str(f"mean return {_reward(mean)}" if math.isfinite(mean) else "", refresh=False)
            self._bar.update(int(metrics["time/global_step"]) - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is, and continue below it; may be called twice."""
        with contextlib.suppress(OSError):
            self._bar.close()


class Progress:
    """Shows steps per second and the time left, and statistics of episodes every few iterations."""

    def __init__(
        self,
        *,
        total_iterations: int,
        total_steps: int,
        n_envs: int,
        first_step: int = 0,
        n_envs_schedule: Schedule = MappingProxyType({}),
        block_interval: int = 10,
        line_interval_s: float = 10.0,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """first_step: step from which a resumed run continues. n_envs_schedule: planned numbers of environments by
        global step; the totals include them. block_interval: iterations between two blocks; the last iteration always
        has one. line_interval_s: seconds between two progress lines if `out`, by default stdout, is not a terminal.
        """
        self._total_iterations = total_iterations
        self._total_steps = total_steps
        self._n_envs = n_envs
        self._first_step = first_step
        self._schedule = n_envs_schedule
        self._block_interval = block_interval
        self._line_interval_s = line_interval_s
        self._out = out or sys.stdout
        self._clock = clock
        self._last_step = first_step
        self._started_s = self._line_s = clock()
        self._spent_s = dict.fromkeys(("acting", "stepping", "waiting", "exchanging", "learning", "evaluating"), 0.0)
        self._n_episodes = 0
        self._bar = _make_bar(total_steps, first_step, self._out, shown=self._out.isatty())

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Show one iteration."""
        iteration, step = int(metrics["time/iteration"]), int(metrics["time/global_step"])
        self._follow_envs(int(metrics.get("time/n_envs", self._n_envs)), iteration, step)
        self._n_episodes += int(metrics["rollout/n_completed_episodes"])
        for part in self._spent_s:
            self._spent_s[part] += metrics.get(f"time/{part}_s", 0.0)
        if self._bar.disable:
            self._line_now_and_then(iteration, step)
        else:
            self._bar.set_postfix_str(time_shares(self._spent_s), refresh=False)
            self._bar.update(step - self._bar.n)
        if iteration % self._block_interval == 0 or iteration == self._total_iterations:
            block = episode_block(metrics, total_iterations=self._total_iterations, n_envs=self._n_envs)
            since = "since the run was resumed" if self._first_step else "so far"
            self.say(f"{block}\n  iterations: {iteration:,}  |  episodes finished {since}: {self._n_episodes:,}")

    def say(self, text: str) -> None:
        """Print above the bar."""
        _Bar.write(text, file=self._out)
        self._out.flush()

    def close(self) -> None:
        """Leave the bar as it is, and continue below it; may be called twice."""
        self._bar.close()

    def _follow_envs(self, n_envs: int, iteration: int, step: int) -> None:
        """Recompute the remaining iterations if the number of environments changed."""
        if n_envs != self._n_envs:
            ahead = {at: n for at, n in self._schedule.items() if at > self._last_step}
            left, self._total_steps = planned_end(
                self._total_steps,
                step=step,
                n_steps=max(1, (step - self._last_step) // n_envs),
                n_envs=n_envs_at(step, first=n_envs, schedule=ahead),
                schedule=ahead,
            )
            self._n_envs, self._total_iterations, self._bar.total = n_envs, iteration + left, self._total_steps
        self._last_step = step

    def _line_now_and_then(self, iteration: int, step: int) -> None:
        now_s = self._clock()
        if now_s - self._line_s < self._line_interval_s:
            return
        self._line_s = now_s
        steps_per_second = (step - self._first_step) / (now_s - self._started_s)
        left = timedelta(seconds=round((self._total_steps - step) / steps_per_second))
        self.say(
            f"Episode {iteration}/{self._total_iterations}  |  {step:,}/{self._total_steps:,} steps  |  "
            f"{counted(self._n_episodes, 'episode')} finished  |  {steps_per_second:,.0f} steps/s  |  {left} left  |  "
            f"{time_shares(self._spent_s)}"
        )


def _make_bar(total_steps: int, first_step: int, out: TextIO, *, shown: bool) -> _Bar:
    return _Bar(total=total_steps, initial=first_step, unit=" steps", file=out, disable=not shown, dynamic_ncols=True)


def _is_notebook(out: TextIO) -> bool:
    """True if it is the output stream of a notebook cell, which can draw a bar although it is not a terminal."""
    return type(out).__module__.partition(".")[0] == "ipykernel"


def time_shares(spent_s: Mapping[str, float]) -> str:
    """Shares of the time per stage, without stages that take no time.

    >>> time_shares({"acting": 1.0, "stepping": 2.0, "waiting": 0.0, "learning": 5.0})
    'acting 12%, stepping 25%, learning 62%'
    """
    total_s = sum(spent_s.values())
    return ", ".join(f"{part} {seconds / total_s:.0%}" for part, seconds in spent_s.items() if seconds > 0.0)


def episode_block(metrics: Mapping[str, float], *, total_iterations: int, n_envs: int) -> str:
    """Three lines about the episodes that ended in an iteration; dashes if none ended. "Episode" counts iterations.

    >>> print(episode_block(
    ...     {"time/iteration": 10, "rollout/episode_return": 123.45, "rollout/episode_length": 234.0,
    ...      "rollout/mean_return_100": 120.12, "rollout/n_completed_episodes": 3},
    ...     total_iterations=1000, n_envs=8))
    Episode 10/1000
      Reward:   123.45  |  Length:  234  |  Mean(100):   120.12
      n_completed_episodes: 3  |  n_envs: 8
    """
    reward, length = metrics["rollout/episode_return"], metrics["rollout/episode_length"]
    mean = metrics["rollout/mean_return_100"]
    return (
        f"Episode {int(metrics['time/iteration'])}/{total_iterations}\n"
        f"  Reward:{_reward(reward):>9}  |  Length:{_or_dash(length, '.0f'):>5}  |  Mean(100):{_reward(mean):>9}\n"
        f"  n_completed_episodes: {int(metrics['rollout/n_completed_episodes'])}  |  n_envs: {n_envs}"
    )


def _reward(value: float) -> str:
    """A reward with two decimals, or with four if it is below 1, as log returns are."""
    return _or_dash(value, ".4f" if abs(value) < 1 else ".2f")


def _or_dash(value: float, decimals: str) -> str:
    return format(value, decimals) if math.isfinite(value) else "-"


class RunConsole(RunListener):
    """Listener and sink of a run that prints to `out`, by default stdout."""

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
        """Leave the bar as it is, and continue below it; may be called twice."""
        if self._progress is not None:
            self._progress.close()


def _opening(start: RunStart) -> Iterator[str]:
    """The first lines of a run."""
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
            f"   {start.n_envs} environments make {start.n_envs} times the steps of one in each iteration; "
            f"--total-timesteps {start.one_env_steps} trains for as many steps as one"
        )
    yield f"   Run folder: {shown_path(start.folder)}"
    if start.n_envs > 1:
        yield f"Parallel mode: {start.n_envs} environments"
