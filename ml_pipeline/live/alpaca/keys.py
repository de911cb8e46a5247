"""The keys of an Alpaca account: from the environment or the system's keyring, and from nowhere else."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line

KEY_ID, SECRET_KEY = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY"
"""Names in the environment, which are Alpaca's own, and in the keyring."""
# How Alpaca's console begins the ids of keys for its own accounts.
_PAPER_PREFIX, _LIVE_PREFIX = "PK", "AK"
_LOOKS_LIKE_A_KEY = re.compile(r"secret|password|api[_-]?key|apca|key[_-]?id|token", re.IGNORECASE)


class Keys:
    """A pair of keys, which shows itself nowhere: not in reprs, not in pickles."""

    __slots__ = ("key_id", "secret_key")

    def __init__(self, key_id: str, secret_key: str) -> None:
        self.key_id = key_id
        self.secret_key = secret_key

    def __repr__(self) -> str:
        return "Keys(hidden)"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled")


def keyring_service(*, live: bool) -> str:
    """What the keys are filed under in the system's keyring."""
    return f"ml-pipeline-alpaca-{'live' if live else 'paper'}"


def find_keys(*, live: bool) -> Keys:
    """The keys of the environment, else those of the keyring. Raises UserError that says how to store them."""
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
    return keys  # the keys themselves are in no variable: a traceback may show those


def how_to_store(*, live: bool) -> str:
    """How a user stores the keys, in sentences."""
    service = keyring_service(live=live)
    return (
        f"Set {KEY_ID} and {SECRET_KEY} in the environment, or store them in the system's keyring, which asks for "
        f"each: python -m keyring set {service} {KEY_ID}, then python -m keyring set {service} {SECRET_KEY}."
    )


def refuse_keys(settings: Mapping[str, object], source: Path | str) -> None:
    """Raise UserError where settings hold what looks like a key; the value is not repeated."""
    for name in settings:
        if _LOOKS_LIKE_A_KEY.search(str(name)):
            raise UserError(
                f"{source}: {in_one_line(name, 60)} looks like a key, and keys do not belong into settings, which are "
                f"copied into logs and reports; take it out, and make a new key if others could read it. "
                f"{how_to_store(live=False)}"
            )


def _check_kind(key_id: str, *, live: bool) -> None:
    if live and key_id.startswith(_PAPER_PREFIX):
        raise UserError(
            "These are keys of a paper account, but --live asks for real money; use the keys of the live account, or "
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
    except (KeyringError, RuntimeError, OSError):  # there is no keyring on this machine, or it is locked
        return ""
