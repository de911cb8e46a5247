"""Vectorizers in docs/evidence.md: advice, picture and tables from the figures of `benchmarks.vectorizer_choice`.

The recommendation contains the figures, so it stays true when they are measured again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measured_page import DOCS, Figures, Row, measured_on, table, write_measured
from ml_pipeline.reporting.chart_style import AGENT_COLOR, style_axes

NAME = "vectorizers"
FIGURES = DOCS / "choosing-environments.json"
PICTURE = DOCS / "choosing-environments.png"

_COLORS = {
    "in-process": "#7a8594",
    "workers": AGENT_COLOR,
    "auto": "#0a9b8e",
    "threads": "#5c8a3a",
    "SB3 Dummy": "#c9a227",
    "SB3 Subproc": "#d1495b",
    "batched": "#6b4fbb",
}
_ABOUT = """Three environments are compared: the trading environment, one whose step computes for 1 ms, and one whose
step waits for 2 ms, as for a simulator in another process. There is one worker per core, or one per environment if
steps wait. SB3 Dummy and SB3 Subproc are Stable-Baselines3's DummyVecEnv and SubprocVecEnv; "threads" is one thread per
environment. CPU % counts trainer and workers, 100 per core. Memory adds up their resident memory, so shared pages count
several times.

```
python -m benchmarks.vectorizer_choice --write-docs
```"""
_OURS = ("in-process", "workers", "batched")  # what auto and vec_env choose between
_CLEARLY = 1.15
"""Ratios below this count as no difference."""


def write_page(figures: Figures) -> None:
    """Write the figures, the picture, and the measured part of the page."""
    _draw(figures, PICTURE)
    write_measured(NAME, measured_part(figures), figures, file=FIGURES)


def measured_part(figures: Figures) -> str:
    """Machine, recommendation, picture and tables."""
    about = figures["machine"]
    library = f"Stable-Baselines3 {about['stable_baselines3']}"
    intro = f"{measured_on(about, library)}; medians, and all vectorizers of a table took turns."
    picture = f"![Steps per second by the number of environments]({PICTURE.name})"
    return "\n\n".join(["## Vectorizers", _ABOUT, intro, *recommendation(figures), picture, printed(figures)])


def printed(figures: Figures) -> str:
    """All tables."""
    parts = []
    for kind in _in_order(figures["throughput"], "kind"):
        rows = [row for row in figures["throughput"] if row["kind"] == kind]
        parts += [f"### {kind.capitalize()}", _throughput_table(rows), _usage_table(rows)]
    for task in _in_order(figures["learning"], "task"):
        rows = [row for row in figures["learning"] if row["task"] == task]
        parts += [f"### Learning: {task}", _learning_sentence(rows), _learning_table(rows)]
    return "\n\n".join(parts)


def recommendation(figures: Figures) -> list[str]:
    """One paragraph per kind of environment, and one per training."""
    said = []
    for kind in _in_order(figures["throughput"], "kind"):
        rows = [row for row in figures["throughput"] if row["kind"] == kind]
        n = max(row["n_envs"] for row in rows)
        said.append(_advice(kind, n, {row["vectorizer"]: row for row in rows if row["n_envs"] == n}))
    return [*said, *map(_learning_advice, _by_task(figures))]


def _advice(kind: str, n: int, by_name: Mapping[str, Row]) -> str:
    rate = {name: row["steps_per_second"] for name, row in by_name.items()}
    best = max((name for name in _OURS if name in rate), key=lambda name: rate[name])
    here, workers = rate["in-process"], rate["workers"]
    if best == "batched":
        head = f"use `--vec-env batched`, which steps {_times(rate[best], here)} as fast as in-process"
    elif workers > _CLEARLY * here:
        head = f"use workers, which step {_times(workers, here)} as fast as in-process"
    elif here > _CLEARLY * workers:
        head = f"stay in-process, which steps {_times(here, workers)} as fast as workers"
    else:
        head = f"workers and in-process differ by no more than {100 * (_CLEARLY - 1):.0f} %, so stay in-process"
    auto = rate["auto"] / max(here, workers)
    threads = f" A thread per environment steps {_times(rate['threads'], here)} as fast." if "threads" in rate else ""
    memory, theirs_memory = (by_name[name]["memory_mb"] for name in ("workers", "SB3 Subproc"))
    return (
        f"**{kind.capitalize()}, {n} environments:** {head}. `--n-workers auto`, the default, reaches {auto:.0%} of "
        f"the faster of the two. Stable-Baselines3's DummyVecEnv steps {_times(rate['SB3 Dummy'], here)} as fast as "
        f"in-process, its SubprocVecEnv {_times(rate['SB3 Subproc'], workers)} as fast as workers, with "
        f"{theirs_memory:,.0f} MB of memory instead of {memory:,.0f} MB.{threads}"
    )


def _learning_advice(rows: Sequence[Row]) -> str:
    reached = [row for row in rows if row["reached"]]
    if not reached:
        return f"**Learning, {rows[0]['task']}:** no vectorizer reached the return of {rows[0]['target']:g}."
    fastest, slowest = (pick(reached, key=lambda row: row["seconds"]) for pick in (min, max))
    return (
        f"**Learning, {rows[0]['task']}:** {fastest['vectorizer']} reached a mean return of {rows[0]['target']:g} "
        f"first, after {fastest['seconds']:.1f} s, and {slowest['vectorizer']} last, after {slowest['seconds']:.1f} s, "
        f"{_times(slowest['seconds'], fastest['seconds'])} as long."
    )


def _learning_sentence(rows: Sequence[Row]) -> str:
    alike = [row["vectorizer"] for row in rows if row["weights"] == rows[0]["weights"]]
    return (
        f"PPO with the same seed and 8 environments trains until the mean return of 100 episodes is "
        f"{rows[0]['target']:g}. The weights are the same, bit for bit, with {', '.join(alike)}."
    )


def _throughput_table(rows: Sequence[Row]) -> str:
    names, sizes = _in_order(rows, "vectorizer"), _in_order(rows, "n_envs")
    cell = {(row["vectorizer"], row["n_envs"]): row for row in rows}
    lines = [["steps/s", *(f"{n} environment{'s' if n > 1 else ''}" for n in sizes)]]
    for name in names:
        notes = [f", {cell[name, n]['note']}" if cell[name, n]["note"] and name == "auto" else "" for n in sizes]
        rates = [f"{cell[name, n]['steps_per_second']:,.0f}" for n in sizes]
        lines.append([name, *(rate + note for rate, note in zip(rates, notes, strict=True))])
    return table(lines)


def _usage_table(rows: Sequence[Row]) -> str:
    n = max(row["n_envs"] for row in rows)
    lines = [[f"{n} environments", "CPU %", "memory, MB", "GPU %"]]
    for row in (row for row in rows if row["n_envs"] == n):
        gpu = "-" if row["gpu_percent"] is None else f"{row['gpu_percent']:.0f}"
        lines.append([row["vectorizer"], f"{row['cpu_percent']:.0f}", f"{row['memory_mb']:,.0f}", gpu])
    return table(lines)


def _learning_table(rows: Sequence[Row]) -> str:
    lines = [["vectorizer", "seconds", "steps", "return reached"]]
    for row in rows:
        lines.append(
            [row["vectorizer"], f"{row['seconds']:.1f}", f"{row['steps']:,}", "yes" if row["reached"] else "no"]
        )
    return table(lines)


def _times(above: float, below: float) -> str:
    return f"{above / below:.2f} times"


def _by_task(figures: Figures) -> list[list[Row]]:
    rows = figures["learning"]
    return [[row for row in rows if row["task"] == task] for task in _in_order(rows, "task")]


def _in_order(rows: Sequence[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _draw(figures: Figures, path: Path) -> None:
    from matplotlib.figure import Figure

    rows = figures["throughput"]
    names = _in_order(rows, "kind")
    figure = Figure(figsize=(3.6 * len(names) + 1.4, 3.6), layout="constrained")
    for axes, kind in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        of_kind = [row for row in rows if row["kind"] == kind]
        for name in _in_order(of_kind, "vectorizer"):
            points = [(row["n_envs"], row["steps_per_second"]) for row in of_kind if row["vectorizer"] == name]
            is_ours = not name.startswith(("SB3", "threads"))
            label = name if axes is figure.axes[0] else None
            axes.plot(*zip(*points, strict=True), marker="o", markersize=4, color=_COLORS[name], label=label,
                      linestyle="-" if is_ours else "--", linewidth=1.6)  # fmt: skip
        style_axes(axes)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = _in_order(of_kind, "n_envs")
        axes.set_xticks(sizes, [str(n) for n in sizes])
        axes.set_title(kind, fontsize=10)
        axes.set_xlabel("environments")
    figure.axes[0].set_ylabel("steps per second, log scale")
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=110)
