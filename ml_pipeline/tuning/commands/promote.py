"""Command: deploy the best trial of a study if it passes the checks.

ml-pipeline promote eurusd_5m
ml-pipeline promote eurusd_5m --watch
"""

import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from ml_pipeline import __version__
from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.checks import check_positive
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import naming_flags, parse_settings
from ml_pipeline.config.wording import shown_path
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runs.trained.deployed import CURRENT
from ml_pipeline.runtime.interrupts import Interrupted, exiting_at_once
from ml_pipeline.tuning.config import PromotionRules
from ml_pipeline.tuning.promotion.model_store import ModelStore, models_folder
from ml_pipeline.tuning.study_files import require_optuna


@dataclass(frozen=True, kw_only=True)
class PromoteConfig:
    """The trial to promote, and the conditions it must meet.

    Raises UserError if a value is out of range.
    """

    study: tyro.conf.Positional[str]
    """Name of the study."""

    name: str | None = None
    """Name of the model; none: the name of the study."""

    models_dir: Path | None = None
    """Folder of models; none: models/."""

    root: Path | None = None
    """Folder of runs, in which the study's folder lies; none: checkpoints/."""

    storage: str | None = None
    """Storage of the study, as given to tune; none: the journal in the study's folder."""

    trial: int | None = None
    """Number of the trial to promote; none: the winner of the study."""

    min_dsr: float = PromotionRules.min_dsr
    """Smallest acceptable deflated Sharpe ratio: a probability from 0 to 1 that counts all trials and checkpoints; 0:
    accept any. Not for Gymnasium environments."""

    margin: float = PromotionRules.margin
    """Number of standard errors by which the new model must beat the deployed model on the study's validation data.
    With a larger margin, models are replaced less often."""

    despite: str | None = None
    """Your reason to promote the model although one of its features may use future data. The version stores the reason,
    and paper trading prints it."""

    watch: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Keep checking the study, and promote each new winner that passes the checks, until the study is finished."""

    interval_s: float = 2.0
    """With --watch: seconds between two checks of the study."""

    def __post_init__(self) -> None:
        with naming_flags("min_dsr", "margin", "despite"):
            _ = self.rules
        check_positive("interval_s", self.interval_s)
        if self.watch and self.trial is not None:
            raise UserError("--watch follows the winner, and --trial names one trial; use one of them.")

    @property
    def rules(self) -> PromotionRules:
        return PromotionRules(trial=self.trial, min_dsr=self.min_dsr, margin=self.margin, despite=self.despite)


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """The groups of settings that flags can set."""

    promote: PromoteConfig = field()


def main(argv: list[str], *, prog: str = "promote") -> int:
    """Deploy and print why; return 0, also if the trial is already deployed, and after --watch.

    Exits after one sentence: with code 1 if the trial fails the checks, with code 2 if something cannot be used.
    """
    with entry(prog):
        with exiting_at_once():
            asked = parse_settings(argv, CommandLine, prog=prog, description=COMMANDS["promote"].sentence).promote
            require_optuna()

            from ml_pipeline.tuning.promotion.promotion import Promotion, described, follow_study
            from ml_pipeline.tuning.storage.open_storage import open_study

        store = ModelStore(models_folder(asked.models_dir), asked.name or asked.study)
        study, folder = open_study(asked.study, root_of_runs(asked.root), storage=asked.storage, say=_note)
        promotion = Promotion(study, folder, store, asked.rules, package_version=__version__)
        if not asked.watch:
            print(described(promotion.attempt(), store.name), shown_path(store.folder / CURRENT), sep="\n")
            return 0
        try:
            for sentence in follow_study(study, folder, promotion, lambda: time.sleep(asked.interval_s)):
                print(f"{time.strftime('%H:%M:%S')}  {sentence}", flush=True)
        except Interrupted as stop:
            if stop.number != signal.SIGINT:
                raise
    return 0


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr)
