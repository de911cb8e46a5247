"""The three locks before real money: a flag, a line in the configuration, and the account's number as typed."""

from collections.abc import Callable

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.connection.alpaca_config import AlpacaConfig

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
