"""The settings of alerts: where the address of the webhook comes from, and how often the same thing is told."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from ml_pipeline.config.checks import check_choice, check_non_negative
from ml_pipeline.config.errors import UserError, install_extra

URL_VARIABLE = "ML_PIPELINE_ALERT_URL"
KEYRING_SERVICE, KEYRING_NAME = "ml-pipeline", "alert-url"

UrlFrom = Literal["environment", "keyring"]


@dataclass(frozen=True, kw_only=True)
class AlertConfig:
    """Whom a session tells what happens. The address may hold a secret, and stands in no settings.

    Raises UserError where a value cannot be used.
    """

    alert_url_from: UrlFrom = "environment"
    """Where the address of your webhook is kept: in the environment variable ML_PIPELINE_ALERT_URL (none set: no
    alerts), or in the system's keyring, service ml-pipeline, name alert-url."""
    alert_every_minutes: float = 10.0
    """The same guard, and the same kind of event, is told at most once in so many minutes, with how often it
    happened; 0: each time."""

    def __post_init__(self) -> None:
        check_choice("alert_url_from", self.alert_url_from, get_args(UrlFrom))
        check_non_negative("alert_every_minutes", self.alert_every_minutes)

    def url(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The address of the webhook; None: none is set. Raises UserError, without it, where it is wrong."""
        url: str | None
        if self.alert_url_from == "keyring":
            url, where = _from_keyring(), f"the keyring ({KEYRING_SERVICE}, {KEYRING_NAME})"
        else:
            url, where = environment.get(URL_VARIABLE) or None, URL_VARIABLE
        if url is not None and not is_web_address(url):
            raise UserError(f"The address in {where} must begin with https:// or http:// and name a host; correct it.")
        return url


def is_web_address(url: str) -> bool:
    """Whether something can be posted to it."""
    try:
        parts = urlsplit(url)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _from_keyring() -> str:
    try:
        import keyring
    except ImportError as error:
        raise UserError(
            f"alert_url_from keyring needs the package keyring, which is not installed: run {install_extra('alpaca')}, "
            "or set ML_PIPELINE_ALERT_URL."
        ) from error
    try:
        url = keyring.get_password(KEYRING_SERVICE, KEYRING_NAME)
    except Exception as error:  # each backend has errors of its own
        raise UserError(
            f"The keyring cannot be read ({type(error).__name__}); set {URL_VARIABLE}, and leave alert_url_from out."
        ) from error
    if not url:
        raise UserError(
            f"The keyring has no address: store it with `keyring set {KEYRING_SERVICE} {KEYRING_NAME}`, or set "
            f"{URL_VARIABLE}, and leave alert_url_from out."
        )
    return url
