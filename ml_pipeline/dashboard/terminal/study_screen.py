"""Studies in the terminal: key figures, progress bars of running trials, and machine usage, within 80 columns."""

import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.cells import cell_len
from rich.console import Group
from rich.text import Text

from ml_pipeline.config.wording import counted, in_one_line
from ml_pipeline.dashboard.studies import StudySummary
from ml_pipeline.dashboard.summaries import BROKEN
from ml_pipeline.dashboard.terminal.run_table import STYLES, duration, figure, printable
from ml_pipeline.monitoring.resources import MachineUse

_LABEL = 14
_BAR = 14
_MOST_FAILURES = 3
_LONGEST_TEXT = 400


def study_lines(
    study: StudySummary, *, machine: MachineUse | None = None, width: int | None = None, now: datetime | None = None
) -> list[str]:
    """All lines of a study. machine: current usage. width: at which lines are wrapped; None: no wrapping."""
    lines = [_line("Study", f"{study.name}, {study.status}")]
    for sentence in filter(None, [study.reason, *study.feature_warnings]):
        lines.append(_line("", in_one_line(sentence, longest=_LONGEST_TEXT)))
    if study.status != BROKEN:
        lines += _figures(study)
    lines += _machine(machine)
    lines += [_line("Running" if i == 0 else "", text) for i, text in enumerate(_running(study, now=now))]
    lines += [_line("Failed" if i == 0 else "", text) for i, text in enumerate(_failed(study))]
    lines = [printable(line) for line in lines]
    if width is None:
        return lines
    indent = " " * _LABEL
    return [part for line in lines for part in textwrap.wrap(line, max(width, 20), subsequent_indent=indent)]


def study_line(study: StudySummary) -> str:
    """A study in one line, for below a table of runs."""
    parts = [f"Study {study.name}: {study.status}"]
    if study.status == BROKEN:
        return printable(f"{parts[0]}: {study.reason}")
    if study.n_trials is not None:
        parts.append(f"{study.finished or 0:,} of {counted(study.n_trials, 'trial')}")
    pace = study.trials_per_hour_last_hour or study.trials_per_hour
    if study.status == "running" and pace:
        parts.append(f"{figure(pace)} trials/hour")
    if study.status == "running" and study.seconds_left is not None:
        parts.append(f"{duration(study.seconds_left)} left")
    if study.best is not None:
        parts.append(f"best {_value(study, study.best.value)} by trial {study.best.number}")
    parts += [f"{n:,} {what}" for n, what in ((len(study.running), "running"), (study.failed, "failed")) if n]
    return printable(", ".join(parts))


def study_screen(
    studies: Sequence[StudySummary], *, machine: MachineUse | None, width: int, height: int, now: datetime | None = None
) -> Group:
    """The first study in full, the others in one line each, within a window of width x height."""
    lines = [_styled(line, studies[0]) for line in study_lines(studies[0], machine=machine, width=width, now=now)]
    others = [Text(study_line(study), no_wrap=True, overflow="ellipsis") for study in studies[1:]]
    room = max(1, height - 1)
    if others:
        lines = lines[: max(1, room - min(len(others), 5) - 1)]
        others = [Text(""), *others][: room - len(lines)]
    return Group(*lines[:room], *others)


def _figures(study: StudySummary) -> list[str]:
    done = f"{study.finished or 0:,} of {counted(study.n_trials or 0, 'trial')}"
    if study.progress is not None:
        done += f" ({int(100 * study.progress)}%)"
    kinds = [("complete", study.complete), ("pruned", study.pruned), ("failed", study.failed)]
    kinds.append(("impossible", study.impossible))
    done += "".join(f", {n:,} {kind}" for kind, n in kinds if n)
    pace = figure(study.trials_per_hour)
    if study.trials_per_hour_last_hour is not None:
        pace = f"{figure(study.trials_per_hour_last_hour)} in the last hour, {pace} in all"
    jobs = f", {counted(study.jobs, 'trial')} at once" if study.jobs else ""
    lines = [_line("Trials", done), _line("Trials/hour", f"{pace}{jobs}")]
    if study.status == "running":
        lines.append(_line("Time left", duration(study.seconds_left)))
    if study.best is None:
        return [*lines, _line("Best so far", "-")]
    settings = ", ".join(f"{name} {value}" for name, value in study.best.settings.items())
    lines.append(_line("Best so far", f"{_value(study, study.best.value)} by trial {study.best.number}"))
    return [*lines, *([_line("", in_one_line(settings, longest=_LONGEST_TEXT))] if settings else [])]


def _value(study: StudySummary, value: float) -> str:
    """A value with its unit, such as "0.0315 log return"."""
    return " ".join(filter(None, [figure(value), study.value_unit]))


def _machine(machine: MachineUse | None) -> list[str]:
    if machine is None:
        return []
    memory = f"memory {machine.memory_gib:.1f} of {machine.total_gib:.1f} GiB"
    lines = [_line("CPU", f"{machine.cpu_percent:.0f}% of {counted(machine.n_cores, 'core')}, {memory}")]
    for gpu in machine.gpus:
        parts = [] if gpu.percent is None else [f"{gpu.percent:.0f}%"]
        if gpu.memory_gib is not None and gpu.total_gib is not None:
            parts.append(f"memory {gpu.memory_gib:.1f} of {gpu.total_gib:.1f} GiB")
        lines.append(_line("GPU", f"{gpu.name}: {', '.join(parts) or 'usage unknown'}"))
    return lines


def _running(study: StudySummary, *, now: datetime | None) -> list[str]:
    lines = []
    several = len({trial.host for trial in study.running}) > 1
    for trial in study.running:
        share = trial.progress or 0.0
        percent = "  -" if trial.progress is None else f"{int(100 * share):2}%"
        filled = round(share * _BAR)
        parts = [f"trial {trial.number:<4} [{'#' * filled}{'.' * (_BAR - filled)}] {percent}"]
        parts.append(duration(_since(trial.began, now or datetime.now(UTC))))
        parts += [] if trial.value is None else [f"best {figure(trial.value)}"]
        parts += [] if trial.host is None or not several else [f"on {trial.host}"]
        lines.append("  ".join(parts))
    return lines


def _failed(study: StudySummary) -> list[str]:
    lines = [
        f"{failure.times:,} x {in_one_line(failure.reason, longest=_LONGEST_TEXT)}"
        for failure in study.failures[:_MOST_FAILURES]
    ]
    more = sum(failure.times for failure in study.failures[_MOST_FAILURES:])
    return [*lines, *([f"and {more:,} more for other reasons"] if more else [])]


def _since(began: str | None, now: datetime) -> float | None:
    try:
        return max(0.0, (now - datetime.fromisoformat(began or "")).total_seconds())
    except (ValueError, TypeError):  # invalid, or without a time zone
        return None


def _line(label: str, text: str) -> str:
    return f"{label:{_LABEL}}{text}"


def _styled(line: str, study: StudySummary) -> Text:
    text = Text(line, no_wrap=True, overflow="ellipsis")
    text.stylize("bold", 0, min(_LABEL, cell_len(line)))
    if line.startswith("Study"):
        text.stylize(STYLES.get(study.status, ""), _LABEL + len(study.name) + 2)
    return text
