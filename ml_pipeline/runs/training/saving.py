"""The checkpoints of a run: what is saved of a training, and what a resumption reads of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.algorithms.trainer import TrainedPolicy, Trainer
from ml_pipeline.runs.checkpoint import PICKLES_INSIDE, load_checkpoint, reading, save_checkpoint, writing
from ml_pipeline.runs.folder import BEST_CHECKPOINT, FolderIdentity
from ml_pipeline.runs.pickled_environments import (
    NotOpened,
    join_pickles,
    remove_old_pickles,
    split_pickles,
    write_pickles,
)
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.tasks import Task
from ml_pipeline.runs.training.trainers import without_replay
from ml_pipeline.trading.trained_state import as_saved


class Checkpoints:
    """Writes and reads the checkpoints of the run in a folder; states of environments that are pickles lie beside them.

    say: told, once, where such pickles cannot be signed.
    """

    def __init__(self, folder: Path, task: Task, say: Callable[[str], None], *, ranks: RankContext) -> None:
        """ranks: call `load` and `save` together; the first alone reads and writes, and has the folder."""
        self._folder = folder
        self._task = task
        self._say = say
        self._ranks = ranks
        self._identity = FolderIdentity(folder) if ranks.is_first else None
        self._said_unsigned = False
        self._first_has_best = False

    def require_folder(self) -> None:
        """Raise UserError where the run folder is no longer the one that the run began in."""
        if self._identity is not None:
            self._identity.require()

    def load(self, checkpoint: Path, *, trusted: bool) -> Mapping[str, Any]:
        """What `save` wrote, with the states of the environments where they may be opened.

        trusted: open also what can run code, though no run of this user wrote it. Raises UserError for a checkpoint of
        other market data.
        """
        known = self._ranks.first("the checkpoint", lambda: (self._read(checkpoint, trusted=trusted), self.has_best()))
        saved: Mapping[str, Any]
        saved, self._first_has_best = known
        return saved

    def _read(self, checkpoint: Path, *, trusted: bool) -> Mapping[str, Any]:
        saved, task = load_checkpoint(checkpoint), self._task.state()
        with reading(checkpoint):
            if saved["task"] != as_saved(task, saved["task"]):
                raise UserError(
                    "The market data are not those that the run was trained on; train anew on them, or judge the run "
                    f"on them by evaluate_ppo.py {self._folder / BEST_CHECKPOINT} --data."
                )
            trainer = dict(saved["trainer"])
            try:
                if saved["version"] == PICKLES_INSIDE:
                    raise NotOpened("an older version kept their states inside the checkpoint, as pickles")
                trainer = join_pickles(trainer, checkpoint.parent, trusted=trusted)
            except NotOpened as reason:
                trainer.update(environments=None, environments_missing=f"{reason}.")
            return {**saved, "trainer": trainer}

    def has_best(self) -> bool:
        """Whether best.pt is there; on a rank that does not have the folder, whether it was when it was loaded."""
        return self._first_has_best if self._identity is None else (self._folder / BEST_CHECKPOINT).is_file()

    def load_best(self, policy: TrainedPolicy) -> None:
        """Let the policy be the best so far; where best.pt is gone, it stays as it is."""
        best = self._folder / BEST_CHECKPOINT
        if self.has_best():
            with reading(best):
                policy.load_state_dict(load_checkpoint(best)["trainer"]["policy"])

    def save(self, name: str, trainer: Trainer, run_state: Mapping[str, Any]) -> None:
        """Write a checkpoint of this name: the trainer, what its policy depends on, and `run_state`.

        Raises UserError where the folder is gone or cannot be written; the checkpoint before it is then untouched.
        """
        state = trainer.state_dict()
        self._ranks.first(f"the writing of {name}", lambda: self._write(name, state, run_state))

    def _write(self, name: str, state: Mapping[str, Any], run_state: Mapping[str, Any]) -> None:
        self.require_folder()
        path = self._folder / name
        trainer_state, pickles = split_pickles(state)
        if name == BEST_CHECKPOINT:
            trainer_state = without_replay(trainer_state)
        try:
            with writing(path):
                unsigned = write_pickles(path, pickles) if pickles else None
            save_checkpoint(path, {"trainer": trainer_state, "task": self._task.state(), **run_state})
            remove_old_pickles(path, trainer_state)
        except UserError:
            self.require_folder()
            raise
        if unsigned is not None and not self._said_unsigned:
            self._said_unsigned = True
            self._say(
                f"The states of the environments are pickles, and are saved without a signature: {unsigned}. A resumed "
                "run opens them only with --trust-checkpoint."
            )
