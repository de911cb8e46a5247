"""Chronological splits: what is trained on comes first, what is judged on comes last and is opened once."""

from dataclasses import dataclass

from ml_pipeline.config.errors import UserError


@dataclass(frozen=True)
class Split:
    """The bars start..stop-1. What is computed at a bar of it may look back before `start`, never ahead."""

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
) -> dict[str, Split]:
    """The bars first_bar..n_bars-1 as "train", "validation" and "test", in this order of time, and as "all".

    first_bar: the first bar with complete features; those before it are the warm-up. The test split is what the
    fractions leave. embargo_bars are left out before validation and before test, so that no label of one split touches
    the next. Raises UserError where a split would have fewer than the 2 bars that one step needs.

    >>> splits = chronological_split(10, 110, train_fraction=0.6, validation_fraction=0.2, embargo_bars=5)
    >>> [(s.name, s.start, s.stop) for s in splits.values()]
    [('train', 10, 70), ('validation', 75, 90), ('test', 95, 110), ('all', 10, 110)]
    """
    usable = n_bars - first_bar
    train_stop = first_bar + round(usable * train_fraction)
    validation_stop = first_bar + round(usable * (train_fraction + validation_fraction))
    splits = (
        Split("train", first_bar, train_stop),
        Split("validation", train_stop + embargo_bars, validation_stop),
        Split("test", validation_stop + embargo_bars, n_bars),
        Split("all", first_bar, n_bars),
    )
    for split in splits:
        if split.n_bars < 2:
            raise UserError(
                f"The {split.name} split would have {max(split.n_bars, 0)} of the {n_bars} bars, but a step needs 2: "
                f"{first_bar} go to the warm-up of features and window; bring more bars, or shorten features, window "
                "or embargo, or change the fractions."
            )
    return {split.name: split for split in splits}
