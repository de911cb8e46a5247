"""Decides whether to deploy a new model: its result must not be luck, and it must beat the deployed model.

It does not depend on studies: it judges the best trial of a study and a retrained model in the same way. The two models
are compared on the new one's validation data, in pairs of bars or episodes, with the standard error of the difference.
So effects on both models, such as a rising market, cancel out.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.json_object import read_json_object, without_nan
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.algorithms.evaluation import evaluate
from ml_pipeline.runs.gym_task import EVALUATION_SEED_OFFSET, GymTask
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.restore import find_policy, load_run, restore_policy
from ml_pipeline.trading.evaluation.uncertainty import long_run_covariance
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.config import PromotionRules
from ml_pipeline.tuning.promotion.model_store import DATA_FILE, Version, digest_of
from ml_pipeline.tuning.study_identity import warnings_of_task
from ml_pipeline.tuning.trials.validation_returns import (
    ValidationReturns,
    measure_validation_returns,
    read_validation_returns,
)
from ml_pipeline.tuning.winner_statistics import NEEDS_TWO, JudgedTrial, Judgement, judge

FEWEST_EPISODES = 20
"""Evaluation episodes of a Gymnasium environment, unless the trial itself has more."""
# Training begins with seed + i, evaluations of a run with 1,000,000 more, a study's report with 2,000,000 more: these
# are episodes that neither model was chosen by.
_SEED_OFFSET = 3 * EVALUATION_SEED_OFFSET


_FEWEST = {"bar": 10, "episode": 2}
"""Fewest pairs for a standard error."""
_LEAST_GROWTH = 1e-6
"""Smallest growth factor of an account in a bar, since a ruined account has no logarithm."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of challenger minus incumbent over n pairs, and its standard error; NaN for too few pairs.

    challenger, incumbent: the means themselves: log returns per bar, or returns of episodes.
    periods_per_year: bars per year; None for episodes.
    """

    unit: Literal["bar", "episode"]
    n: int
    difference: float
    standard_error: float
    challenger: float
    incumbent: float
    periods_per_year: float | None = None

    def exceeds(self, margin: float) -> bool:
        """Whether the difference is above 0 and above `margin` standard errors."""
        return self.difference > 0 and self.difference > margin * self.standard_error

    def as_json(self) -> dict[str, Any]:
        """The figures for a JSON file; undefined figures are None."""
        return without_nan(vars(self))

    def __str__(self) -> str:
        """The difference in words: "+1.2e-05 ± 4e-06 per bar (...)"."""
        figures = f"{self.difference:+.3g} ± {self.standard_error:.2g}"
        if self.unit == "episode":
            means = f"{self.challenger:,.4g} against {self.incumbent:,.4g}"
            return f"{figures} per episode ({means}, over {counted(self.n, 'episode')} of the same seeds)"
        yearly = self.difference * (self.periods_per_year or math.nan)
        return f"{figures} log return per bar ({yearly:+.3g} a year, over {counted(self.n, 'bar')})"


def difference_of_returns(challenger: FloatArray, incumbent: FloatArray, periods_per_year: float) -> PairedDifference:
    """The difference in log returns of two records of simple returns over the same bars, (n,) each.

    The standard error allows for autocorrelation, as `uncertainty.long_run_covariance` does: Newey and West 1987.
    """
    ours, theirs = (np.log(np.maximum(1.0 + each, _LEAST_GROWTH)) for each in (challenger, incumbent))
    n = len(ours)
    error = math.nan
    if n >= _FEWEST["bar"]:
        error = math.sqrt(max(0.0, long_run_covariance(ours - theirs)[0, 0]) / n)
    return _paired("bar", ours, theirs, error, periods_per_year)


def difference_of_episodes(challenger: FloatArray, incumbent: FloatArray) -> PairedDifference:
    """The difference in returns of two policies' episodes of the same seeds, (n,) each, which are independent pairs."""
    n = len(challenger)
    enough = n >= _FEWEST["episode"]
    error = float(np.std(challenger - incumbent, ddof=1) / math.sqrt(n)) if enough else math.nan
    return _paired("episode", challenger, incumbent, error, None)


