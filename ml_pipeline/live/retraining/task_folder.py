"""One retraining, in a folder of its own: what is to be done, and what came of it.

retraining/1/bars.parquet    the bars up to the time when it was due
retraining/1/config.yaml     the settings of the training
retraining/1/earlier.yaml    with --retrain-data, the settings that read the bars from before the session
retraining/1/order.json      what is asked; written last, so that a folder without it was never begun
retraining/1/run/            the run
retraining/1/output.log      what the process says
retraining/1/outcome.json    what came of it; a folder without it was interrupted
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
    """What is asked of a retraining. Paths are texts, as JSON has them.

    number: counted from 1 in a session. due: the time of the last bar. incumbent: the checkpoint or version of the
    model that trades, and incumbent_name what sentences call it. models, name: the model that a version is written to.
    cores: which processor cores it may use; empty: any. n_bars: of the session; None: all that it learns from.
    earlier_bars: how many from before the session it may use besides; None: all that there are.
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
    """What came of a retraining, in a sentence. version: the new one, such as v4; None: there is none."""

    state: State
    sentence: str
    version: str | None = None


def write_order(folder: Path, order: RetrainOrder) -> None:
    """Raises OSError where it cannot be written."""
    _write(folder / ORDER, asdict(order))


def read_order(folder: Path) -> RetrainOrder:
    """Raises UserError where there is none, or it is something else."""
    values = read_json_object(folder / ORDER)
    try:
        return RetrainOrder(**{**values, "cores": tuple(values["cores"])})
    except (TypeError, KeyError) as error:
        raise UserError(f"{folder / ORDER} is not the order of a retraining: {error}.") from error


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Raises OSError where it cannot be written."""
    _write(folder / OUTCOME, asdict(outcome))


def read_outcome(folder: Path) -> Outcome | None:
    """None where there is none that is whole."""
    try:
        outcome = Outcome(**read_json_object(folder / OUTCOME))
    except (UserError, TypeError):
        return None
    return outcome if outcome.state in get_args(State) else None


def orders_in(folder: Path) -> list[Path]:
    """The folders of all retrainings that were begun, by number. Removes those that never were."""
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
