"""Tables of runs for terminals and pipes; a narrow window shows the most important columns."""

import io
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ml_pipeline.config.wording import counted, last_line_first
from ml_pipeline.dashboard.summaries import BROKEN, RunSummary
from ml_pipeline.runs.folder import BEGAN_IN_NAME

GAP = 2
_NAME_WIDTH = 24
"""Width to which names are shortened before a column is dropped."""
_MOST_REASONS = 5
STYLES = {
    "running": "green",
    "evaluating": "green",
    "queued": "yellow",
    "stopped": "cyan",
    "failed": "red",
    BROKEN: "red",
}
_WORDS = re.compile(r"(?<=[-_/ ])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class _Column(NamedTuple):
    title: str
    cell: Callable[[RunSummary], str]
    rank: int
    """Columns with the highest rank are dropped first."""
    left: bool = False


_COLUMNS = (
    _Column("RUN", lambda run: run.name, 0, left=True),
    _Column("STATE", lambda run: run.activity, 0, left=True),
    _Column("TASK", lambda run: run.task or "-", 3, left=True),
    _Column("ALGORITHM", lambda run: run.algorithm or "-", 7, left=True),
    _Column("SEED", lambda run: _whole(run.seed), 4),
    _Column("DONE", lambda run: "-" if run.progress is None else f"{int(100 * run.progress)}%", 0),
    _Column("STEPS", lambda run: _whole(run.global_step), 6),
    _Column("STEPS/S", lambda run: _speed(run.steps_per_second), 0),
    _Column("LEFT", lambda run: duration(run.seconds_left), 0),
    _Column("RETURN", lambda run: figure(run.mean_return), 5),
    _Column("SCORE", lambda run: figure(run.last_score), 2),
    _Column("BEST", lambda run: figure(run.best_score), 0),
    _Column("UNIT", lambda run: run.score_unit or "-", 1, left=True),
    _Column("ENVS", lambda run: _whole(run.n_envs), 8),
    _Column("WORKERS", lambda run: _whole(run.n_workers), 8),
)


def status_table(runs: Sequence[RunSummary], *, width: int | None) -> Table:
    """One row per run. width: of the window, in characters; None, as for a pipe: all columns and full names."""
    cells = [[printable(column.cell(run)) for column in _COLUMNS] for run in runs]
    widths = [max([cell_len(column.title), *(cell_len(row[i]) for row in cells)]) for i, column in enumerate(_COLUMNS)]
    shown = _fitting(widths, width)
    others = sum(widths[i] + GAP for i in shown[1:])
    name_width = widths[0] if width is None else max(1, min(widths[0], width - others))
    table = bare_table()
    for i in shown:
        column = _COLUMNS[i]
        justify = "left" if column.left else "right"
        table.add_column(column.title, justify=justify, no_wrap=True, min_width=name_width if i == 0 else widths[i])  # type: ignore[arg-type]
    names = _shown_names([row[0] for row in cells], name_width)
    for run, row, name in zip(runs, cells, names, strict=True):
        texts = [Text(row[i]) for i in shown]
        texts[0] = Text(name)
        texts[1].stylize(STYLES.get(run.activity, ""))
        table.add_row(*texts)
    return table


def plain_lines(runs: Sequence[RunSummary]) -> list[str]:
    """The table with all columns and full names, without colours, for a pipe or a file."""
    return text_of(status_table(runs, width=None))


def bare_table() -> Table:
    """A table without lines, with columns `GAP` apart."""
    return Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")


def text_of(table: Table) -> list[str]:
    """The table as lines of plain text, for a pipe or a file."""
    console = Console(color_system=None, file=io.StringIO(), width=10_000)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def remarks(runs: Sequence[RunSummary], *, width: int | None = None) -> list[str]:
    """Lines below the table: the number of runs per state, why the next run waits, and why the newest runs failed.

    width: at which lines are wrapped; None: no wrapping.
    """
    states: dict[str, int] = {}
    for run in runs:
        states[run.status] = states.get(run.status, 0) + 1
    lines = [f"{counted(len(runs), 'run')}: " + ", ".join(f"{n:,} {status}" for status, n in states.items())]
    waiting = [run for run in runs if run.status == "queued" and run.reason]
    lines += [f"{run.name} {run.reason[0].lower()}{run.reason[1:]}" for run in waiting[:1] if run.reason]
    failed = [run for run in runs if run.status in {"failed", BROKEN} and run.reason]
    lines += [f"{run.name} {run.status}: {last_line_first(run.reason)}" for run in failed[:_MOST_REASONS] if run.reason]
    if len(failed) > _MOST_REASONS:
        lines.append(f"and {len(failed) - _MOST_REASONS:,} more that failed")
    lines = [printable(" ".join(line.split())) for line in lines]
    if width is None:
        return lines
    return [part for line in lines for part in textwrap.wrap(line, max(width, 10), subsequent_indent="  ")]


def duration(seconds: float | None) -> str:
    """A duration in at most eight characters.

    >>> duration(59.6), duration(3_723), duration(400_000), duration(1e9), duration(None)
    ('1:00', '1:02:03', '4d 15h', '11574d', '-')
    """
    if seconds is None:
        return "-"
    whole = round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86_400
    if hours < 1:
        return f"{minutes}:{whole % 60:02}"
    if days < 1:
        return f"{hours}:{minutes % 60:02}:{whole % 60:02}"
    return f"{days}d {hours % 24:02}h" if days < 1000 else f"{days}d"


def _fitting(widths: Sequence[int], width: int | None) -> list[int]:
    """Indices of the columns that fit next to a shortened name, in order."""
    shown = list(range(len(_COLUMNS)))
    while width is not None and _taken(widths, shown) > width:
        least = max(_COLUMNS[i].rank for i in shown)
        if least == 0:
            break
        shown.remove(max(i for i in shown if _COLUMNS[i].rank == least))
    return shown


def _taken(widths: Sequence[int], shown: Sequence[int]) -> int:
    return min(widths[0], _NAME_WIDTH) + sum(GAP + widths[i] for i in shown[1:])


def _shown_names(names: Sequence[str], width: int) -> list[str]:
    """Names shortened to the width: first without the service's random suffix, then without times if the rest differs,
    then without the common prefix.

    >>> _shown_names(["CartPole-v1-seed7-20260101-120000-6b2882", "CartPole-v1-seed8-20260101-120000-77aa01"], 24)
    ['CartPole-v1-seed7', 'CartPole-v1-seed8']
    >>> _shown_names(["CartPole-v1-20260101-120000", "CartPole-v1-20260101-120107"], 24)
    ['CartPole-v1 01-01 12:00', 'CartPole-v1 01-01 12:01']
    >>> _shown_names(["CartPole-v1-learning-rates-seed12", "CartPole-v1-learning-rates-seed13"], 12)
    ['…seed12', '…seed13']
    """
    if all(cell_len(name) <= width for name in names):
        return [*names]
    found = [BEGAN_IN_NAME.sub("", name) for name in names]
    counts = Counter(found)
    found = [
        short if counts[short] == 1 else BEGAN_IN_NAME.sub(r" \1-\2 \3:\4", name)
        for name, short in zip(names, found, strict=True)
    ]
    if len(set(found)) < len(set(names)):  # started in the same minute
        found = [BEGAN_IN_NAME.sub(r" \3:\4:\5\6", name) for name in names]
    words = [_WORDS.split(name) for name in found]
    if len(set(found)) > 1 and any(cell_len(name) > width for name in found):
        same = next(i for i, each in enumerate(zip_longest(*words)) if len(set(each)) > 1)
        for kept in (words[0][: min(1, same - 1)], []):  # keep the first word of the common prefix if possible
            shorter = [[*kept, "…", *each[same:]] if same else each for each in words]
            if all(cell_len("".join(each)) <= width for each in shorter):
                break
        words = shorter
    return [_fitted(each, width) for each in words]


def _fitted(words: Sequence[str], width: int) -> str:
    """The words of a name, without words in the middle if they do not fit."""
    if cell_len(text := "".join(words)) <= width:
        return text
    for dropped in range(1, len(words) - 1):
        first = (len(words) - dropped + 1) // 2
        text = "".join(words[:first]).rstrip("-_/ ") + "…" + "".join(words[first + dropped :])
        if cell_len(text) <= width:
            return text
    return f"{set_cell_size(words[-1], width - 1).rstrip()}…" if width > 1 else set_cell_size(text, width)


def printable(text: str) -> str:
    """The text without control characters, which names of folders may contain."""
    return _CONTROL.sub("?", text)


def _whole(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