def _paired(
    unit: Literal["bar", "episode"], ours: FloatArray, theirs: FloatArray, error: float, per_year: float | None
) -> PairedDifference:
    means = [float(each.mean()) if len(each) else math.nan for each in (ours - theirs, ours, theirs)]
    return PairedDifference(unit, len(ours), means[0], error, means[1], means[2], per_year)


class SavedPolicy:
    """A checkpoint with the settings of its run."""

    def __init__(self, folder: Path) -> None:
        """folder: a run folder or a version of a deployed model. Raises UserError if it cannot be used."""
        self.checkpoint = find_policy(folder)
        self.config, self.saved = load_run(self.checkpoint)

    @property
    def env_id(self) -> str | None:
        return self.config.run.env_id

    def act_in(self, env: Any) -> Callable[[Any], Any]:
        """The policy's actions in an environment. Raises UserError if it was made for other spaces."""
        return restore_policy(self.config, env, self.saved, self.checkpoint).act

    def act_for(self, task: GymTask | TradingTask, split: str = "validation") -> Callable[[Any], Any]:
        """The policy's actions in the environment of a task. split: of a market."""
        with closing(task.evaluation_env() if isinstance(task, GymTask) else task.evaluation_env(split)) as env:
            return self.act_in(env)

    def trading_task(self, of: TrainConfig) -> TradingTask:
        """The market of these settings, with the features and scaling of this policy."""
        return TradingTask.from_state(self.saved["task"], of.trading, of.run.seed)

    def feature_warnings(self) -> tuple[str, ...]:
        """Sentences about its features that may use later data, on its training data."""
        return () if self.env_id is not None else warnings_of_task(self.trading_task(self.config))


def compare_on_validation(challenger: SavedPolicy, incumbent: SavedPolicy) -> PairedDifference:
    """The paired difference, challenger minus incumbent, on the validation data of the challenger's study.

    For a market, log returns per bar after costs; for a Gymnasium environment, returns of episodes of the same seeds.
    Raises UserError if the incumbent cannot be used on those data.
    """
    try:
        if challenger.env_id != incumbent.env_id:
            of = [each.env_id or "a market" for each in (incumbent, challenger)]
            raise UserError(f"it was trained on {of[0]}, and the study on {of[1]}")
        if challenger.env_id is None:
            return _on_market(challenger, incumbent)
        return _in_episodes(challenger, incumbent)
    except UserError as error:
        raise UserError(
            f"{incumbent.checkpoint.parent} cannot be compared on the study's validation data: "
            f"{str(error).rstrip('.')}; promote under another --name."
        ) from error


def _on_market(challenger: SavedPolicy, incumbent: SavedPolicy) -> PairedDifference:
    ours, theirs = (_validation_returns(each, challenger.config) for each in (challenger, incumbent))
    common, our_rows, their_rows = np.intersect1d(ours.time, theirs.time, return_indices=True)
    if not len(common):
        raise UserError("the two have no bar in common")
    return difference_of_returns(ours.returns[our_rows], theirs.returns[their_rows], ours.periods_per_year)


def _validation_returns(policy: SavedPolicy, of: TrainConfig) -> ValidationReturns:
    task = policy.trading_task(of)
    return measure_validation_returns(task, policy.act_for(task))


def _in_episodes(challenger: SavedPolicy, incumbent: SavedPolicy) -> PairedDifference:
    study = challenger.config.run
    own = incumbent.config.run
    if study.wrappers != own.wrappers:
        raise UserError("its environment has different wrappers, which may change the rewards")
    n, seed = max(study.eval_episodes, FEWEST_EPISODES), study.seed + _SEED_OFFSET
    as_observed = replace(study, frame_stack=own.frame_stack)
    return difference_of_episodes(
        _episode_returns(challenger, GymTask.of(study), n, seed),
        _episode_returns(incumbent, GymTask.of(as_observed), n, seed),
    )


def _episode_returns(policy: SavedPolicy, task: GymTask, n: int, seed: int) -> FloatArray:
    with closing(task.evaluation_env()) as env:
        return np.array(evaluate(env, policy.act_in(env), n_episodes=n, seed=seed).returns)


class NotPromoted(CheckFailed):
    """A new model failed the checks for deployment; the message says why."""


class Wording(NamedTuple):
    """The name of the new model in sentences, and the flags of the rule."""

    challenger: str
    min_dsr_flag: str = "--min-dsr"
    margin_flag: str = "--margin"


