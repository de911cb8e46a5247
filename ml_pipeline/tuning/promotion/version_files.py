"""Writes the files of a deployed version: the checkpoint, its settings, a description of its data, a file that runs
anywhere, and its evaluation on validation data."""

import json
import math
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.runs.folder import BEST_CHECKPOINT, SETTINGS_FILE
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.report_heading import write_report_heading
from ml_pipeline.runs.tasks import describe_task
from ml_pipeline.runs.trained.configs import SUFFIXES, ExportConfig, Format
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import TradedMarket
from ml_pipeline.tuning.promotion.model_store import DATA_FILE
from ml_pipeline.tuning.promotion.verdict import SavedPolicy

EXPORTED = "policy"
HOLDING_KEY = "beside_holding"
"""In promotion.json: whether the policy beats buy and hold on validation data, and a sentence about it."""
_TELLING = ("total_return", "volatility", "max_drawdown")  # which two equities have in common by chance only
VALIDATION_FOLDER = "validation"


def write_version(run: Path, folder: Path) -> dict[str, Any]:
    """Write the files of a version, from a run folder into an empty one. Returns their entries for promotion.json.

    Raises UserError if the run or its data cannot be used.
    """
    shutil.copyfile(SavedPolicy(run).checkpoint, folder / BEST_CHECKPOINT)
    if (run / SETTINGS_FILE).is_file():
        shutil.copyfile(run / SETTINGS_FILE, folder / SETTINGS_FILE)
    policy = SavedPolicy(folder)
    config = policy.config
    task = GymTask.of(config.run) if config.run.env_id is not None else policy.trading_task(config)
    (folder / DATA_FILE).write_text(json.dumps(_described(task), indent=2) + "\n", encoding="utf-8")
    evaluation = folder / VALIDATION_FOLDER
    evaluation.mkdir()
    holding: dict[str, Any] | None = None
    act = policy.act_for(task)
    if isinstance(task, GymTask):
        task.report(act, evaluation)
        write_report_heading(evaluation, run)
    else:
        figures = task.evaluate(act, "validation", evaluation)
        holding = _beside_holding(figures["agent"], figures["buy_and_hold"], by=config.trading.score)
    return {"exported": _export(policy, folder), HOLDING_KEY: holding}


def beside_holding(promotion: Mapping[str, Any]) -> tuple[str, ...]:
    """The sentence in promotion.json that compares the policy with buy and hold; none for a Gymnasium environment."""
    told = promotion.get(HOLDING_KEY)
    return (str(told["sentence"]),) if isinstance(told, Mapping) and "sentence" in told else ()


def _beside_holding(agent: Mapping[str, Any], holding: Mapping[str, Any], *, by: str) -> dict[str, Any]:
    """Whether a policy beats buy and hold on validation data. by: the score of the study's trials.

    agent, holding: of an evaluation, see `TradingTask.evaluate`.
    """
    measure, words = ("sharpe", "Sharpe ratio") if by == "sharpe" else ("total_return", "return")
    same = all(_same_figure(agent[name], holding[name]) for name in _TELLING)
    beats = not same and agent[measure] > holding[measure]  # NaN never beats
    verdict = "it equals buy and hold exactly" if same else f"it {'beats' if beats else 'does not beat'} buy and hold"
    own, its = ("none" if math.isnan(each["sharpe"]) else f"{each['sharpe']:.2f}" for each in (agent, holding))
    returned, held = (f"{100 * each['total_return']:+,.2f} %" for each in (agent, holding))
    sentence = (
        f"On validation data {verdict} in {words}: it returned {returned} and buy and hold {held}, with Sharpe ratios "
        f"of {own} and {its}."
    )
    return {"beats": beats, "same": same, "by": measure, "sentence": sentence}


def _same_figure(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9) or (math.isnan(one) and math.isnan(other))


def _described(task: GymTask | TradingTask) -> dict[str, Any]:
    described = describe_task(task)
    accounts = task.accounts if isinstance(task, TradingTask) else {}
    spans = {symbol: {name: _span(own, name) for name in ("train", "validation")} for symbol, own in accounts.items()}
    return {**described, **({"splits": spans.get("", spans)} if spans else {})}


def _span(traded: TradedMarket, name: str) -> dict[str, Any]:
    split, times = traded.split(name), traded.market.times
    return {"first": str(times[split.start]), "last": str(times[split.stop - 1]), "bars": split.n_bars}


def _export(policy: SavedPolicy, folder: Path) -> Mapping[str, Any]:
    """Write the policy as a program that does not need this package; return the file, or why there is none."""
    from ml_pipeline.runs.trained.export import export_checkpoint

    if policy.config.run.algorithm != OWN:
        return {"file": None, "reason": f"policies of {policy.config.run.algorithm} are not exported"}
    has_onnx = all(find_spec(name) for name in ("onnxscript", "onnxruntime"))
    file_format: Format = "onnx" if has_onnx else "torch"
    path = folder / f"{EXPORTED}{SUFFIXES[file_format]}"
    try:
        export_checkpoint(ExportConfig(checkpoint=folder / BEST_CHECKPOINT, format=file_format, output=path))
    except (UserError, CheckFailed) as error:
        return {"file": None, "reason": str(error)}
    return {"file": path.name, "format": file_format}
