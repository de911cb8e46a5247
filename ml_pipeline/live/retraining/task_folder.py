"""The folder of one retraining: its task and its result.

retraining/1/bars.parquet    the bars up to the time when it was due
retraining/1/config.yaml     the settings of the training
retraining/1/earlier.yaml    with --retrain-data, the settings that read the bars from before the session
retraining/1/order.json      the task; written last, so a retraining without it was never started
retraining/1/run/            the run
retraining/1/output.log      the output of the process
retraining/1/outcome.json    the result; a retraining without it was interrupted
"""

import contextlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import read_json_object
from ml_pipeline.runtime.files import written_whole

BARS, SETTINGS, EARLIER, ORDER, RUN, OUTPUT, OUTCOME = (
    *("bars.parquet", "config.yaml", "earlier.yaml", "order.json", "run", "output.log", "outcome.json"),
)

State = Literal["promoted", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class RetrainOrder:
    """The task of a retraining. Paths are text, for JSON.

    number: counted from 1 in a session. due: the time of the last bar. incumbent: the checkpoint or version of the
    current model; incumbent_name: its name in messages. models, name: folder of models and name of the model for the
    new version. cores: processor cores it may use; empty: any. n_bars: number of the session's bars; None: all bars.
    earlier_bars: most bars from before the session; None: all.
    """

    number: int
    session: str
    due: str
    begin: str
    validation: float
    min_dsr: float
    margin: float
    incumbent: str
    incumbent_name: str
    models: str
    name: str
    cores: tuple[int, ...] = ()
    package_version: str | None = None
    n_bars: int | None = None
    earlier_bars: int | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a retraining, with a sentence. version: the new one, such as v4; None: no new version."""

    state: State
    sentence: str
    version: str | None = None


def write_order(folder: Path, order: RetrainOrder) -> None:
    """Write the task. Raises OSError if it cannot be written."""
    _write(folder / ORDER, asdict(order))


def read_order(folder: Path) -> RetrainOrder:
    """Read the task. Raises UserError if it is missing or invalid."""
    values = read_json_object(folder / ORDER)
    try:
        return RetrainOrder(**{**values, "cores": tuple(values["cores"])})
    except (TypeError, KeyError) as error:
        raise UserError(f"{folder / ORDER} is not the order of a retraining: {error}.") from error


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write the result. Raises OSError if it cannot be written."""
    _write(folder / OUTCOME, asdict(outcome))


def read_outcome(folder: Path) -> Outcome | None:
    """The result; None if it is missing or incomplete."""
    try:
        outcome = Outcome(**read_json_object(folder / OUTCOME))
    except (UserError, TypeError):
        return None
    return outcome if outcome.state in get_args(State) else None


def orders_in(folder: Path) -> list[Path]:
    """The folders of all started retrainings, by number. Removes those that were never started."""
    found = sorted(int(path.name) for path in folder.glob("[1-9]*") if path.name.isdigit() and path.is_dir())
    folders = []
    for path in (folder / str(number) for number in found):
        if (path / ORDER).is_file():
            folders.append(path)
        else:
            with contextlib.suppress(OSError):
                shutil.rmtree(path)
    return folders


def _write(path: Path, values: dict[str, Any]) -> None:
    with written_whole(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=2) + "\n")
