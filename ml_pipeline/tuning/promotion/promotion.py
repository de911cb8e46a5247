"""Whether the best trial of a study deserves to be deployed, and its deployment."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna

from ml_pipeline.config.checks import check_count
from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.runs.folder import BEST_CHECKPOINT
from ml_pipeline.runs.trained.restore import find_policy
from ml_pipeline.tuning.finished_trials import finished_trials
from ml_pipeline.tuning.judgement import LEVEL, JudgedTrial, Judgement, judge, winner_of
from ml_pipeline.tuning.promotion.deployed_comparison import SavedPolicy, compare_on_validation
from ml_pipeline.tuning.promotion.model_store import DeployedMeanwhile, ModelStore, Version
from ml_pipeline.tuning.promotion.paired_difference import PairedDifference
from ml_pipeline.tuning.promotion.version_files import DATA_FILE, write_version
from ml_pipeline.tuning.report.test_opening import read_openings
from ml_pipeline.tuning.trials.validation_returns import read_validation_returns

TEST_FILE = "test.json"
"""In a version's folder, where the study's report opened the test split for its trial: the result, and how often the
split was seen."""


class NotPromoted(CheckFailed):
    """The study's winner does not deserve to be deployed, and why."""


@dataclass(frozen=True, kw_only=True)
class PromotionRules:
    """What a winner must be. Raises UserError where a value is out of range.

    trial: promote this one in place of the winner. min_dsr: the least deflated Sharpe ratio. margin: by how many
    standard errors it must beat what is deployed.
    """

    trial: int | None = None
    min_dsr: float = LEVEL
    margin: float = 1.0

    def __post_init__(self) -> None:
        if self.trial is not None:
            check_count("trial", self.trial, minimum=0)
        if not 0.0 <= self.min_dsr <= 1.0:
            raise UserError(f"min_dsr is a probability from 0 to 1, but got {self.min_dsr:g}.")
        if not 0.0 <= self.margin < math.inf:
            raise UserError(f"margin is a number of standard errors, 0 or more, but got {self.margin:g}.")


@dataclass(frozen=True)
class Promoted:
    """A version and why it is deployed. was_there: it was deployed already."""

    version: Version
    sentences: tuple[str, ...]
    was_there: bool = False


