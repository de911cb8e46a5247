"""The returns of a policy on the validation split, bar by bar after costs, for the statistics of selection."""

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
# Errors of numpy and zipfile for an archive with missing or changed bytes, in addition to their own exceptions.
_UNREADABLE = (OSError, EOFError, KeyError, TypeError, ValueError, RuntimeError, struct.error)


class ScoredTask(Protocol):
    """The part of a `TradingTask` that is scored."""

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
        """Annualized; NaN if the returns do not vary."""
        return sharpe(self.returns, self.periods_per_year)

    def write(self, path: Path) -> None:
        """Write the file atomically. Raises OSError if it cannot be written."""
        with written_whole(path) as file:
            np.savez_compressed(
                file, time=self.time, returns=self.returns, periods_per_year=np.float64(self.periods_per_year)
            )


def measure_validation_returns(task: ScoredTask, act: Act) -> ValidationReturns:
    """The returns of the evaluation behind the task's `score`, so that a policy is judged on the bars that chose it.

    For a task with an account per symbol: at each bar, the mean over its accounts, with 0 for those without a bar. An
    account that was closed early earns 0 until the end.
    """
    return returns_of_paths(task.scored_paths(act))


def returns_of_paths(paths: Sequence[EquityPath]) -> ValidationReturns:
    """The returns of `scored_paths` that were already computed."""
    return mean_returns([_returns_of(path) for path in paths])


def mean_returns(records: Sequence[ValidationReturns]) -> ValidationReturns:
    """At each time the mean of all records, with 0 for those without a bar; a single record is returned as it is."""
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
    """The returns that `ValidationReturns.write` wrote into a run folder, or None if there is no such file.

    Raises UserError if the file is incomplete or cannot be read.
    """
    path = folder / RETURNS_FILE
    try:
        # opened here, because numpy leaves a file open if it is not an archive
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
