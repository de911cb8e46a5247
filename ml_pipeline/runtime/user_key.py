"""A secret key of this user on this machine, by which files that this user wrote are told from those of others.

It lies in the user's state folder, readable by the user alone, and is made when it is first needed.
"""

import contextlib
import hmac
import os
import secrets
import stat
import sys
from pathlib import Path

_SIZE = 32


class NoKey(Exception):
    """There is no key, and none can be made here; says why."""


def state_folder() -> Path:
    """What we keep for this user on this machine: in XDG_STATE_HOME, else ~/.local/state (%LOCALAPPDATA% on Windows).

    Raises NoKey where this user has no home folder.
    """
    try:
        given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", "")
        folder = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise NoKey("there is no home folder") from error
    if not folder.is_absolute():  # HOME is a relative path: whoever owns the working directory would choose the key
        raise NoKey("there is no home folder")
    return folder / "ml_pipeline"


def key_path() -> Path:
    """Where the key lies, in `state_folder`."""
    return state_folder() / "signing.key"


def sign(content: bytes) -> str:
    """The signature of `content`, as hexadecimal digits. Makes the key where there is none yet; raises NoKey."""
    return hmac.digest(_own_key(), content, "sha256").hex()


def is_signed(content: bytes, signature: str) -> bool:
    """Whether `sign` of this user gave the signature for the very same content. Makes no key."""
    try:
        key = _read(key_path())
    except NoKey:
        return False
    expected = hmac.digest(key, content, "sha256").hex()
    return hmac.compare_digest(expected.encode(), signature.encode())


def _own_key() -> bytes:
    path = key_path()
    try:
        if not path.exists():
            _make(path)
    except OSError as error:
        raise NoKey(f"{path} cannot be written ({error.strerror})") from error
    return _read(path)


def _make(path: Path) -> None:
    """Make the key, whole or not at all; of several processes at once, one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SIZE))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # which replaces nothing
    finally:
        temporary.unlink()


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            key = file.read(_SIZE + 1)
    except OSError as error:
        raise NoKey(f"{path} cannot be read ({error.strerror})") from error
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077):
        raise NoKey(f"{path} can be read or written by others; delete it")
    if len(key) != _SIZE:
        raise NoKey(f"{path} is not {_SIZE} bytes; delete it")
    return key
