"""Compares runs: a table, the settings that differ, and learning curves in one figure."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_settings
from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.wording import counted, score_unit, text_table, written
from ml_pipeline.reporting.learning_curve_figure import CurveGroup, CurvePanel, learning_curve_figure
from ml_pipeline.reporting.learning_curves import By, LearningCurve, mean_and_interval, read_learning_curve
from ml_pipeline.runs.folder import BEGAN_IN_NAME, SETTINGS_FILE
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.train_config import TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Runs of a group may differ in these: the seed, and settings that do not affect results.
_WITHIN_A_GROUP = frozenset({
    "seed", "checkpoint_dir", "checkpoint_interval", "n_workers", "parallel_start_method", "step_timeout_s",
    "on_worker_failure", "tensorboard", "tensorboard_dir", "wandb", "sink", *OF_LAUNCH,
})  # fmt: skip
# The legend shows the settings that differ, up to this many.
_MOST_IN_LEGEND = 2


@dataclass(frozen=True)
class ComparedRun:
    """A run by its folder. settings: every setting by name, defaults included. status: - without a state.json."""

    name: str
    folder: Path
    settings: Mapping[str, Any]
    curve: LearningCurve
    status: str = "-"

    @property
    def score_unit(self) -> str | None:
        return score_unit(self.settings["env_id"], self.settings["score"])

    @property
    def task(self) -> str:
        """The environment or market; returns are comparable within one."""
        if self.settings["env_id"] is not None:
            return str(self.settings["env_id"])
        data = self.settings["data"]
        return "trading on " + (str(data) if data is not None else "the built-in market")


class Comparison:
    """Runs, and groups of runs that differ only by seed, in the given order."""

    def __init__(self, runs: Sequence[ComparedRun]) -> None:
        self.runs = tuple(runs)
        groups: dict[str, list[ComparedRun]] = {}
        for run in runs:
            kind = {name: value for name, value in run.settings.items() if name not in _WITHIN_A_GROUP}
            groups.setdefault(repr(kind), []).append(run)
        self.groups = tuple(map(tuple, groups.values()))
        self.differing = _differing(self.groups)
        """Settings in which groups differ: by name, the groups with each value, as text."""

    def table(self) -> str:
        """One row per run, and the remarks below."""
        header = ["run", "seed", "steps", "best score", "last score", "unit", "return, last 5 %", "steps/s", "status"]
        rows = [
            [
                run.name,
                str(run.settings["seed"]),
                f"{_last(run.curve.steps):,.0f}",
                _figure(run.curve.best_score),
                _figure(run.curve.last_score),
                run.score_unit or "-",
                _figure(run.curve.last_return()),
                _figure(run.curve.steps_per_second, ",.0f"),
                run.status,
            ]
            for run in self.runs
        ]
        remarks = self.remarks()
        return "\n".join([text_table([header, *rows]), *([""] if remarks else []), *remarks])

    def remarks(self) -> list[str]:
        """Sentences: means of groups, settings that differ, and results that are not comparable."""
        return [*self._about_groups(), *self._about_settings(), *self._about_tasks(), *self._about_doubtful()]

    def figure(self, *, by: By = "steps", smooth: int = 10) -> "Figure":
        """Learning curves, one column per task. Raises UserError if no run has finished an iteration yet."""
        panels = []
        for task in dict.fromkeys(run.task for run in self.runs):
            of_task = [
                tuple(run for run in group if run.task == task and len(run.curve.steps)) for group in self.groups
            ]
            groups = [CurveGroup(self._label(group), [run.curve for run in group]) for group in of_task if group]
            units = {run.score_unit for group in of_task for run in group}
            if groups:
                panels.append(CurvePanel(task, groups, units.pop() if len(units) == 1 else None))
        if not panels:
            raise UserError("There is nothing to draw yet: none of these runs has finished an iteration.")
        return learning_curve_figure(panels, by=by, smooth=smooth)

    def _label(self, group: Sequence[ComparedRun]) -> str:
        label = _name_of(group)
        if 0 < len(self.differing) <= _MOST_IN_LEGEND:
            settings = group[0].settings
            label += ": " + ", ".join(f"{name} {written(settings[name])}" for name in self.differing)
        return label

    def _about_groups(self) -> Iterable[str]:
        for group in self.groups:
            returns = np.array([run.curve.last_return() for run in group])
            returns = returns[np.isfinite(returns)]
            if len(returns) > 1:
                mean, half_width = mean_and_interval(returns)
                yield (
                    f"{_name_of(group)}: return of the last 5 % {_figure(float(mean))} ± {_figure(float(half_width))} "
                    "(mean and 95 % interval)"
                )

    def _about_settings(self) -> Iterable[str]:
        for name, values in self.differing.items():
            yield f"{name}: " + "; ".join(f"{value} in {', '.join(groups)}" for value, groups in values.items())

    def _about_tasks(self) -> Iterable[str]:
        tasks = dict.fromkeys(run.task for run in self.runs)
        if len(tasks) > 1:
            yield f"These runs learned different tasks ({', '.join(tasks)}): scores and returns are not comparable."

    def _about_doubtful(self) -> Iterable[str]:
        for run in self.runs:
            if not len(run.curve.steps):
                yield f"{run.name} has not finished an iteration yet."
        for group in self.groups:
            seeds = Counter(run.settings["seed"] for run in group)
            for seed, n_runs in seeds.items():
                if n_runs > 1:
                    same = ", ".join(run.name for run in group if run.settings["seed"] == seed)
                    yield f"{same} have the same settings and seed {seed}: together they show no more than one of them."


def read_comparison(folders: Sequence[Path]) -> Comparison:
    """Read the runs in these folders. Raises UserError if one is not a run folder, or is given twice."""
    if not folders:
        raise UserError("RUN is missing; name the folders of runs to compare, such as checkpoints/RUN.")
    resolved = [folder.expanduser().resolve() for folder in folders]
    twice = next((folder for folder, n in Counter(resolved).items() if n > 1), None)
    if twice is not None:
        raise UserError(f"{twice} is named twice; name each run once.")
    return Comparison(
        [
            ComparedRun(
                name=name,
                folder=folder,
                curve=read_learning_curve(folder),
                settings=_settings_of(folder),
                status="-" if (state := read_state(folder)) is None else state.status,
            )
            for name, folder in zip(_names(folders, resolved), resolved, strict=True)
        ]
    )


def _names(typed: Sequence[Path], folders: Sequence[Path]) -> list[str]:
    """A unique name per run: without start time and random suffix, unless they are needed to be unique."""
    full = [folder.name for folder in folders]
    meanings = [BEGAN_IN_NAME.sub("", name) for name in full]
    begun = [BEGAN_IN_NAME.sub(lambda found: found[0].removesuffix(found[6] or ""), name) for name in full]
    for names in (meanings, begun):
        if len({*names}) == len(names):
            return names
    return [name if full.count(name) == 1 else str(path) for name, path in zip(full, typed, strict=True)]


def write_figure(figure: "Figure", path: Path) -> None:
    """Creates no folder. Raises UserError if the file cannot be written."""
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another.") from error


def _settings_of(folder: Path) -> dict[str, Any]:
    defaults = {
        field.name: getattr(group, field.name) for group in vars(TrainConfig()).values() for field in fields(group)
    }
    return {**defaults, **read_settings(folder / SETTINGS_FILE, TrainConfig)}


def _differing(groups: Sequence[Sequence[ComparedRun]]) -> dict[str, dict[str, list[str]]]:
    differing: dict[str, dict[str, list[str]]] = {}
    for name in sorted({*groups[0][0].settings} - _WITHIN_A_GROUP):
        values: dict[str, list[str]] = {}
        for group in groups:
            values.setdefault(written(group[0].settings[name]), []).append(_name_of(group))
        if len(values) > 1:
            differing[name] = values
    return differing


def _name_of(group: Sequence[ComparedRun]) -> str:
    """The name of a single run, or the common part of several names."""
    if len(group) == 1:
        return group[0].name
    in_common = takewhile(lambda letters: len({*letters}) == 1, zip(*(run.name for run in group), strict=False))
    common = "".join(letters[0] for letters in in_common).rstrip("-_. ").removesuffix("seed").rstrip("-_. ")
    return f"{common or group[0].name} ({counted(len(group), 'run')})"


def _last(values: Sequence[float] | np.ndarray) -> float:
    return float(values[-1]) if len(values) else 0.0


def _figure(value: float, form: str = ",.4g") -> str:
    return format(value, form) if math.isfinite(value) else "-"
