"""A secret key of this user on this machine; signatures show which files this user wrote.

The key is in the user's state folder, readable only by the user, and is created when first needed.
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
    """There is no usable key and none can be created; the message has the reason."""


def state_folder() -> Path:
    """Our state folder for this user: in XDG_STATE_HOME, else in ~/.local/state (%LOCALAPPDATA% on Windows).

    Raises NoKey if this user has no home folder.
    """
    try:
        given = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME", "")
        folder = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise NoKey("there is no home folder") from error
    if not folder.is_absolute():  # HOME is relative: the owner of the working directory could then plant a key
        raise NoKey("there is no home folder")
    return folder / "ml_pipeline"


def key_path() -> Path:
    """The file of the key, in `state_folder`."""
    return state_folder() / "signing.key"


def sign(content: bytes) -> str:
    """The signature of `content` in hexadecimal. Creates the key if there is none; raises NoKey."""
    return hmac.digest(_own_key(), content, "sha256").hex()


def is_signed(content: bytes, signature: str) -> bool:
    """Whether this user's `sign` produced the signature for this content. Creates no key."""
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
    """Create the key atomically; if several processes try at once, one of them wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_SIZE))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # does not replace an existing key
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
        raise NoKey(f"other users can read or write {path}; delete it")
    if len(key) != _SIZE:
        raise NoKey(f"{path} is not {_SIZE} bytes long; delete it")
    return key
