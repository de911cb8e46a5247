"""What a trial is judged by, and the runs that it takes: one, one for each seed, or one for each walk-forward fold.

Each run is described by settings alone, those in its config.yaml. So `ml-pipeline train --config` repeats it, and
`--resume` goes on with it, as with any other run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from ml_pipeline.config.checks import check_choice, check_count
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.train_config import TrainConfig

Objective = Literal["score", "sharpe"]


class Unit(NamedTuple):
    """One of the runs of a trial."""

    name: str
    """Ends the name of its folder; empty where the trial is one run."""
    settings: Mapping[str, Any]
    """What it sets besides the trial's settings."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """What trials are compared by. Raises UserError where a value is out of range.

    >>> [unit.name for unit in ObjectiveConfig(seeds_per_trial=2).units(TrainConfig())]
    ['seed-0', 'seed-1']
    """

    objective: Objective = "score"
    """What a trial's value is: the best validation score of its run (score), or its annualized Sharpe ratio after costs
    there (sharpe, for trading)."""

    seeds_per_trial: int = 1
    """Runs of a trial, with the seeds seed, seed + 1, ...; its value is the median of theirs."""

    folds: int | None = None
    """Runs of a trial, for trading: walk-forward folds of the training and validation splits, the test split left
    alone; its value is the median of theirs. none: one run."""

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, get_args(Objective))
        check_count("seeds_per_trial", self.seeds_per_trial)
        if self.folds is None:
            return
        check_count("folds", self.folds, minimum=2)
        if self.seeds_per_trial > 1:
            raise UserError(
                f"A trial has several seeds or several folds, but got seeds_per_trial {self.seeds_per_trial} and folds "
                f"{self.folds}; leave one of the two out."
            )

    def check(self, base: Mapping[str, Any]) -> None:
        """Raise UserError where trials of these settings cannot be judged in this way."""
        env_id = base.get("env_id")
        if env_id is None:
            return
        if self.objective == "sharpe":
            raise UserError(
                f'objective "sharpe" is for trading, but env_id is {env_id}, whose runs have no returns; leave it out.'
            )
        if self.folds is not None:
            raise UserError(
                f"folds are stretches of market data, but env_id is {env_id}; name several seeds by seeds_per_trial."
            )

    @property
    def settings(self) -> dict[str, Any]:
        """What the objective sets in every run."""
        return {"score": "sharpe"} if self.objective == "sharpe" else {}

    def units(self, config: TrainConfig) -> list[Unit]:
        """The runs of a trial with these settings, in the order in which they are trained."""
        if self.folds is not None:
            trading = config.trading
            return fold_units(self.folds, train=trading.train_fraction, validation=trading.validation_fraction)
        if self.seeds_per_trial > 1:
            seeds = range(config.run.seed, config.run.seed + self.seeds_per_trial)
            return [Unit(f"seed-{seed}", {"seed": seed}) for seed in seeds]
        return [Unit("", {})]


def fold_units(n: int, *, train: float, validation: float) -> list[Unit]:
    """Walk-forward folds: the bars of training and validation are cut into n + 1 equal parts; fold k is trained on the
    first k of them and validated on the next one.

    >>> for unit in fold_units(2, train=0.6, validation=0.3):
    ...     print(unit.name, {name: round(value, 6) for name, value in unit.settings.items()})
    fold-1 {'train_fraction': 0.3, 'validation_fraction': 0.3}
    fold-2 {'train_fraction': 0.6, 'validation_fraction': 0.3}
    """
    whole = train + validation
    edges = [whole * k / (n + 1) for k in range(1, n + 1)] + [whole]
    return [
        # Of the last fold the sum is `whole` to the last bit, since edges[-2] is at least half of it: not one bar more.
        Unit(f"fold-{k}", {"train_fraction": edges[k - 1], "validation_fraction": edges[k] - edges[k - 1]})
        for k in range(1, n + 1)
    ]
