"""Follows a study, and promotes its winner whenever there is a new one that deserves it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import optuna

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import read_json_object
from ml_pipeline.tuning.finished_trials import finished_trials
from ml_pipeline.tuning.judgement import JudgedTrial
from ml_pipeline.tuning.promotion.promotion import Promoted, Promotion
from ml_pipeline.tuning.promotion.promotion_rule import NotPromoted
from ml_pipeline.tuning.study_files import STUDY_FILE


def follow_study(study: optuna.Study, folder: Path, promotion: Promotion, wait: Callable[[], None]) -> Iterator[str]:
    """A sentence for each thing that is new: a promotion, or why there is none. Ends when the study is finished.

    wait: called between two looks. Raises UserError as `Promotion.attempt`.
    """
    seen: tuple[object, ...] | None = None
    said: str | None = None
    while True:
        is_last = _is_finished(folder)  # before the trials are read, so that none that ends meanwhile is missed
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
    """What was deployed, and why, in sentences."""
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
