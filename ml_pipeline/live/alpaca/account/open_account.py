"""Open an account at Alpaca as the settings say: its keys, its server, and a person's word for real money."""

from collections.abc import Sequence

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.account.alpaca_broker import AlpacaBroker
from ml_pipeline.live.alpaca.account.update_stream import UpdateStream
from ml_pipeline.live.alpaca.connection.alpaca_config import AlpacaConfig
from ml_pipeline.live.alpaca.connection.keys import find_keys
from ml_pipeline.live.alpaca.connection.real_money import Ask, check_real_money, confirm_real_money
from ml_pipeline.live.alpaca.connection.rest_client import RestClient
from ml_pipeline.trading.accounts.rules import CostsAndLimits


def open_alpaca(
    config: AlpacaConfig,
    *,
    symbols: Sequence[str] = (),
    rules: CostsAndLimits | None = None,
    ask: Ask | None = None,
) -> AlpacaBroker:
    """The paper account, or the live one after `confirm_real_money`; close it at the end.

    symbols: what will be traded; what Alpaca allows for each is asked now, and not when the first order is due.
    rules: of the session. ask: how a person is asked on a terminal; None where there is none. Raises UserError: rules
    that this account does not keep, keys that are missing or refused, an account that may not trade, a symbol that
    Alpaca does not have; BrokerUnavailable.
    """
    check_real_money(config)
    if rules is not None:
        _check_rules(rules)
    keys = find_keys(live=config.live)
    rest = RestClient(keys, live=config.live, url=config.alpaca_url, timeout_s=config.alpaca_timeout_s)
    try:
        account = rest.get("/account")
        if account.get("trading_blocked") or account.get("account_blocked") or account.get("trade_suspended_by_user"):
            raise UserError(
                "Alpaca does not let this account trade: it is blocked or suspended; its page at app.alpaca.markets "
                "says why."
            )
        number = str(account["account_number"])
        confirm_real_money(config, number, ask)
        broker = AlpacaBroker(
            rest,
            lambda book: UpdateStream(
                keys,
                live=config.live,
                url=config.alpaca_stream_url,
                timeout_s=config.alpaca_timeout_s,
                on_update=book.note_update,
            ),
            real_money=config.live,
            account_number=number,
        )
    except BaseException:
        rest.close()
        raise
    try:
        unknown = [symbol for symbol in symbols if not broker.asset(symbol).tradable]
        if unknown:
            raise UserError(
                f"{', '.join(unknown)} cannot be traded in this account, which trades US shares and ETFs that "
                "Alpaca has; name such symbols, or trade on the simulated broker."
            )
    except BaseException:
        broker.close()
        raise
    return broker


def _check_rules(rules: CostsAndLimits) -> None:
    for name in ("stop_loss", "take_profit"):
        if getattr(rules, name) is not None:
            raise UserError(
                f"{name} closes positions within a bar, but no such order is sent to Alpaca; train without {name}, or "
                "trade on the simulated broker."
            )
