"""Checkpoints on disk: a power cut leaves the old or the new one, and reading one runs no code from the file.

Environment states that can only be pickled are stored in a separate file next to the checkpoint. Opening a pickle
runs the code that it names. So that file is opened only if its signature shows that a run of this user wrote it, or if
the user trusts it. The checkpoint holds the digest of its pickle file, and the file's name starts with that digest: a
run killed between the two writes keeps its previous checkpoint with the matching file.

File format: a header line, a line with the signature or a dash, and the body. The body is a line with the size of each
pickle in bytes, then the pickles. Signature and digest cover the body.
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
"""Increased when the meaning of checkpoints changes."""

_LONGEST_REASON = 300


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values to `path` atomically; an existing file stays until the new one is safe.

    Raises UserError if the folder cannot be written or the disk is full.
    """
    with writing(path), written_whole(path) as file:
        torch.save({"format": FORMAT, "version": VERSION, **state}, file)


@contextmanager
def writing(checkpoint: Path) -> Iterator[None]:
    """Turn disk and folder errors in the block, which writes a checkpoint, into a one-line UserError."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        kept = " The checkpoint before it is untouched." if checkpoint.is_file() else ""
        raise UserError(f"Cannot write the checkpoint {checkpoint}: {_reason(error)}.{kept}") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state that `save_checkpoint` wrote. Raises UserError if the file is missing, truncated or another kind."""
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
    except Exception as error:  # for a foreign file, the exception type depends on its bytes
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
    """Turn errors in the block, which uses a loaded checkpoint, into a one-line UserError.

    Covers missing entries, weights of the wrong shape and values of the wrong type.
    """
    try:
        yield
    except StateNotAvailable as error:
        raise _unusable(checkpoint, f"the state of environment {error.index}: {error.reason}") from error
    except (UserError, VectorEnvError) as error:
        if "\n" not in str(error) or not isinstance(error, UserError):
            raise
        raise _unusable(checkpoint, str(error)) from error  # it quotes an invalid value
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
    return "the disk is full, or only part of it was written"  # torch reports only a position in its archive


_FIRST_LINE = b"ml-pipeline pickled environments 2"
_DIGEST = re.compile(r"[0-9a-f]{64}")
PICKLES = "pickled_environments"
"""Key of a checkpoint's pickle file: {"digest"}; None or absent without one."""


class NotOpened(Exception):
    """The pickle file was not opened; the message says why."""


def split_pickles(trainer_state: Mapping[str, Any]) -> tuple[dict[str, Any], list[PickledState]]:
    """The trainer state with None in place of each pickle, and the pickles."""
    states: Sequence[Any] = trainer_state.get("environments") or ()
    pickles = [state for state in states if isinstance(state, PickledState)]
    if not pickles:
        return dict(trainer_state), []
    plain = [None if isinstance(state, PickledState) else state for state in states]
    return {**trainer_state, "environments": plain, PICKLES: {"digest": _digest(_body(pickles))}}, pickles


def write_pickles(checkpoint: Path, pickles: Sequence[PickledState]) -> str | None:
    """Write the pickle file of a checkpoint, before the checkpoint; return why it is unsigned, None if signed.

    Raises OSError if it cannot be written.
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
    """Remove the pickle files of earlier checkpoints at this path."""
    known = trainer_state.get(PICKLES)
    kept = _path(checkpoint, known["digest"]) if known else None
    ours = re.compile(rf"environments-{re.escape(checkpoint.stem)}-[0-9a-f]{{12}}\.pkl(\.tmp)?")
    with contextlib.suppress(OSError):  # leftovers only cost space
        for path in checkpoint.parent.iterdir():
            if path != kept and ours.fullmatch(path.name):
                path.unlink()


def join_pickles(trainer_state: Mapping[str, Any], folder: Path, *, trusted: bool) -> dict[str, Any]:
    """The trainer state with its pickles, read from `folder`.

    trusted: also open a file that no run of this user signed. Raises NotOpened if the file is missing, does not match
    or is not trusted; KeyError, TypeError or ValueError if the state is malformed.
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
    """The signature covers the sizes, so pickle boundaries cannot be forged."""
    return b" ".join(b"%d" % len(each) for each in pickles) + b"\n" + b"".join(pickles)


def _pickles_in(body: bytes) -> list[PickledState]:
    sizes, pickles = body.split(b"\n", maxsplit=1)
    return [PickledState(pickles[a:b]) for a, b in pairwise(accumulate(map(int, sizes.split()), initial=0))]


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _signed(body: bytes) -> bytes:
    """The signed bytes; the first line separates them from other uses of the key."""
    return _FIRST_LINE + b"\n" + body


class Checkpoints:
    """Writes and reads the checkpoints of a run folder, and the pickle files next to them.

    say: called once if pickles cannot be signed.
    """

    def __init__(
        self, folder: Path, task_state: Callable[[], dict[str, Any]], say: Callable[[str], None], *, ranks: RankContext
    ) -> None:
        """task_state: see `Task.state`. ranks: all call `load` and `save` together; only the first reads and writes,
        and has the folder."""
        self._folder = folder
        self._task_state = task_state
        self._say = say
        self._ranks = ranks
        self._identity = FolderIdentity(folder) if ranks.is_first else None
        self._said_unsigned = False
        self._first_has_best = False

    def require_folder(self) -> None:
        """Raise UserError if the run folder was deleted, moved or replaced."""
        if self._identity is not None:
            self._identity.require()

    def load(self, checkpoint: Path, *, trusted: bool) -> Mapping[str, Any]:
        """The state that `save` wrote, with environment states if they may be opened.

        trusted: also open pickles that no run of this user wrote. Raises UserError if the checkpoint is of other market
        data.
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
        """Whether best.pt exists; on a rank without the folder, whether it existed at the last load."""
        return self._first_has_best if self._identity is None else (self._folder / BEST_CHECKPOINT).is_file()

    def load_best(self, policy: TrainedPolicy) -> None:
        """Load the best weights into the policy; without best.pt it is unchanged."""
        best = self._folder / BEST_CHECKPOINT
        if self.has_best():
            with reading(best):
                policy.load_state_dict(load_checkpoint(best)["trainer"]["policy"])

    def save(self, name: str, trainer: Trainer, run_state: Mapping[str, Any]) -> None:
        """Write a checkpoint of this name: the trainer, the task's state and `run_state`.

        Raises UserError if the folder is gone or cannot be written; the previous checkpoint is then untouched.
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
"""Key of the replay buffer in a trainer's state: large, and needed only to resume."""


def trained_steps(trainer_state: Mapping[str, Any]) -> int:
    """Environment steps trained so far. Raises KeyError if this is not a trainer state."""
    return int(trainer_state.get("collector", trainer_state)["global_step"])


def without_replay(trainer_state: Mapping[str, Any]) -> dict[str, Any]:
    """The state without the replay buffer."""
    return {name: part for name, part in trainer_state.items() if name != REPLAY}


def settings_kept(config: TrainConfig) -> dict[str, object]:
    """The settings to store in a checkpoint: all but `OF_LAUNCH`."""
    return {name: value for name, value in flatten(config).items() if name not in OF_LAUNCH}


@contextmanager
def resume_hint(folder: Path, has_trained: Callable[[], bool]) -> Iterator[None]:
    """Add a note on how to resume to an error that ends training in the block.

    Adds none if nothing was trained yet, as after a failed first `reset()`.
    """
    try:
        yield
    except (VectorEnvError, TrainingFailed) as error:
        if has_trained():
            where = shown_path(folder)
            error.add_note(f"The last checkpoint is intact; once the cause is fixed, resume the run in {where}.")
        raise
