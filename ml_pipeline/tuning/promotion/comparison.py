"""A study's winner beside the model that is deployed, on the study's validation data.

Differences are paired, bar by bar or episode by episode, with their standard error: what happened to both, such as a
market that rose, drops out of them.
"""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import without_nan
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.algorithms.evaluation import evaluate
from ml_pipeline.runs.gym_task import EVALUATION_SEED_OFFSET, GymTask
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.restore import find_policy, load_run, restore_policy
from ml_pipeline.trading.evaluation.uncertainty import long_run_covariance
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.study_identity import warnings_of_task
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns, measure_validation_returns

FEWEST_EPISODES = 20
"""Of a Gymnasium environment; the trial's own number of evaluation episodes where that is larger."""
# Training begins with seed + i, evaluations of a run with 1,000,000 more, a study's report with 2,000,000 more: these
# are episodes that neither model was chosen by.
_SEED_OFFSET = 3 * EVALUATION_SEED_OFFSET


_FEWEST = {"bar": 10, "episode": 2}
"""With fewer there is no standard error."""
_LEAST_GROWTH = 1e-6
"""Of an account in a bar, in place of 0: a ruined account has no logarithm."""


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
        """Whether the difference is more than 0, and than `margin` standard errors."""
        return self.difference > 0 and self.difference > margin * self.standard_error

    def as_json(self) -> dict[str, Any]:
        """The figures for a JSON file; None for what is undefined."""
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
        """folder: a run folder or a version of a deployed model. Raises UserError where it cannot be used."""
        self.checkpoint = find_policy(folder)
        self.config, self.saved = load_run(self.checkpoint)

    @property
    def env_id(self) -> str | None:
        return self.config.run.env_id

    def act_in(self, env: Any) -> Callable[[Any], Any]:
        """How it acts in an environment. Raises UserError where it was made for other spaces."""
        return restore_policy(self.config, env, self.saved, self.checkpoint).act

    def trading_task(self, of: TrainConfig) -> TradingTask:
        """The market of these settings, as this policy observes and trades it: its own features and scaling."""
        return TradingTask.from_state(self.saved["task"], of.trading, of.run.seed)

    def feature_warnings(self) -> tuple[str, ...]:
        """Sentences about its features that may see ahead, on the data that it was trained on."""
        return () if self.env_id is not None else warnings_of_task(self.trading_task(self.config))


def compare_on_validation(challenger: SavedPolicy, incumbent: SavedPolicy) -> PairedDifference:
    """The paired difference: challenger, of the study whose validation data are used, minus incumbent.

    Of a market, log returns per bar after costs; of a Gymnasium environment, returns of episodes of the same seeds.
    Raises UserError where the incumbent cannot be used on those data.
    """
    try:
        if challenger.env_id != incumbent.env_id:
            of = [each.env_id or "a market" for each in (incumbent, challenger)]
            raise UserError(f"it is of {of[0]}, and the study of {of[1]}")
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
    with closing(task.evaluation_env("validation")) as env:
        act = policy.act_in(env)
    return measure_validation_returns(task, act)


def _in_episodes(challenger: SavedPolicy, incumbent: SavedPolicy) -> PairedDifference:
    study = challenger.config.run
    own = incumbent.config.run
    if study.wrappers != own.wrappers:
        raise UserError("its environment has other wrappers, which may give other rewards")
    n, seed = max(study.eval_episodes, FEWEST_EPISODES), study.seed + _SEED_OFFSET
    as_observed = replace(study, frame_stack=own.frame_stack)
    return difference_of_episodes(
        _episode_returns(challenger, GymTask.of(study), n, seed),
        _episode_returns(incumbent, GymTask.of(as_observed), n, seed),
    )


def _episode_returns(policy: SavedPolicy, task: GymTask, n: int, seed: int) -> FloatArray:
    with closing(task.evaluation_env()) as env:
        return np.array(evaluate(env, policy.act_in(env), n_episodes=n, seed=seed).returns)
