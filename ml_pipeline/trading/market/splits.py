"""Chronological splits: training on the earliest bars, testing on the latest."""

from dataclasses import dataclass
from typing import Literal

from ml_pipeline.config.errors import UserError

TrainingWindow = Literal["rolling", "expanding"]


@dataclass(frozen=True)
class Split:
    """The bars start..stop-1. Features at these bars may use bars before `start`, but no later ones."""

    name: str
    start: int
    stop: int

    @property
    def n_bars(self) -> int:
        return self.stop - self.start


def chronological_split(
    first_bar: int,
    n_bars: int,
    *,
    train_fraction: float = 0.7,
    validation_fraction: float = 0.15,
    embargo_bars: int = 0,
    source: str = "the market",
) -> dict[str, Split]:
    """The bars first_bar..n_bars-1, split by time into "train", "validation" and "test".

    first_bar: the first bar with a window of complete features; earlier bars are warm-up.
    embargo_bars: left out before validation and again before test. The test split is the rest.
    Raises UserError if a split would have fewer than the 2 bars that one step needs.

    >>> splits = chronological_split(10, 110, train_fraction=0.6, validation_fraction=0.2, embargo_bars=5)
    >>> [(s.name, s.start, s.stop) for s in splits.values()]
    [('train', 10, 70), ('validation', 75, 90), ('test', 95, 110)]
    """
    usable = n_bars - first_bar
    train_stop = first_bar + round(usable * train_fraction)
    validation_stop = first_bar + round(usable * (train_fraction + validation_fraction))
    splits = {
        "train": Split("train", first_bar, train_stop),
        "validation": Split("validation", train_stop + embargo_bars, validation_stop),
        "test": Split("test", validation_stop + embargo_bars, n_bars),
    }
    for split in splits.values():
        _require_a_step(split, first_bar, n_bars, source)
    return splits


def walk_forward_folds(
    first_bar: int,
    n_bars: int,
    n_folds: int,
    *,
    window: TrainingWindow = "rolling",
    embargo_bars: int = 0,
    source: str = "the market",
) -> list[dict[str, Split]]:
    """Folds of "train", "validation" and "test"; the test splits are consecutive and each follows its training.

    The bars are cut into n_folds + 1 equal parts. Fold k is tested on part k + 1 and trained on part k ("rolling") or
    on all parts up to k ("expanding"); the last seventh of that is validation. A test split begins with the last bar of
    the previous part, at whose close its first decision is made, so that the test splits leave out no bar.
    Raises UserError if a split would have fewer than the 2 bars that one step needs.

    >>> for fold in walk_forward_folds(10, 310, 2, embargo_bars=5):
    ...     print([(s.name, s.start, s.stop) for s in fold.values()])
    [('train', 10, 91), ('validation', 96, 105), ('test', 109, 210)]
    [('train', 110, 191), ('validation', 196, 205), ('test', 209, 310)]
    """
    edges = [first_bar + round(i * (n_bars - first_bar) / (n_folds + 1)) for i in range(n_folds + 2)]
    folds = []
    for k in range(n_folds):
        start = edges[0] if window == "expanding" else edges[k]
        stop, end = edges[k + 1], edges[k + 2]
        train_stop = stop - embargo_bars - max(2, round((stop - start) / 7))
        fold = {
            "train": Split("train", start, train_stop),
            "validation": Split("validation", train_stop + embargo_bars, stop - embargo_bars),
            "test": Split("test", stop - 1, end),
        }
        for split in fold.values():
            _require_a_step(split, first_bar, n_bars, source)
        folds.append(fold)
    return folds


def whole(first_bar: int, n_bars: int, *, source: str = "the market") -> Split:
    """All bars from first_bar on, for a policy trained on other data. Raises UserError if one step does not fit."""
    split = Split("all", first_bar, n_bars)
    _require_a_step(split, first_bar, n_bars, source)
    return split


def _require_a_step(split: Split, first_bar: int, n_bars: int, source: str) -> None:
    if split.n_bars < 2:
        raise UserError(
            f"The split {split.name} has {max(split.n_bars, 0)} of the {n_bars:,} bars of {source} after a warm-up of "
            f"{min(first_bar, n_bars):,} bars for features and window, but a step needs 2; use more bars, shorten "
            "features or window, or change fractions and embargo."
        )
