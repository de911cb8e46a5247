"""Settings of Alpaca: account, market data, server addresses, and the locks on real money.

They never include keys. Real money needs a flag, a line in the settings file, and the account number, typed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from ml_pipeline.config.checks import check_choice, check_positive
from ml_pipeline.config.errors import UserError

AlpacaFeed = Literal["iex", "sip"]

_SCHEMES = {
    "alpaca_url": ("https", "http"),
    "alpaca_stream_url": ("wss", "ws"),
    "alpaca_data_url": ("https", "http"),
    "alpaca_data_stream_url": ("wss", "ws"),
}


@dataclass(frozen=True, kw_only=True)
class AlpacaConfig:
    """Alpaca's account and market data.

    Raises UserError if a value is invalid.
    """

    live: bool = False
    """Trade real money instead of the paper account. This also needs real_money in the settings file, and you must type
    the account number on a terminal."""

    real_money: bool = False
    """Allow this settings file to trade real money, together with live."""

    alpaca_data_feed: AlpacaFeed = "iex"
    """Market data: of one exchange, free (iex), or of all exchanges, by subscription (sip)."""

    alpaca_timeout_s: float = 5.0
    """Longest wait for an answer from Alpaca, in seconds; then the order is looked up by its ID."""

    alpaca_url: str | None = None
    """Address of the trading server, for a proxy; none: Alpaca's, for the paper or the live account."""

    alpaca_stream_url: str | None = None
    """Address of the stream of order updates; none: Alpaca's, for the paper or the live account."""

    alpaca_data_url: str | None = None
    """Address of the market data server; none: Alpaca's."""

    alpaca_data_stream_url: str | None = None
    """Address of the stream of market data; none: Alpaca's, for the chosen feed."""

    def __post_init__(self) -> None:
        check_choice("alpaca_data_feed", self.alpaca_data_feed, get_args(AlpacaFeed))
        check_positive("alpaca_timeout_s", self.alpaca_timeout_s, remedy="the usual one is 5")
        for name, schemes in _SCHEMES.items():
            _check_address(name, getattr(self, name), schemes)
        if self.alpaca_url and not self.alpaca_stream_url:
            raise UserError(
                "alpaca_url names a trading server, but alpaca_stream_url names no stream of its orders; set both or "
                "none, so that orders and their updates belong to one account."
            )


def _check_address(name: str, address: str | None, schemes: tuple[str, ...]) -> None:
    if address is None:
        return
    parts = urlsplit(address)
    if parts.username or parts.password:  # they would appear in settings, logs and process lists
        raise UserError(f"{name} must not contain a user name or password; keys come from the environment or keyring.")
    if parts.scheme not in schemes or not parts.hostname:
        raise UserError(f'{name} must be an address such as {schemes[0]}://host, but got "{address}".')
    if parts.scheme == schemes[1] and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise UserError(
            f"{name} must begin with {schemes[0]}:// unless it is on this machine, because every request contains "
            f'keys, but got "{address}".'
        )


Ask = Callable[[str], str]
"""Asks the user a question on a terminal and returns the answer."""


def check_real_money(config: AlpacaConfig) -> None:
    """Raise UserError if only one of live and real_money is set."""
    if config.live and not config.real_money:
        raise UserError(
            "--live trades real money, but the settings do not allow it; write real_money: true into the file of "
            "--config, or leave --live out to trade on paper."
        )
    if config.real_money and not config.live:
        raise UserError(
            "The settings have real_money: true, but --live is not given; add --live to trade real money, or remove "
            "real_money to trade on paper."
        )


def check_terminal(config: AlpacaConfig, ask: Ask | None) -> None:
    """Raise UserError if real money is to be traded, but no terminal can ask for the account number."""
    if config.live and ask is None:
        raise UserError(
            "Real money is traded only after the account number is typed on a terminal, but there is no terminal; "
            "start this from a terminal, or leave --live and real_money out to trade on paper."
        )


def confirm_real_money(config: AlpacaConfig, account: str, ask: Ask | None) -> None:
    """Require the account number, typed, before real money is traded; does nothing on paper.

    ask: None if there is no terminal. Raises UserError if one of the three locks is closed.
    """
    check_real_money(config)
    if not config.live:
        return
    check_terminal(config, ask)
    assert ask is not None
    typed = ask(f"This trades REAL MONEY in Alpaca's account {account}. Type the account number to continue: ")
    if typed.strip() != account:
        raise UserError(
            f"The typed text is not the account number, {account}; nothing was traded. Start again to type it, or "
            "leave --live and real_money out to trade on paper."
        )
