"""The table and the picture of the runs of `benchmarks/learning.py`.

Definitions: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice,
arXiv:2108.13264 (as in rliable): interquartile means, and percentile bootstrap over runs.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.learning_contestants import EVALUATION_EPISODES, LAST_SHARE, OURS, THEIRS
from benchmarks.learning_jobs import JOBS

N_RESAMPLES = 10_000
SCORES = {
    "deterministic": f"{EVALUATION_EPISODES} episodes, deterministic actions",
    "stochastic": f"{EVALUATION_EPISODES} episodes, sampled actions",
    "last": f"last {100 * LAST_SHARE:.0f} % of training",
}
Runs = list[dict[str, Any]]


def interquartile_mean(scores: Any, axis: int = -1) -> Any:
    """Mean of the middle half, the quarters at both ends rounded down and left out.

    >>> float(interquartile_mean([100.0, 1.0, 2.0, 3.0, -50.0])), float(interquartile_mean([1.0, 2.0, 6.0]))
    (2.0, 3.0)
    """
    return stats.trim_mean(scores, 0.25, axis=axis)


def bootstrap_interval(scores: Sequence[float]) -> tuple[float, float]:
    """95 % of the interquartile means of samples drawn with replacement; two scores or more.

    >>> bootstrap_interval([3.0, 3.0, 3.0])
    (3.0, 3.0)
    """
    drawn = stats.bootstrap(
        (scores,), interquartile_mean, n_resamples=N_RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    )
    return float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)


def chance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How often runs shuffled between the two differ in the mean as much as these do, either way: a permutation test.

    >>> chance([1.0, 2.0], [3.0, 4.0])  # 2 of the 6 ways to shuffle
    0.3333333333333333
    """

    def difference(a: Any, b: Any, axis: int) -> Any:
        return np.mean(a, axis=axis) - np.mean(b, axis=axis)

    test = stats.permutation_test(
        (ours, theirs), difference, n_resamples=N_RESAMPLES, vectorized=True, rng=np.random.default_rng(0)
    )
    return float(test.pvalue)


def compared(runs: Runs) -> Runs:
    """The runs of jobs that both contestants have learned with equally many seeds."""
    n_runs = Counter((run["job"], run["who"]) for run in runs)
    return [run for run in runs if n_runs[run["job"], OURS] == n_runs[run["job"], THEIRS] > 0]


def table(runs: Runs) -> str:
    """In Markdown; one line per score of each job that has runs."""
    heads = [
        "environment", "steps", "seeds", "score", f"{OURS}: IQM [95 %]", f"{THEIRS}: IQM [95 %]",
        "difference of means ± standard error", "p",
    ]  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for name in JOBS:
        of_job = [run for run in runs if run["job"] == name]
        for score, about in SCORES.items():
            scores = [
                [run[score] for run in of_job if run["who"] == who and run[score] is not None] for who in (OURS, THEIRS)
            ]
            if any(scores):
                steps = ", ".join(f"{n:,}" for n in sorted({run["total_steps"] for run in of_job}))
                seeds = "/".join(str(len(of_one)) for of_one in scores)
                cells = [name, steps, seeds, about, *map(_interval, scores), *_compared(*scores)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _interval(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return f"{scores[0]:,.1f}" if scores else "-"
    low, high = bootstrap_interval(scores)
    return f"{interquartile_mean(scores):,.1f} [{low:,.1f}, {high:,.1f}]"


def _compared(ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, str]:
    """The difference of the means with its standard error, and how often chance alone makes as large a one."""
    if min(len(ours), len(theirs)) < 2:
        return "-", "-"
    error = np.sqrt(sum(np.var(scores, ddof=1) / len(scores) for scores in (ours, theirs)))
    return f"{np.mean(ours) - np.mean(theirs):+,.1f} ± {error:,.1f}", f"{chance(ours, theirs):.2f}"


def draw(runs: Runs, path: Path) -> None:
    """One panel per job: thin lines for runs, thick lines for the mean of each contestant."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [name for name in JOBS if any(run["job"] == name for run in runs)]
    n_rows = max(1, -(-len(names) // 2))
    figure = Figure(figsize=(11, 3 * n_rows), layout="constrained")
    FigureCanvasAgg(figure)
    for place, name in enumerate(names, start=1):
        axes = figure.add_subplot(n_rows, 2, place)
        axes.set_title(name)
        for who, color in ((OURS, "tab:blue"), (THEIRS, "tab:orange")):
            curves = [run["curve"] for run in runs if (run["job"], run["who"]) == (name, who) and run["curve"]]
            at: dict[int, list[float]] = {}
            for curve in curves:
                axes.plot(*zip(*curve, strict=True), color=color, linewidth=0.5, alpha=0.5)
                for step, value in curve:
                    at.setdefault(step, []).append(value)
            if at:
                axes.plot(sorted(at), [np.mean(at[step]) for step in sorted(at)], color=color, label=who)
        axes.set_ylabel("return in training")
        axes.legend()
    figure.savefig(path, dpi=90)
