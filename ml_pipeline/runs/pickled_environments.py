"""States of environments that can only be pickled: in a file beside their checkpoint, never in it.

Opening a pickle runs the code that it names. So the file is opened only where a run of this user wrote it, as its
signature shows, or where the user says so. The checkpoint holds the digest of the file that belongs to it, and the
file's name holds the beginning of the digest: a run that is killed between the two leaves the checkpoint before, whole,
with its own file.

The file: a line for people and programs, the signature or a dash, and the body, which the signature and the digest are
of: a line with the size of each pickle in bytes, and the pickles one after another.
"""

import contextlib
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ml_pipeline.models.rl.core.stepping.state import PickledState
from ml_pipeline.runtime.regular_file import open_regular
from ml_pipeline.runtime.user_key import NoKey, is_signed, sign
from ml_pipeline.runtime.whole_file import written_whole

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
        raise NotOpened("the checkpoint names no file of theirs")
    paths = sorted(folder.glob(f"environments-*-{digest[:12]}.pkl"))
    if not paths:
        raise NotOpened(f"the file environments-*-{digest[:12]}.pkl is not beside the checkpoint")
    try:
        with open_regular(paths[0]) as file:
            first_line, signature, body = file.read().split(b"\n", maxsplit=2)
    except (OSError, ValueError) as error:
        raise NotOpened(f"{paths[0]} cannot be read") from error
    if first_line != _FIRST_LINE:
        raise NotOpened(f"another version wrote {paths[0]}")
    if not hmac.compare_digest(_digest(body), digest):
        raise NotOpened(f"{paths[0]} is not the one that was saved with the checkpoint")
    if not trusted and not is_signed(_signed(body), signature.decode("latin-1")):
        raise NotOpened(
            f"{paths[0]} holds pickles, which can run any code, and no run of yours on this machine signed it; if you "
            "trust whoever wrote it, add --trust-checkpoint"
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
