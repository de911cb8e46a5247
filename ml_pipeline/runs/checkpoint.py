"""Checkpoints on disk: a power cut leaves the old one or the new one, and reading one runs no code of its own.

States of environments that can only be pickled lie in a file beside their checkpoint, never in it. Opening a pickle
runs the code that it names. So the file is opened only if a run of this user wrote it, as its signature shows, or if
the user says so. The checkpoint holds the digest of the file that belongs to it, and the file's name holds the
beginning of the digest: a run that is killed between the two leaves the checkpoint before, whole, with its own file.

The file: a line for people and programs, the signature or a dash, and the body, which the signature and the digest are
of: a line with the size of each pickle in bytes, and the pickles one after another.
"""

import contextlib
import hashlib
import hmac
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import shown_path
from ml_pipeline.models.rl.algorithms.trainer import TrainedPolicy, Trainer
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable, VectorEnvError
from ml_pipeline.models.rl.core.stepping.state import PickledState
from ml_pipeline.models.rl.transitions import TrainingFailed
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT, FolderIdentity
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.files import open_regular, unpacked_bytes, written_whole
from ml_pipeline.runtime.user_key import NoKey, is_signed, sign
from ml_pipeline.trading.trained_state import as_saved

FORMAT = "ml-pipeline checkpoint"
VERSION = 3
"""Raised whenever an older program's checkpoints no longer mean the same here."""

