"""Checks whether the best trial of a study may be deployed, and deploys it: once, or while the study runs."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import read_json_object
from ml_pipeline.config.wording import ended
from ml_pipeline.runs.folder import BEST_CHECKPOINT, refuse_links
from ml_pipeline.runs.trained.deployed import Warned
from ml_pipeline.trading.evaluation.looks import looks_in_words
from ml_pipeline.tuning.config import PromotionRules
from ml_pipeline.tuning.promotion.model_store import DeployedMeanwhile, ModelStore, Version
from ml_pipeline.tuning.promotion.verdict import (
    Incumbent,
    NotPromoted,
    PairedDifference,
    PromotionCase,
    SavedPolicy,
    Wording,
    check_promotion,
    checkpoint_digest,
    compare_on_validation,
    incumbent_of,
)
from ml_pipeline.tuning.promotion.version_files import beside_holding, write_version
from ml_pipeline.tuning.report.test_opening import looks_at_test, read_openings
from ml_pipeline.tuning.study_files import STUDY_FILE, feature_warnings, named_folders
from ml_pipeline.tuning.winner_statistics import JudgedTrial, finished_trials, why_no_winner, winner_of

TEST_FILE = "test.json"
"""In a version's folder, if the study's report opened the test split for its trial: the result, and how often the split
was opened."""


LOOKS_KEY = "looks_at_test"
"""In promotion.json: a sentence on how often, and by what, the test part of the study's data was evaluated; none if it
was not."""


@dataclass(frozen=True)
class Promoted:
    """A version and why it is deployed. was_there: it was already deployed."""

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
        """package_version: the version of this package, for promotion.json."""
        self._package_version = package_version
        self._study = study
        self._folder = study_folder
        self._store = store
        self._rules = rules
        self._compared: dict[tuple[str, str], PairedDifference] = {}
        self._warnings: dict[str, tuple[str, ...]] = {}  # by the digest of a checkpoint

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._store.name

    def attempt(self, trials: Sequence[JudgedTrial] | None = None) -> Promoted:
        """Deploy the winner if it passes the checks; otherwise raise NotPromoted with the reason and the figures.

        trials: the study's finished trials, if they were already read. Raises UserError if something is missing or
        cannot be used.
        """
        trials = finished_trials(self._study, self._folder) if trials is None else trials
        trials, winner = self._chosen(trials)
        digest = checkpoint_digest(_folder_of(winner))
        while True:
            number, deployed = self._store.current, self._store.deployed()
            if deployed is not None and deployed.promotion.get("files", {}).get(BEST_CHECKPOINT) == digest:
                sentence = f"Trial {winner.number} is already deployed, as {deployed.name} of {self._store.name}."
                return Promoted(deployed, (sentence,), was_there=True)
            warnings = self._require_sound_features(winner, digest)
            merits = self._check_promotion(trials, winner, digest, number, deployed)
            record = {**self._origin(winner), **merits.as_json(), **warnings.as_json()}
            try:
                version = self._deploy(winner, record, instead_of=number)
            except DeployedMeanwhile:  # compare with that one
                continue
            card = (*beside_holding(version.promotion), *version.promotion[LOOKS_KEY])
            return Promoted(version, (*merits.sentences, *card, *warnings.sentences()))

    def _chosen(self, trials: Sequence[JudgedTrial]) -> tuple[Sequence[JudgedTrial], JudgedTrial]:
        """The trials and the one to promote; if the rules name a trial, it is the only one that may win."""
        named = self._rules.trial
        if named is not None:
            if not any(trial.number == named for trial in trials):
                known = ", ".join(str(trial.number) for trial in trials[:20]) or "none"
                raise UserError(f"{self._study.study_name} has no finished trial {named}; finished trials: {known}.")
            trials = [replace(trial, complete=trial.number == named) for trial in trials]
            if winner_of(trials) is None and why_no_winner(trials) is None:
                raise NotPromoted(f"Trial {named} of {self._study.study_name} has no score.")
        winner = winner_of(trials)
        if winner is None and (idle := why_no_winner(trials)) is not None:
            if named is not None:
                idle = f"Trial {named} is not promoted: it never traded on the validation data."
            raise NotPromoted(idle)
        if winner is None:
            raise NotPromoted(f"The study {self._study.study_name} has no finished trial{self._others()}.")
        if winner.folder is None:
            named_folders(self._folder, self._trial(winner).user_attrs)  # raises if they lead elsewhere
        if winner.folder is None or not winner.folder.is_dir():
            where = winner.folder or self._folder
            raise UserError(
                f"Trial {winner.number} cannot be promoted, because {where} does not exist; promote on the machine "
                "that trained it, or copy its folder here."
            )
        refuse_links(winner.folder)
        return trials, winner

    def _trial(self, judged: JudgedTrial) -> FrozenTrial:
        return next(each for each in self._study.get_trials(deepcopy=False) if each.number == judged.number)

    def _others(self) -> str:
        """The number of trials in each state, in parentheses."""
        names = [trial.state.name.lower() for trial in self._study.get_trials(deepcopy=False)]
        states = {"fail": "failed", "waiting": "waiting", "running": "running", "pruned": "pruned"}
        found = [f"{names.count(state)} {word}" for state, word in states.items() if state in names]
        return f" to promote ({', '.join(found)})" if found else " yet"

    def _require_sound_features(self, winner: JudgedTrial, digest: str) -> Warned:
        """The warnings about features of the study and of the winner, and the reason to promote it despite them.

        Raises NotPromoted if there are warnings and no reason was given.
        """
        if digest not in self._warnings:
            own = SavedPolicy(_folder_of(winner)).feature_warnings()  # also if an earlier version began the study
            self._warnings[digest] = tuple(dict.fromkeys([*feature_warnings(self._study), *own]))
        found = self._warnings[digest]
        if found and self._rules.despite is None:
            raise NotPromoted(
                f"Trial {winner.number} is not promoted, because a feature may use later data: "
                f'{ended("; ".join(found))} Train without it, or explain with --despite "REASON" why it is sound; the '
                "version keeps the reason."
            )
        return Warned(found, self._rules.despite if found else None)

    def _check_promotion(
        self,
        trials: Sequence[JudgedTrial],
        winner: JudgedTrial,
        digest: str,
        number: int | None,
        deployed: Version | None,
    ) -> PromotionCase:
        """The case for deploying the winner. Raises NotPromoted if it fails the checks."""

        def compare(incumbent: Incumbent) -> PairedDifference:
            assert deployed is not None
            key = (digest, incumbent.name)
            if key not in self._compared:
                deployed.require_whole()
                ours, theirs = SavedPolicy(_folder_of(winner)), SavedPolicy(incumbent.folder)
                self._compared[key] = compare_on_validation(ours, theirs)
            return self._compared[key]

        return check_promotion(
            trials,
            winner,
            self._rules,
            incumbent=incumbent_of(number, deployed),
            compare=compare,
            wording=Wording(f"Trial {winner.number}"),
        )

    def _deploy(self, winner: JudgedTrial, record: dict[str, Any], *, instead_of: int | None) -> Version:
        run = _folder_of(winner)
        openings = read_openings(self._study, self._folder)
        promotion = dict(record)  # to which `fill` adds what it wrote

        def fill(folder: Path) -> None:
            promotion.update(write_version(run, folder))
            opened = [each for each in openings if each.trial == winner.number]
            looks = looks_at_test(self._study, self._folder, openings)
            promotion[LOOKS_KEY] = [looks_in_words(looks)] if looks else []
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
        trial = self._trial(winner)
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


def follow_study(study: optuna.Study, folder: Path, promotion: Promotion, wait: Callable[[], None]) -> Iterator[str]:
    """Yield a sentence for each change: a promotion, or the reason against it. Ends when the study is finished.

    wait: called between two checks. Raises UserError as `Promotion.attempt`.
    """
    seen: tuple[object, ...] | None = None
    said: str | None = None
    while True:
        is_last = _is_finished(folder)  # read before the trials, so that no trial that ends in between is missed
        trials = finished_trials(study, folder)
        found = tuple((trial.number, trial.value, trial.complete) for trial in trials)
        if found != seen:
            seen = found
            sentence = _outcome(promotion, trials)
            if sentence != said:
                said = sentence
                yield sentence
        if is_last:
            return
        wait()


def described(promoted: Promoted, name: str) -> str:
    """The deployed version and the reasons, in sentences."""
    if promoted.was_there:
        return promoted.sentences[0]
    return " ".join([f"{promoted.version.name} of {name} is deployed.", *promoted.sentences])


def _outcome(promotion: Promotion, trials: Sequence[JudgedTrial]) -> str:
    try:
        return described(promotion.attempt(trials), promotion.name)
    except NotPromoted as reason:
        return str(reason)


def _is_finished(folder: Path) -> bool:
    try:
        return read_json_object(folder / STUDY_FILE).get("state") == "finished"
    except UserError:
        return False
