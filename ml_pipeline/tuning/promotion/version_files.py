"""What a version of a deployed model is made of, and the history of the model's versions.

A version has the checkpoint, its settings, its data, a file that runs anywhere, and its evaluation on validation data.
A line of history.jsonl is a JSON object: "action" is promote, rollback, or found (`current` was switched by hand, or by
a process that was killed before it could write); "when" in UTC, "from" and "to" are versions, and a promotion names
study and trial.
"""

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.runs.folder import BEST_CHECKPOINT, SETTINGS_FILE
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.report_heading import write_report_heading
from ml_pipeline.runs.tasks import describe_task
from ml_pipeline.runs.trained.configs import SUFFIXES, ExportConfig, Format
from ml_pipeline.runs.trained.deployed import version_number
from ml_pipeline.runtime.files import read_regular
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import TradedMarket

if TYPE_CHECKING:
    from ml_pipeline.tuning.promotion.comparison import SavedPolicy

DATA_FILE = "data.json"
"""What the policy was trained on: a fingerprint, and when its splits begin and end."""
EXPORTED = "policy"
HOLDING_KEY = "beside_holding"
"""In promotion.json: whether the policy beats buy and hold on validation data, and a sentence that says so."""
_TELLING = ("total_return", "volatility", "max_drawdown")  # which two equities have in common by chance only
VALIDATION_FOLDER = "validation"


def write_version(run: Path, folder: Path) -> dict[str, Any]:
    """Write the files of a version, from a run folder into an empty one. Returns what promotion.json says of them.

    Raises UserError where the run or its data cannot be used.
    """
    from ml_pipeline.tuning.promotion.comparison import (
        SavedPolicy,  # loads torch, which a list of versions does without
    )

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
    if isinstance(task, GymTask):
        with closing(task.evaluation_env()) as env:
            act = policy.act_in(env)
        task.report(act, evaluation)
        write_report_heading(evaluation, run)
    else:
        with closing(task.evaluation_env("validation")) as env:
            act = policy.act_in(env)
        figures = task.evaluate(act, "validation", evaluation)
        holding = _beside_holding(figures["agent"], figures["buy_and_hold"], by=config.trading.score)
    return {"exported": _export(policy, folder), HOLDING_KEY: holding}


def beside_holding(promotion: Mapping[str, Any]) -> tuple[str, ...]:
    """The sentence of promotion.json about the policy beside buy and hold; none for a Gymnasium environment."""
    told = promotion.get(HOLDING_KEY)
    return (str(told["sentence"]),) if isinstance(told, Mapping) and "sentence" in told else ()


def _beside_holding(agent: Mapping[str, Any], holding: Mapping[str, Any], *, by: str) -> dict[str, Any]:
    """Whether a policy beats buy and hold on validation data. by: what the study's trials were scored by.

    agent, holding: of an evaluation, see `TradingTask.evaluate`.
    """
    measure, words = ("sharpe", "Sharpe ratio") if by == "sharpe" else ("total_return", "return")
    same = all(_same_figure(agent[name], holding[name]) for name in _TELLING)
    beats = not same and agent[measure] > holding[measure]  # of NaN, nothing is known: it does not
    verdict = "it is buy and hold to the digit" if same else f"it {'beats' if beats else 'does not beat'} buy and hold"
    own, its = ("none" if math.isnan(each["sharpe"]) else f"{each['sharpe']:.2f}" for each in (agent, holding))
    returned, held = (f"{100 * each['total_return']:+,.2f} %" for each in (agent, holding))
    sentence = (
        f"On validation data {verdict}, by its {words}: it returned {returned} and holding {held}, with Sharpe ratios "
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


def _export(policy: "SavedPolicy", folder: Path) -> Mapping[str, Any]:
    """Write the policy as a program that needs no part of this package, and say which file, or why there is none."""
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


HISTORY_FILE = "history.jsonl"
_MOST_BYTES = 16_000_000

Action = Literal["promote", "rollback", "found"]


class Switch(NamedTuple):
    """One switch of `current`. before, after: numbers of versions; before is None for the first."""

    action: str
    when: str
    before: int | None
    after: int
    details: Mapping[str, Any] = {}

    def as_json(self) -> dict[str, Any]:
        before = None if self.before is None else f"v{self.before}"
        return {"action": self.action, "when": self.when, "from": before, "to": f"v{self.after}", **self.details}


def new_switch(action: Action, before: int | None, after: int, **details: Any) -> Switch:
    """A switch that happens now."""
    return Switch(action, datetime.now(UTC).isoformat(timespec="seconds"), before, after, details)


def read_history(model: Path, current: int | None) -> list[Switch]:
    """The switches of a model's folder, the earliest first; lines that are none, such as a torn one, are left out.

    current: the version that is deployed; where the last line tells of another one, a switch "found" follows it.
    Raises OSError where the file cannot be read.
    """
    try:
        lines = read_regular(model / HISTORY_FILE, most_bytes=_MOST_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    switches = [switch for line in lines if (switch := _switch_in(line)) is not None]
    latest = switches[-1].after if switches else None
    if current is not None and current != latest:
        switches.append(new_switch("found", latest, current))
    return switches


def as_lines(switches: Sequence[Switch]) -> str:
    """The text of history.jsonl."""
    return "".join(f"{json.dumps(switch.as_json())}\n" for switch in switches)


def deployed_in_turn(switches: Sequence[Switch]) -> list[int]:
    """The versions that led to the one that is deployed, each after the one that a rollback from it returns to.

    >>> deployed_in_turn([new_switch("promote", None, 1), new_switch("promote", 1, 2), new_switch("promote", 2, 3)])
    [1, 2, 3]
    >>> deployed_in_turn([new_switch("promote", None, 1), new_switch("promote", 1, 2), new_switch("rollback", 2, 1)])
    [1]
    """
    versions: list[int] = []
    for switch in switches:
        if switch.action != "promote" and switch.after in versions:
            del versions[versions.index(switch.after) :]
        elif switch.after in versions:
            versions.remove(switch.after)
        versions.append(switch.after)
    return versions


def _switch_in(line: str) -> Switch | None:
    try:
        values = json.loads(line)
        action, when = str(values.pop("action")), str(values.pop("when"))
        before, after = values.pop("from"), version_number(values.pop("to"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return None if after is None else Switch(action, when, version_number(str(before)), after, values)