_LONGEST_REASON = 300


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values to `path`, whole or not at all; what was there stays until the new one is safe.

    Raises UserError where the folder cannot be written or the disk is full.
    """
    with writing(path), written_whole(path) as file:
        torch.save({"format": FORMAT, "version": VERSION, **state}, file)


@contextmanager
def writing(checkpoint: Path) -> Iterator[None]:
    """Within the block, which writes a checkpoint, what a disk or a folder refuses is one sentence, a UserError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        kept = " The checkpoint before it is untouched." if checkpoint.is_file() else ""
        raise UserError(f"Cannot write the checkpoint {checkpoint}: {_reason(error)}.{kept}") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` was given. Raises UserError where there is none, or it is cut short or something else."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a checkpoint in it, such as {path / LATEST_CHECKPOINT}.")
    if not path.is_file():
        raise UserError(f"There is no checkpoint {path}.")
    try:
        with open_regular(path) as file:
            is_larger = unpacked_bytes(file) > os.fstat(file.fileno()).st_size  # torch does not compress
        if is_larger:
            raise UserError(f"{path} cannot be read as a checkpoint: it unpacks to more than its size.")
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:  # torch does not look at the checksums
                raise ValueError(damaged)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except PermissionError as error:
        raise UserError(f"{path} cannot be read: {_reason(error)}.") from error
    except Exception as error:  # what torch raises on a file that is none of its own depends on its bytes
        raise UserError(
            f"{path} cannot be read as a checkpoint: it is truncated, damaged or another kind of file."
        ) from error
    known = isinstance(state, dict) and state.get("format") == FORMAT and isinstance(state.get("version"), int)
    if not known:
        raise UserError(f"{path} is not a checkpoint of this program.")
    version = state["version"]
    if version != VERSION:
        raise UserError(
            f"{path} has checkpoint version {version}, but this program reads {VERSION}; use the release that wrote "
            "it, or train again."
        )
    return state


@contextmanager
def reading(checkpoint: Path) -> Iterator[None]:
    """Within the block, which uses what a checkpoint holds, an error about what it lacks is one sentence, a UserError.

    A shape of weights that does not fit, and a value of another type, too.
    """
    try:
        yield
    except StateNotAvailable as error:
        raise _unusable(checkpoint, f"the state of environment {error.index}: {error.reason}") from error
    except (UserError, VectorEnvError) as error:
        if "\n" not in str(error) or not isinstance(error, UserError):
            raise
        raise _unusable(checkpoint, str(error)) from error  # it quotes a value that is no setting
    # torch raises RuntimeError for other shapes; values of other types may break anything that uses them.
    except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        missing = isinstance(error, KeyError)
        raise _unusable(checkpoint, f"{error} is missing" if missing else str(error) or type(error).__name__) from error


def _unusable(checkpoint: Path, reason: str) -> UserError:
    reason = shorten(reason, _LONGEST_REASON, placeholder=" ...").rstrip(".")
    return UserError(f"{checkpoint} is damaged or was written by another version: {reason}.")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "the disk is full, or only part of it was written"  # all that torch tells is a position in its archive


_FIRST_LINE = b"ml-pipeline pickled environments 2"
_DIGEST = re.compile(r"[0-9a-f]{64}")
PICKLES = "pickled_environments"
"""What a checkpoint knows of its file: {"digest"}; None or absent where it has none."""


class NotOpened(Exception):
    """The file of a checkpoint was not opened; says why."""


def split_pickles(trainer_state: Mapping[str, Any]) -> tuple[dict[str, Any], list[PickledState]]:
    """The state of a trainer without its pickles, in whose places it has None, and the pickles."""
    states: Sequence[Any] = trainer_state.get("environments") or ()
    pickles = [state for state in states if isinstance(state, PickledState)]
    if not pickles:
        return dict(trainer_state), []
    plain = [None if isinstance(state, PickledState) else state for state in states]
    return {**trainer_state, "environments": plain, PICKLES: {"digest": _digest(_body(pickles))}}, pickles


def write_pickles(checkpoint: Path, pickles: Sequence[PickledState]) -> str | None:
    """Write the file of a checkpoint that is about to be written; return why it is unsigned, None where it is signed.

    Raises OSError where it cannot be written.
    """
    body = _body(pickles)
    signature, unsigned = "-", None
    try:
        signature = sign(_signed(body))
    except NoKey as reason:
        unsigned = str(reason)
    with written_whole(_path(checkpoint, _digest(body))) as file:
        file.writelines([_FIRST_LINE, b"\n", signature.encode(), b"\n", body])
    return unsigned


def remove_old_pickles(checkpoint: Path, trainer_state: Mapping[str, Any]) -> None:
    """Remove the files of earlier checkpoints in the place of this one, which is written."""
    known = trainer_state.get(PICKLES)
    kept = _path(checkpoint, known["digest"]) if known else None
    ours = re.compile(rf"environments-{re.escape(checkpoint.stem)}-[0-9a-f]{{12}}\.pkl(\.tmp)?")
    with contextlib.suppress(OSError):  # what stays costs space alone
        for path in checkpoint.parent.iterdir():
            if path != kept and ours.fullmatch(path.name):
                path.unlink()


def join_pickles(trainer_state: Mapping[str, Any], folder: Path, *, trusted: bool) -> dict[str, Any]:
    """The state of a trainer with the pickles that belong to it, which lie in `folder`.

    trusted: also open what no run of this user signed. Raises NotOpened where the file is missing, another one, or not
    to be opened; KeyError, TypeError or ValueError where the state is none.
    """
    known = trainer_state.get(PICKLES)
    if not known:
        return dict(trainer_state)
    body, states = _read(folder, known["digest"], trusted=trusted), list(trainer_state["environments"])
    missing = [i for i, state in enumerate(states) if state is None]
    for i, pickled in zip(missing, _pickles_in(body), strict=True):
        states[i] = pickled
    return {**trainer_state, "environments": states}


def _read(folder: Path, digest: str, *, trusted: bool) -> bytes:
    """The body of the file with this digest, read once."""
    if not _DIGEST.fullmatch(digest):
        raise NotOpened("the checkpoint names no file with their states")
    paths = sorted(folder.glob(f"environments-*-{digest[:12]}.pkl"))
    if not paths:
        raise NotOpened(f"the file environments-*-{digest[:12]}.pkl is not in the checkpoint's folder")
    try:
        with open_regular(paths[0]) as file:
            first_line, signature, body = file.read().split(b"\n", maxsplit=2)
    except (OSError, ValueError) as error:
        raise NotOpened(f"{paths[0]} cannot be read") from error
    if first_line != _FIRST_LINE:
        raise NotOpened(f"{paths[0]} was written by another version")
    if not hmac.compare_digest(_digest(body), digest):
        raise NotOpened(f"{paths[0]} is not the one that was saved with the checkpoint")
    if not trusted and not is_signed(_signed(body), signature.decode("latin-1")):
        raise NotOpened(
            f"{paths[0]} holds pickles, which can run any code, and none of your runs on this machine signed it; if "
            "you trust its author, add --trust-checkpoint"
        )
    return body


def _path(checkpoint: Path, digest: str) -> Path:
    return checkpoint.with_name(f"environments-{checkpoint.stem}-{digest[:12]}.pkl")


def _body(pickles: Sequence[PickledState]) -> bytes:
    """The sizes stand in what is signed: nobody else may say where a pickle begins."""
    return b" ".join(b"%d" % len(each) for each in pickles) + b"\n" + b"".join(pickles)


def _pickles_in(body: bytes) -> list[PickledState]:
    sizes, pickles = body.split(b"\n", maxsplit=1)
    return [PickledState(pickles[a:b]) for a, b in pairwise(accumulate(map(int, sizes.split()), initial=0))]


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _signed(body: bytes) -> bytes:
    """What is signed: the key may come to sign other things, which must not pass for pickles."""
    return _FIRST_LINE + b"\n" + body


class Checkpoints:
    """Writes and reads the checkpoints of the run in a folder; states of environments that are pickles lie beside them.

    say: told, once, where such pickles cannot be signed.
    """

    def __init__(
        self, folder: Path, task_state: Callable[[], dict[str, Any]], say: Callable[[str], None], *, ranks: RankContext
    ) -> None:
        """task_state: what the policy depends on besides its weights, see `Task.state`. ranks: call `load` and `save`
        together; the first alone reads and writes, and has the folder."""
        self._folder = folder
        self._task_state = task_state
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
        saved, task = load_checkpoint(checkpoint), self._task_state()
        with reading(checkpoint):
            if saved["task"] != as_saved(task, saved["task"]):
                raise UserError(
                    "The market data differ from those that the run was trained on; train a new run on them, or "
                    f"evaluate this one on them with evaluate_ppo.py {self._folder / BEST_CHECKPOINT} --data."
                )
            trainer = dict(saved["trainer"])
            try:
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
            save_checkpoint(path, {"trainer": trainer_state, "task": self._task_state(), **run_state})
            remove_old_pickles(path, trainer_state)
        except UserError:
            self.require_folder()
            raise
        if unsigned is not None and not self._said_unsigned:
            self._said_unsigned = True
            self._say(
                f"The environment states are pickles and were saved without a signature: {unsigned}. A resumed run "
                "loads them only with --trust-checkpoint."
            )


REPLAY = "replay"
"""A large part of a trainer's state that only going on needs: the transitions that it learns from again."""


def trained_steps(trainer_state: Mapping[str, Any]) -> int:
    """For how many environment steps the trainer of a state had trained. Raises KeyError where it is none."""
    return int(trainer_state.get("collector", trainer_state)["global_step"])


def without_replay(trainer_state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without what only going on needs."""
    return {name: part for name, part in trainer_state.items() if name != REPLAY}


def settings_kept(config: TrainConfig) -> dict[str, object]:
    """What a checkpoint holds: all settings but those of who computes."""
    return {name: value for name, value in flatten(config).items() if name not in OF_LAUNCH}


@contextmanager
def resume_hint(folder: Path, has_trained: Callable[[], bool]) -> Iterator[None]:
    """Add a note on how to resume to an error that breaks down training in the block, if it has trained before.

    A run that failed in its first `reset()` has nothing to go on from.
    """
    try:
        yield
    except (VectorEnvError, TrainingFailed) as error:
        if has_trained():
            where = shown_path(folder)
            error.add_note(f"The last checkpoint is intact; once the cause is fixed, resume the run in {where}.")
        raise
