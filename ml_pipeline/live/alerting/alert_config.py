"""Settings of alerts: where the webhook's address is stored, and how often the same alert is sent."""

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
    """Alerts to a webhook. Its address may contain a secret, so no setting contains it.

    Raises UserError if a value is invalid.
    """

    alert_url_from: UrlFrom = "environment"
    """Where the address of your webhook is stored: in the environment variable ML_PIPELINE_ALERT_URL (unset: no
    alerts), or in the system's keyring under service ml-pipeline, name alert-url."""
    alert_every_minutes: float = 10.0
    """Minutes between two alerts about the same guard or kind of event; the later one has the count. 0: send every
    alert."""

    def __post_init__(self) -> None:
        check_choice("alert_url_from", self.alert_url_from, get_args(UrlFrom))
        check_non_negative("alert_every_minutes", self.alert_every_minutes)

    def url(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The address of the webhook, or None. Raises UserError, without showing it, if it is invalid."""
        url: str | None
        if self.alert_url_from == "keyring":
            url, where = _from_keyring(), f"the keyring ({KEYRING_SERVICE}, {KEYRING_NAME})"
        else:
            url, where = environment.get(URL_VARIABLE) or None, URL_VARIABLE
        if url is not None and not is_web_address(url):
            raise UserError(f"The address in {where} must begin with https:// or http:// and name a host; correct it.")
        return url


def is_web_address(url: str) -> bool:
    """Whether `url` is an HTTP address."""
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
    except Exception as error:  # each backend raises different errors
        raise UserError(
            f"The keyring cannot be read ({type(error).__name__}); set {URL_VARIABLE}, and leave alert_url_from out."
        ) from error
    if not url:
        raise UserError(
            f"The keyring has no address: store it with `keyring set {KEYRING_SERVICE} {KEYRING_NAME}`, or set "
            f"{URL_VARIABLE}, and leave alert_url_from out."
        )
    return url