class Promotion:
    """Promotes the winner of a study to a model."""

    def __init__(
        self,
        study: optuna.Study,
        study_folder: Path,
        store: ModelStore,
        rules: PromotionRules,
        *,
        package_version: str | None = None,
    ) -> None:
        """package_version: of this package, for promotion.json."""
        self._package_version = package_version
        self._study = study
        self._folder = study_folder
        self._store = store
        self._rules = rules
        self._compared: dict[tuple[str, str], PairedDifference] = {}

    @property
    def name(self) -> str:
        """Of the model."""
        return self._store.name

    def attempt(self, trials: Sequence[JudgedTrial] | None = None) -> Promoted:
        """Deploy the winner, if it deserves it; else NotPromoted says why, with the figures.

        trials: the study's finished trials, where they were read already. Raises UserError where something is not
        there or cannot be used.
        """
        trials = finished_trials(self._study, self._folder) if trials is None else trials
        trials, winner = self._chosen(trials)
        digest = _digest_of(winner)
        while True:
            number, deployed = self._store.current, self._store.deployed()
            if deployed is not None and deployed.promotion.get("files", {}).get(BEST_CHECKPOINT) == digest:
                sentence = f"Trial {winner.number} is deployed already: it is {deployed.name} of {self._store.name}."
                return Promoted(deployed, (sentence,), was_there=True)
            judgement, about_luck = self._require_skill(trials, winner)
            difference, about_deployed = self._require_better(winner, digest, number, deployed)
            record = {
                **self._origin(winner),
                "statistics": None if judgement is None else judgement.described(),
                "min_dsr": self._rules.min_dsr,
                "margin": self._rules.margin,
                "compared_with": _comparison(deployed, difference),
                "why": [about_luck, about_deployed],
            }
            try:
                version = self._deploy(winner, record, instead_of=number)
            except DeployedMeanwhile:  # compare with that one
                continue
            return Promoted(version, (about_luck, about_deployed))

    def _chosen(self, trials: Sequence[JudgedTrial]) -> tuple[Sequence[JudgedTrial], JudgedTrial]:
        """The trials, of which the one to promote is the only one that may win where it was named; and that one."""
        named = self._rules.trial
        if named is not None:
            if not any(trial.number == named for trial in trials):
                known = ", ".join(str(trial.number) for trial in trials[:20]) or "none"
                raise UserError(f"{self._study.study_name} has no finished trial {named}; finished are: {known}.")
            trials = [replace(trial, complete=trial.number == named) for trial in trials]
            if winner_of(trials) is None:
                raise NotPromoted(f"Trial {named} of {self._study.study_name} has no score.")
        winner = winner_of(trials)
        if winner is None:
            raise NotPromoted(f"The study {self._study.study_name} has no finished trial{self._others()}.")
        if winner.folder is None or not winner.folder.is_dir():
            where = winner.folder or self._folder
            raise UserError(
                f"Trial {winner.number} is the one to promote, but {where} is not there; promote on the machine that "
                "trained it, or copy its folder here."
            )
        return trials, winner

    def _others(self) -> str:
        """What its trials are, in brackets."""
        names = [trial.state.name.lower() for trial in self._study.get_trials(deepcopy=False)]
        states = {"fail": "failed", "waiting": "waiting", "running": "running", "pruned": "pruned"}
        found = [f"{names.count(state)} {word}" for state, word in states.items() if state in names]
        return f" to promote ({', '.join(found)})" if found else " yet"

    def _require_skill(self, trials: Sequence[JudgedTrial], winner: JudgedTrial) -> tuple[Judgement | None, str]:
        """The statistics, and what they say. Raises NotPromoted where the winner may well be luck."""
        judgement = judge(trials)
        if judgement is None or winner.returns is None:
            if SavedPolicy(_folder_of(winner)).env_id is None and self._rules.min_dsr > 0:
                raise NotPromoted(
                    f"Trial {winner.number} has no validation returns, so that its deflated Sharpe ratio is not known; "
                    "train it again, or promote it by --min-dsr 0."
                )
            return None, "Its deflated Sharpe ratio is not checked: there are no returns per bar."
        both = (judgement.dsr_of_trials, judgement.dsr_of_checkpoints)  # the study's report needs both, too
        figures = (
            f"a deflated Sharpe ratio of {_figure(both[0])} as the best of {counted(judgement.n_trials, 'trial')} and "
            f"{_figure(both[1])} as the best of {counted(judgement.n_checkpoints, 'checkpoint')}"
        )
        if self._rules.min_dsr > 0 and not all(each >= self._rules.min_dsr for each in both):
            raise NotPromoted(
                f"Trial {winner.number} is not promoted: it has {figures}, and at least {self._rules.min_dsr:g} is "
                f"asked for (--min-dsr); its Sharpe ratio of {_figure(judgement.sharpe)} a year on validation data may "
                f"be luck, which alone is expected to reach {_figure(judgement.expected_maximum)}."
            )
        return judgement, f"Trial {winner.number} has {figures} (at least {self._rules.min_dsr:g} is asked for)."

    def _require_better(
        self, winner: JudgedTrial, digest: str, number: int | None, deployed: Version | None
    ) -> tuple[PairedDifference | None, str]:
        """The difference to what is deployed, and what it says. Raises NotPromoted where it is too small."""
        if deployed is None:
            if number is None:
                return None, "No other version was deployed before, so that it is compared with none."
            return None, f"v{number} was deployed, but its folder was deleted: there is nothing to compare with."
        run, key = _folder_of(winner), (digest, deployed.name)
        if key not in self._compared:
            deployed.require_whole()
            self._compared[key] = compare_on_validation(SavedPolicy(run), SavedPolicy(deployed.folder))
        difference = self._compared[key]
        if not difference.exceeds(self._rules.margin):
            raise NotPromoted(
                f"Trial {winner.number} is not promoted: it does not beat {deployed.name}, which is deployed, by more "
                f"than {self._rules.margin:g} standard errors (--margin) on the same validation data; the difference "
                f"is {difference}."
            )
        better = (
            f"It beats {deployed.name} by more than {self._rules.margin:g} standard errors on the same validation data"
        )
        return difference, f"{better}: {difference}.{_seen(deployed, run)}"

    def _deploy(self, winner: JudgedTrial, record: dict[str, Any], *, instead_of: int | None) -> Version:
        run = _folder_of(winner)
        openings = read_openings(self._study, self._folder)
        promotion = dict(record)  # to which `fill` adds what it wrote

        def fill(folder: Path) -> None:
            promotion.update(write_version(run, folder))
            opened = [each for each in openings if each.trial == winner.number]
            promotion["test"] = None if not opened else {"opened": len(openings), "file": TEST_FILE}
            if opened:
                content = {
                    "times_opened": len(openings),
                    "openings": [asdict(each) for each in openings],
                    "result": opened[-1].result,
                }
                (folder / TEST_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

        return self._store.promote(
            fill, promotion, instead_of=instead_of, study=self._study.study_name, trial=winner.number
        )

    def _origin(self, winner: JudgedTrial) -> dict[str, Any]:
        trial = next(each for each in self._study.get_trials(deepcopy=False) if each.number == winner.number)
        return {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "package_version": self._package_version,
            "study": self._study.study_name,
            "study_folder": str(self._folder),
            "trial": winner.number,
            "chosen": "the winner" if self._rules.trial is None else "named by --trial",
            "run": _folder_of(winner).name,
            "value": winner.value,
            "settings": trial.user_attrs.get("settings", trial.params),
        }


def _folder_of(trial: JudgedTrial) -> Path:
    assert trial.folder is not None
    return trial.folder


def _digest_of(winner: JudgedTrial) -> str:
    path = find_policy(_folder_of(winner))
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from error


def _comparison(deployed: Version | None, difference: PairedDifference | None) -> dict[str, Any] | None:
    if deployed is None or difference is None:
        return None
    return {"version": deployed.name, **difference.as_json()}


def _seen(deployed: Version, run: Path) -> str:
    """A sentence where the deployed model was trained on other data that reach into the study's validation split."""
    try:
        theirs = json.loads((deployed.folder / DATA_FILE).read_text(encoding="utf-8"))["splits"]["train"]["last"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    first = _first_validation_bar(run)
    if first is None or str(theirs) < first:
        return ""
    return f" {deployed.name} was trained on bars up to {theirs[:10]}, which are among them: that was in its favour."


def _first_validation_bar(run: Path) -> str | None:
    returns = read_validation_returns(run)
    return None if returns is None or not len(returns) else str(returns.time[0])


def _figure(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.2f}"
