"""The settings of Alpaca: which account, which market data, where its servers are, and the locks before real money.

Keys are never among them. Real money takes a flag, a line in the configuration, and the account's number as typed.
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
    """Alpaca's account and market data. Raises UserError where a value cannot be used."""

    live: bool = False
    """Trade real money: needs real_money in the configuration too, and the account's number typed on a terminal;
    otherwise the paper account."""

    real_money: bool = False
    """Whether this configuration may trade real money, together with live."""

    alpaca_data_feed: AlpacaFeed = "iex"
    """Market data of one exchange, free of charge (iex), or of all of them, which needs a subscription (sip)."""

    alpaca_timeout_s: float = 5.0
    """Longest wait in seconds for an answer of Alpaca; after it the order's outcome is asked for by its id."""

    alpaca_url: str | None = None
    """Address of the trading server, such as that of a proxy; none: Alpaca's for the paper or the live account."""

    alpaca_stream_url: str | None = None
    """Address of the stream of order updates; none: Alpaca's for the paper or the live account."""

    alpaca_data_url: str | None = None
    """Address of the market data server; none: Alpaca's."""

    alpaca_data_stream_url: str | None = None
    """Address of the stream of market data; none: Alpaca's for the feed."""

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
    if parts.username or parts.password:  # which would stand in settings, logs and process lists
        raise UserError(f"{name} must hold no user name or password; keys come from the environment or the keyring.")
    if parts.scheme not in schemes or not parts.hostname:
        raise UserError(f'{name} must be an address such as {schemes[0]}://host, but got "{address}".')
    if parts.scheme == schemes[1] and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise UserError(
            f"{name} must begin with {schemes[0]}:// unless it is on this machine, for keys travel with every "
            f'request, but got "{address}".'
        )


Ask = Callable[[str], str]
"""Puts a question to a person on a terminal, and returns what was typed."""


def check_real_money(config: AlpacaConfig) -> None:
    """Raise UserError where one of the flag and the line is there without the other."""
    if config.live and not config.real_money:
        raise UserError(
            "--live trades real money, but the configuration does not allow it; write real_money: true into the file "
            "of --config, or leave --live out to trade on paper."
        )
    if config.real_money and not config.live:
        raise UserError(
            "The configuration says real_money: true, but --live is not given; give --live to trade real money, or "
            "take real_money out to trade on paper."
        )


def confirm_real_money(config: AlpacaConfig, account: str, ask: Ask | None) -> None:
    """Have a person type the account's number before real money is traded; on paper it does nothing.

    ask: None where there is no terminal. Raises UserError where any of the three is missing.
    """
    check_real_money(config)
    if not config.live:
        return
    if ask is None:
        raise UserError(
            "Real money is traded only after its account's number was typed on a terminal, but there is none; start "
            "this from a terminal, or leave --live and real_money out to trade on paper."
        )
    typed = ask(f"This trades REAL MONEY in Alpaca's account {account}. Type the account's number to go on: ")
    if typed.strip() != account:
        raise UserError(
            f"What was typed is not the account's number, {account}; nothing was traded. Start again to type it, or "
            "leave --live and real_money out to trade on paper."
        )
