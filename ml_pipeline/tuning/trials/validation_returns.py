"""What a policy earned on the validation split, bar by bar after costs: the record that selection is judged by."""

import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.files import open_regular, unpacked_bytes, written_whole
from ml_pipeline.trading.evaluation.baselines import Act, EquityPath
from ml_pipeline.trading.evaluation.metrics import returns_of, sharpe
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.timeframes import infer_calendar
from ml_pipeline.tuning.study_files import RETURNS_FILE

# Of 8 million bars.
_MOST_BYTES = 1 << 27
# What numpy and zipfile raise over an archive with bytes missing or changed, besides errors of their own.
_UNREADABLE = (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, struct.error)


class ScoredTask(Protocol):
    """`TradingTask` is."""

    def scored_paths(self, act: Act) -> tuple[EquityPath, ...]: ...


@dataclass(frozen=True, eq=False)
class ValidationReturns:
    """time: datetime64 (T,), the close of each bar. returns: float64 (T,), simple, after costs."""

    time: NDArray[np.datetime64]
    returns: FloatArray
    periods_per_year: float

    def __post_init__(self) -> None:
        if self.time.ndim != 1 or self.time.shape != self.returns.shape:
            raise UserError(
                f"Each return needs a time, but there are {self.returns.shape} returns and {self.time.shape} times."
            )
        if not np.isfinite(self.returns).all() or not self.periods_per_year > 0:
            raise UserError("Returns must be finite numbers, and their bars per year more than 0.")

    def __len__(self) -> int:
        return len(self.returns)

    @property
    def sharpe(self) -> float:
        """Annualized; NaN where the returns do not vary."""
        return sharpe(self.returns, self.periods_per_year)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all. Raises OSError where it cannot be written."""
        with written_whole(path) as file:
            np.savez_compressed(
                file, time=self.time, returns=self.returns, periods_per_year=np.float64(self.periods_per_year)
            )


def measure_validation_returns(task: ScoredTask, act: Act) -> ValidationReturns:
    """The returns of the pass that the task's `score` makes: what was chosen by it is judged by the same bars.

    Of a task with an account per symbol: at each bar the mean over its accounts, those without a bar there at 0. An
    account that was closed early earns 0 to the end.
    """
    return returns_of_paths(task.scored_paths(act))


def returns_of_paths(paths: Sequence[EquityPath]) -> ValidationReturns:
    """The returns of a pass that was made already, by its `scored_paths`."""
    return mean_returns([_returns_of(path) for path in paths])


def mean_returns(records: Sequence[ValidationReturns]) -> ValidationReturns:
    """At each time the mean of all records, one that has no bar there at 0; of one record, itself."""
    first = records[0]
    if len(records) == 1:
        return first
    times = np.unique(np.concatenate([record.time for record in records]))
    total = np.zeros(len(times))
    for record in records:
        total[np.searchsorted(times, record.time)] += record.returns
    same = all(record.periods_per_year == first.periods_per_year for record in records)
    periods_per_year = first.periods_per_year if same else infer_calendar(times).periods_per_year
    return ValidationReturns(times, total / len(records), periods_per_year)


def read_validation_returns(folder: Path) -> ValidationReturns | None:
    """What `ValidationReturns.write` wrote into a run folder, or None where there is no such file.

    Raises UserError where the file is not whole or cannot be read.
    """
    path = folder / RETURNS_FILE
    try:
        # opened here: numpy leaves a file open that is no archive
        with open_regular(path) as opened:
            if unpacked_bytes(opened) > _MOST_BYTES:
                raise ValueError(f"it unpacks to more than {_MOST_BYTES / 1e6:,.3g} MB")
            opened.seek(0)
            file = np.load(opened, allow_pickle=False)
            return ValidationReturns(
                np.asarray(file["time"], dtype="datetime64[ns]"),
                np.asarray(file["returns"], dtype=np.float64),
                float(file["periods_per_year"]),
            )
    except FileNotFoundError:
        return None
    except (*_UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as validation returns: {error}; remove it to judge the study without this trial."
        ) from error


def _returns_of(path: EquityPath) -> ValidationReturns:
    times = path.times[1:].astype("datetime64[ns]")
    return ValidationReturns(times, returns_of(path.equity), path.periods_per_year)
