"""What a person sees of a training: its opening lines, a bar or lines now and then, blocks of figures, sentences."""

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
    """tqdm without a thread of its own, since workers may be started by fork at any time."""

    monitor_interval = 0


_Bar.set_lock(threading.RLock())  # tqdm's own is one between processes


class ProgressBar:
    """A bar of environment steps with the mean return, on a terminal or in a notebook; elsewhere it shows nothing."""

    def __init__(self, *, total_steps: int, first_step: int = 0, out: TextIO | None = None) -> None:
        """first_step: where training goes on. out: stderr by default, where tqdm's bars are."""
        out = out or sys.stderr
        self._bar = _make_bar(
            total_steps, first_step, out, shown=out is not None and (out.isatty() or _is_notebook(out))
        )

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Show one iteration."""
        with contextlib.suppress(OSError):  # nobody reads it any more, and training goes on
            mean = metrics["rollout/mean_return_100"]
            self._bar.set_postfix_str(f"mean return {_reward(mean)}" if math.isfinite(mean) else "", refresh=False)
            self._bar.update(int(metrics["time/global_step"]) - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is and go on below it; may be called twice."""
        with contextlib.suppress(OSError):
            self._bar.close()


class Progress:
    """Shows steps per second and the time left, and every few iterations how the episodes go."""

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
        """first_step: where a resumed run goes on. n_envs_schedule: other numbers of environments that are planned, by
        global step; the totals take them into account. block_interval: iterations between two blocks; the last one has
        its own. line_interval_s: seconds between two lines where `out`, stdout by default, is no terminal.
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
        """Leave the bar as it is and go on below it; may be called twice."""
        self._bar.close()

    def _follow_envs(self, n_envs: int, iteration: int, step: int) -> None:
        """Count the iterations left anew where an iteration had another number of environments than the one before."""
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
    """Whether it is the stream of a cell, which is no terminal, and draws a bar all the same."""
    return type(out).__module__.partition(".")[0] == "ipykernel"


def time_shares(spent_s: Mapping[str, float]) -> str:
    """Where the time goes; what takes none is left out.

    >>> time_shares({"acting": 1.0, "stepping": 2.0, "waiting": 0.0, "learning": 5.0})
    'acting 12%, stepping 25%, learning 62%'
    """
    total_s = sum(spent_s.values())
    return ", ".join(f"{part} {seconds / total_s:.0%}" for part, seconds in spent_s.items() if seconds > 0.0)


def episode_block(metrics: Mapping[str, float], *, total_iterations: int, n_envs: int) -> str:
    """Three lines about the episodes that ended in an iteration, which "Episode" counts; dashes where none did.

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
    """Two decimals; four where it is small, as the logarithmic returns of a market are."""
    return _or_dash(value, ".4f" if abs(value) < 1 else ".2f")


def _or_dash(value: float, decimals: str) -> str:
    return format(value, decimals) if math.isfinite(value) else "-"


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
            f"   --iterations counts iterations, so {start.n_envs} environments train on {start.n_envs} times the "
            f"transitions of one; --total-timesteps {start.one_env_steps} trains on as many as one"
        )
    yield f"   Run folder: {shown_path(start.folder)}"
    if start.n_envs > 1:
        yield f"Parallel mode: {start.n_envs} environments"
