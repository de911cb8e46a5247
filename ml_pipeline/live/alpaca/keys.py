"""The keys of an Alpaca account, from the environment or the system's keyring only."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line

KEY_ID, SECRET_KEY = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY"
"""Names in the environment, as Alpaca defines them, and in the keyring."""
# Prefixes of key IDs in Alpaca's console.
_PAPER_PREFIX, _LIVE_PREFIX = "PK", "AK"
_LOOKS_LIKE_A_KEY = re.compile(r"secret|password|api[_-]?key|apca|key[_-]?id|token", re.IGNORECASE)


class Keys:
    """A pair of keys that is hidden in reprs and cannot be pickled."""

    __slots__ = ("key_id", "secret_key")

    def __init__(self, key_id: str, secret_key: str) -> None:
        self.key_id = key_id
        self.secret_key = secret_key

    def __repr__(self) -> str:
        return "Keys(hidden)"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled")


def keyring_service(*, live: bool) -> str:
    """The name of the service in the system's keyring."""
    return f"ml-pipeline-alpaca-{'live' if live else 'paper'}"


def find_keys(*, live: bool) -> Keys:
    """The keys from the environment, or else the keyring. Raises UserError that explains how to store them."""
    keys = Keys(os.environ.get(KEY_ID, "").strip(), os.environ.get(SECRET_KEY, "").strip())
    if bool(keys.key_id) != bool(keys.secret_key):
        missing, given = (SECRET_KEY, KEY_ID) if keys.key_id else (KEY_ID, SECRET_KEY)
        raise UserError(f"The environment has {given}, but no {missing}; set both, or neither to use the keyring.")
    if not keys.key_id:
        keys = Keys(_from_keyring(KEY_ID, live=live), _from_keyring(SECRET_KEY, live=live))
    if not (keys.key_id and keys.secret_key):
        account = "live" if live else "paper"
        raise UserError(f"There are no keys of Alpaca's {account} account. {how_to_store(live=live)}")
    _check_kind(keys.key_id, live=live)
    return keys  # no variable has the keys themselves, because tracebacks may show variables


def how_to_store(*, live: bool) -> str:
    """Instructions for storing the keys."""
    service = keyring_service(live=live)
    return (
        f"Set {KEY_ID} and {SECRET_KEY} in the environment, or store them in the system's keyring: run python -m "
        f"keyring set {service} {KEY_ID}, then python -m keyring set {service} {SECRET_KEY}."
    )


def refuse_keys(settings: Mapping[str, object], source: Path | str) -> None:
    """Raise UserError if settings contain something that looks like a key; the message does not repeat the value."""
    for name in settings:
        if _LOOKS_LIKE_A_KEY.search(str(name)):
            raise UserError(
                f"{source}: {in_one_line(name, 60)} looks like a key, but settings are copied into logs and reports; "
                f"remove it, and create a new key if others could read it. "
                f"{how_to_store(live=False)}"
            )


def _check_kind(key_id: str, *, live: bool) -> None:
    if live and key_id.startswith(_PAPER_PREFIX):
        raise UserError(
            "These are keys of a paper account, but --live trades real money; use the keys of the live account, or "
            "leave --live out."
        )
    if not live and key_id.startswith(_LIVE_PREFIX):
        raise UserError(
            "These are keys of a live account, but the session trades on paper; use the keys of the paper account, "
            "which Alpaca's page shows after switching to it."
        )


def _from_keyring(name: str, *, live: bool) -> str:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ModuleNotFoundError:
        return ""
    try:
        return (keyring.get_password(keyring_service(live=live), name) or "").strip()
    except (KeyringError, RuntimeError, OSError):  # this machine has no keyring, or it is locked
        return ""
