"""The rule of promotion: a new model is deployed where its record is no luck, and where it beats what is deployed.

It knows nothing of studies: the best trial of a study and a model that was trained again are judged by it alike.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.json_object import read_json_object
from ml_pipeline.config.wording import counted
from ml_pipeline.runs.trained.restore import find_policy
from ml_pipeline.runtime.files import open_regular
from ml_pipeline.tuning.promotion.comparison import PairedDifference, SavedPolicy
from ml_pipeline.tuning.promotion.model_store import Version
from ml_pipeline.tuning.promotion.version_files import DATA_FILE
from ml_pipeline.tuning.trials.validation_returns import read_validation_returns
from ml_pipeline.tuning.winner_statistics import LEVEL, NEEDS_TWO, JudgedTrial, Judgement, judge


class NotPromoted(CheckFailed):
    """A new model does not deserve to be deployed, and why."""


@dataclass(frozen=True, kw_only=True)
class PromotionRule:
    """What a new model must be. Raises UserError where a value is out of range.

    min_dsr: the least deflated Sharpe ratio. margin: by how many standard errors it must beat what is deployed.
    """

    min_dsr: float = LEVEL
    margin: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_dsr <= 1.0:
            raise UserError(f"min_dsr is a probability from 0 to 1, but got {self.min_dsr:g}.")
        if not 0.0 <= self.margin < math.inf:
            raise UserError(f"margin is a number of standard errors, 0 or more, but got {self.margin:g}.")


class Wording(NamedTuple):
    """What sentences call the new model, and the flags of the rule."""

    challenger: str
    min_dsr_flag: str = "--min-dsr"
    margin_flag: str = "--margin"


@dataclass(frozen=True)
class Incumbent:
    """The model that is deployed: its name, such as v3, and the folder of its checkpoint."""

    name: str
    folder: Path


@dataclass(frozen=True)
class PromotionCase:
    """Why a new model deserves to be deployed, in figures, None where they are not known, and in two sentences."""

    rule: PromotionRule
    judgement: Judgement | None
    incumbent: Incumbent | None
    difference: PairedDifference | None
    sentences: tuple[str, str]

    def as_json(self) -> dict[str, Any]:
        """For promotion.json."""
        compared = None
        if self.incumbent is not None and self.difference is not None:
            compared = {"version": self.incumbent.name, **self.difference.as_json()}
        return {
            "statistics": None if self.judgement is None else self.judgement.described(),
            "min_dsr": self.rule.min_dsr,
            "margin": self.rule.margin,
            "compared_with": compared,
            "why": list(self.sentences),
        }


def check_promotion(
    trials: Sequence[JudgedTrial],
    winner: JudgedTrial,
    rule: PromotionRule,
    *,
    incumbent: Incumbent | str,
    compare: Callable[[Incumbent], PairedDifference],
    wording: Wording,
) -> PromotionCase:
    """The merits of the winner among trials. Raises NotPromoted, with the figures, where they do not suffice.

    incumbent: what is deployed; where that is nothing to compare with, a sentence that says so. compare: the winner
    beside the incumbent on the same validation data, called once the winner is known to be no luck.
    """
    assert winner.folder is not None
    if winner.never_traded:
        raise NotPromoted(f"{wording.challenger} is not promoted: it never traded on the validation data.")
    judgement, about_luck = _require_skill(trials, winner, rule, wording)
    if isinstance(incumbent, str):
        return PromotionCase(rule, judgement, None, None, (about_luck, incumbent))
    difference = compare(incumbent)
    about_deployed = _require_better(difference, incumbent, rule, wording)
    seen = _seen(incumbent, winner.folder)
    return PromotionCase(rule, judgement, incumbent, difference, (about_luck, f"{about_deployed}{seen}"))


def incumbent_of(number: int | None, deployed: Version | None) -> Incumbent | str:
    """The version that is deployed, by its number; or a sentence where there is none to compare with."""
    if deployed is not None:
        return Incumbent(deployed.name, deployed.folder)
    if number is None:
        return "No other version was deployed before, so that it is compared with none."
    return f"v{number} was deployed, but its folder was deleted: there is nothing to compare with."


def checkpoint_digest(run: Path) -> str:
    """The digest of the checkpoint that a run folder would be deployed by. Raises UserError where it cannot be read."""
    path = find_policy(run)
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _require_skill(
    trials: Sequence[JudgedTrial], winner: JudgedTrial, rule: PromotionRule, wording: Wording
) -> tuple[Judgement | None, str]:
    """The statistics, and what they say. Raises NotPromoted where the winner may well be luck."""
    assert winner.folder is not None
    judgement = judge(trials)
    if judgement is None or winner.returns is None:
        if SavedPolicy(winner.folder).env_id is None and rule.min_dsr > 0:
            raise NotPromoted(
                f"{wording.challenger} has no validation returns, so that its deflated Sharpe ratio is not known; "
                f"train it again, or promote it by {wording.min_dsr_flag} 0."
            )
        return None, "Its deflated Sharpe ratio is not checked: there are no returns per bar."
    both = (judgement.dsr_of_trials, judgement.dsr_of_checkpoints)  # the study's report needs both, too
    known = not any(map(math.isnan, both))
    figures = (
        f"a deflated Sharpe ratio of {both[0]:.2f} as the best of {counted(judgement.n_trials, 'trial')} and "
        f"{both[1]:.2f} as the best of {counted(judgement.n_checkpoints, 'checkpoint')}"
        if known
        else f"no deflated Sharpe ratio, since {NEEDS_TWO}"
    )
    if rule.min_dsr > 0 and not all(each >= rule.min_dsr for each in both):
        luck = (
            f"; its Sharpe ratio of {judgement.sharpe:.2f} a year on validation data may be luck, which alone is "
            f"expected to reach {judgement.expected_maximum:.2f}"
        )
        raise NotPromoted(
            f"{wording.challenger} is not promoted: it has {figures}, and at least {rule.min_dsr:g} is asked for "
            f"({wording.min_dsr_flag}){luck if known else ''}."
        )
    return judgement, f"{wording.challenger} has {figures} (at least {rule.min_dsr:g} is asked for)."


def _require_better(difference: PairedDifference, incumbent: Incumbent, rule: PromotionRule, wording: Wording) -> str:
    if not difference.exceeds(rule.margin):
        raise NotPromoted(
            f"{wording.challenger} is not promoted: it does not beat {incumbent.name}, which is deployed, by more "
            f"than {rule.margin:g} standard errors ({wording.margin_flag}) on the same validation data; the difference "
            f"is {difference}."
        )
    better = f"It beats {incumbent.name} by more than {rule.margin:g} standard errors on the same validation data"
    return f"{better}: {difference}."


def _seen(incumbent: Incumbent, run: Path) -> str:
    """A sentence where the deployed model was trained on other data that reach into the validation data."""
    try:
        theirs = read_json_object(incumbent.folder / DATA_FILE)["splits"]["train"]["last"]
    except (UserError, KeyError, TypeError):
        return ""
    returns = read_validation_returns(run)
    first = None if returns is None or not len(returns) else str(returns.time[0])
    if first is None or str(theirs) < first:
        return ""
    return f" {incumbent.name} was trained on bars up to {theirs[:10]}, which are among them: that was in its favour."