@dataclass(frozen=True)
class Incumbent:
    """The deployed model: its name, such as v3, and the folder of its checkpoint."""

    name: str
    folder: Path


@dataclass(frozen=True)
class PromotionCase:
    """The case for deploying a new model, in figures (None if unknown) and in two sentences."""

    rule: PromotionRules
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
    rule: PromotionRules,
    *,
    incumbent: Incumbent | str,
    compare: Callable[[Incumbent], PairedDifference],
    wording: Wording,
) -> PromotionCase:
    """The case for the winner among trials. Raises NotPromoted, with the figures, if it fails the checks.

    incumbent: the deployed model, or a sentence if there is none to compare with. compare: compares the winner with the
    incumbent on the same validation data; called only if the winner's result is not luck.
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
    """The deployed version, by its number; or a sentence if there is none to compare with."""
    if deployed is not None:
        return Incumbent(deployed.name, deployed.folder)
    if number is None:
        return "No version was deployed before, so there was none to compare it with."
    return f"v{number} was deployed, but its folder was deleted, so there was nothing to compare with."


def checkpoint_digest(run: Path) -> str:
    """The digest of the checkpoint that a run folder would deploy. Raises UserError if it cannot be read."""
    path = find_policy(run)
    try:
        return digest_of(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _require_skill(
    trials: Sequence[JudgedTrial], winner: JudgedTrial, rule: PromotionRules, wording: Wording
) -> tuple[Judgement | None, str]:
    """The statistics and their sentence. Raises NotPromoted if the winner's result may be luck."""
    assert winner.folder is not None
    judgement = judge(trials)
    if judgement is None or winner.returns is None:
        if SavedPolicy(winner.folder).env_id is None and rule.min_dsr > 0:
            raise NotPromoted(
                f"{wording.challenger} has no validation returns, so its deflated Sharpe ratio is unknown; train it "
                f"again, or promote it with {wording.min_dsr_flag} 0."
            )
        return None, "Its deflated Sharpe ratio was not checked, because there are no returns per bar."
    both = (judgement.dsr_of_trials, judgement.dsr_of_checkpoints)  # the study's report needs both, too
    known = not any(map(math.isnan, both))
    figures = (
        f"a deflated Sharpe ratio of {both[0]:.2f} as the best of {counted(judgement.n_trials, 'trial')} and "
        f"{both[1]:.2f} as the best of {counted(judgement.n_checkpoints, 'checkpoint')}"
        if known
        else f"no deflated Sharpe ratio, because {NEEDS_TWO}"
    )
    if rule.min_dsr > 0 and not all(each >= rule.min_dsr for each in both):
        luck = (
            f"; its annualized Sharpe ratio of {judgement.sharpe:.2f} on validation data may be luck, which alone is "
            f"expected to reach {judgement.expected_maximum:.2f}"
        )
        raise NotPromoted(
            f"{wording.challenger} is not promoted: it has {figures}, but at least {rule.min_dsr:g} is required "
            f"({wording.min_dsr_flag}){luck if known else ''}."
        )
    return judgement, f"{wording.challenger} has {figures} (at least {rule.min_dsr:g} is required)."


def _require_better(difference: PairedDifference, incumbent: Incumbent, rule: PromotionRules, wording: Wording) -> str:
    if not difference.exceeds(rule.margin):
        raise NotPromoted(
            f"{wording.challenger} is not promoted: it does not beat the deployed {incumbent.name} by more "
            f"than {rule.margin:g} standard errors ({wording.margin_flag}) on the same validation data; the difference "
            f"is {difference}."
        )
    better = f"It beats {incumbent.name} by more than {rule.margin:g} standard errors on the same validation data"
    return f"{better}: {difference}."


def _seen(incumbent: Incumbent, run: Path) -> str:
    """A sentence if the deployed model's training data overlap with the validation data."""
    try:
        theirs = read_json_object(incumbent.folder / DATA_FILE)["splits"]["train"]["last"]
    except (UserError, KeyError, TypeError):
        return ""
    returns = read_validation_returns(run)
    first = None if returns is None or not len(returns) else str(returns.time[0])
    if first is None or str(theirs) < first:
        return ""
    return f" {incumbent.name} was trained on bars up to {theirs[:10]}, so it had seen part of them: that favoured it."
