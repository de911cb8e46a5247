"""The report on a Gymnasium run: evaluation.json, learning_curve.png, and all of it with its settings on one page."""

import contextlib
import html
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_settings
from ml_pipeline.config.wording import counted, shortly
from ml_pipeline.models.rl.algorithms.evaluation import EvaluationResult
from ml_pipeline.monitoring.metrics_file import METRICS_FILE
from ml_pipeline.reporting.html_page import html_picture, html_table, png_of, write_html_page
from ml_pipeline.reporting.learning_curve_figure import CurveGroup, CurvePanel, learning_curve_figure
from ml_pipeline.reporting.learning_curves import LearningCurve, read_learning_curve
from ml_pipeline.reporting.report_files import EVALUATION_FILE, PAGE_FILE
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.train_config import TrainConfig

CURVE_FILE = "learning_curve.png"


def result_sentence(env_id: str, result: EvaluationResult, random: EvaluationResult | None = None) -> str:
    """random: of random actions in the same episodes; None if none of these ended in the steps that they had."""
    sentence = (
        f"Evaluation on a single {env_id}: return {result.mean_return:,.2f} ± {result.std_return:,.2f} "
        f"over {counted(len(result.returns), 'episode')}"
    )
    if random is None:
        return sentence
    beside = f"{sentence}; random actions: {random.mean_return:,.2f} ± {random.std_return:,.2f}"
    worse = "" if result.mean_return > random.mean_return else ". Warning: the policy did not beat random actions"
    return beside + worse


def write_gym_report(
    folder: Path,
    env_id: str,
    result: EvaluationResult,
    random: EvaluationResult | None = None,
    *,
    notices: Sequence[str] = (),
) -> None:
    """Write the report into `folder`; curve and settings are those of the run there, if it is a run folder.

    notices: sentences that the page begins with.
    """
    summary = _summary(result) | ({} if random is None else {"random": _summary(random)})
    (folder / EVALUATION_FILE).write_text(json.dumps(summary, indent=2) + "\n")
    parts = [f"<p>{html.escape(notice)}</p>" for notice in notices]
    parts.append(f"<p>{html.escape(result_sentence(env_id, result, random))}.</p>")
    if (folder / METRICS_FILE).is_file():
        parts += _training(folder, env_id, read_learning_curve(folder))
    header = ["episode", "return", "length (steps)"]
    rows = _rows(result)
    if random is not None:
        header += ["return of random actions", "their length (steps)"]
        of_random = [row[1:] for row in _rows(random)]
        rows = [row + beside for row, beside in zip_longest(rows, of_random, fillvalue=["-", "-"])]
    parts += ["<h2>Episodes of the evaluation</h2>", html_table([header, *rows])]
    if (folder / SETTINGS_FILE).is_file():
        with contextlib.suppress(UserError):  # a file that is for reading, and that somebody edited, costs no report
            parts += ["<h2>Settings</h2>", _settings(folder)]
    write_html_page(folder / PAGE_FILE, f"{env_id}: a trained policy", parts)


def _summary(result: EvaluationResult) -> dict[str, Any]:
    return {"mean_return": result.mean_return, "std_return": result.std_return, **asdict(result)}


def _rows(result: EvaluationResult) -> list[list[str]]:
    episodes = zip(result.returns, result.lengths, strict=True)
    return [[str(i + 1), f"{total:,.4g}", f"{length:,}"] for i, (total, length) in enumerate(episodes)]


def _training(folder: Path, env_id: str, curve: LearningCurve) -> list[str]:
    if not len(curve.steps):
        return []
    png = png_of(learning_curve_figure([CurvePanel(env_id, [CurveGroup(folder.name, [curve])], "mean return")]))
    (folder / CURVE_FILE).write_bytes(png)
    spent = (
        f"{curve.steps[-1]:,.0f} environment steps in {curve.training_s[-1]:,.1f} s of training "
        f"({curve.steps_per_second:,.0f} steps/s). Best score of an evaluation (mean return): "
        f"{curve.best_score:,.4g}."
    )
    picture = html_picture(png, "Returns of training episodes, and scores of evaluations, by environment steps")
    return ["<h2>Training</h2>", f"<p>{spent}</p>", picture]


def _settings(folder: Path) -> str:
    """Those of the run and its algorithm, beside the defaults; the market's are none of this task's."""
    defaults = TrainConfig()
    usual = {each.name: getattr(group, each.name) for group in (defaults.run, defaults.ppo) for each in fields(group)}
    settings = {**usual, **read_settings(folder / SETTINGS_FILE, TrainConfig)}
    rows = [[name, shortly(settings[name]), shortly(default)] for name, default in usual.items()]
    return html_table([["setting", "value", "default"], *rows])
