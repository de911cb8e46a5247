"""Settings of alerts and of the dead man's switch. Their addresses may contain secrets, so no file repeats them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

from ml_pipeline.config.checks import check_choice, check_non_negative
from ml_pipeline.config.errors import UserError, install_extra

URL_VARIABLE, HEARTBEAT_VARIABLE = "ML_PIPELINE_ALERT_URL", "ML_PIPELINE_HEARTBEAT_URL"
KEYRING_SERVICE, KEYRING_NAME = "ml-pipeline", "alert-url"

UrlFrom = Literal["environment", "keyring"]


@dataclass(frozen=True, kw_only=True)
class AlertConfig:
    """Alerts by Apprise, and a dead man's switch.

    Raises UserError if a value is invalid.
    """

    alert_url_from: UrlFrom = "environment"
    """Where the Apprise addresses of alerts are stored: in the environment variable ML_PIPELINE_ALERT_URL (unset: no
    alerts), or in the system's keyring under service ml-pipeline, name alert-url."""
    alert_every_minutes: float = 10.0
    """Minutes between two alerts about the same guard or kind of event; the later one has the count. 0: send every
    alert."""
    heartbeat_url: str | None = field(default=None, repr=False)
    """Address of a dead man's switch, such as https://hc-ping.com/UUID, which is called every minute so that silence
    raises an alarm; none: the environment variable ML_PIPELINE_HEARTBEAT_URL, which the process list does not show."""

    def __post_init__(self) -> None:
        check_choice("alert_url_from", self.alert_url_from, get_args(UrlFrom))
        check_non_negative("alert_every_minutes", self.alert_every_minutes)
        if self.heartbeat_url is not None:
            _check_web_address(self.heartbeat_url, "heartbeat_url")

    def urls(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The Apprise addresses, separated by spaces or commas, or None."""
        if self.alert_url_from == "keyring":
            return _from_keyring()
        return environment.get(URL_VARIABLE, "").strip() or None

    @property
    def urls_are_in(self) -> str:
        """Where the addresses are stored, for messages."""
        in_keyring = self.alert_url_from == "keyring"
        return f"the keyring ({KEYRING_SERVICE}, {KEYRING_NAME})" if in_keyring else URL_VARIABLE

    def switch_url(self, environment: Mapping[str, str] = os.environ) -> str | None:
        """The address of the dead man's switch, or None. Raises UserError, without showing it, if it is invalid."""
        if self.heartbeat_url is not None:
            return self.heartbeat_url
        if url := environment.get(HEARTBEAT_VARIABLE, "").strip():
            _check_web_address(url, HEARTBEAT_VARIABLE)
        return url or None


def _check_web_address(url: str, where: str) -> None:
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_one = False
    if not is_one:
        raise UserError(f"The address in {where} must begin with https:// or http:// and name a host; correct it.")


def _from_keyring() -> str:
    try:
        import keyring
    except ImportError as error:
        raise UserError(
            f"alert_url_from keyring needs the package keyring, which is not installed: run {install_extra('alerts')}, "
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
