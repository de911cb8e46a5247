"""An account at Alpaca: orders by REST, and what became of them by its stream and by asking."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from urllib.parse import quote

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.client import ExchangeClock, Refused, RestClient
from ml_pipeline.live.alpaca.config import AlpacaConfig, Ask, check_real_money, confirm_real_money
from ml_pipeline.live.alpaca.entry import AlpacaAsset, OrderEntry, asset_of
from ml_pipeline.live.alpaca.events import AccountCharges, OrderEvents, UpdateStream, read_cursor
from ml_pipeline.live.alpaca.keys import find_keys
from ml_pipeline.live.alpaca.orders import FIRST_LEG, OrderBook, Tracked, TrackedOrders, name_of, number
from ml_pipeline.live.brokers.broker import (
    AccountState,
    BrokerEvent,
    OrderRequest,
    OrderUpdate,
    QuantityRules,
    TradingSession,
)
from ml_pipeline.trading.accounts.rules import CostsAndLimits
from ml_pipeline.trading.market.bar_set import BarSet

_UNKNOWN_SYMBOL = (404, 422)


class AlpacaBroker:
    """Alpaca's paper account, or its live one where `real_money`.

    Every call ends within seconds, or raises BrokerUnavailable. Only the caller's thread sends orders.
    account_number: as Alpaca's page shows it.
    """

    name = "alpaca"
    sizes_at_fill = False
    quantities: QuantityRules | None = None  # it rounds each order by its asset, and tells so

    def __init__(
        self,
        rest: RestClient,
        start_stream: Callable[[OrderBook], UpdateStream],
        *,
        real_money: bool,
        account_number: str,
    ) -> None:
        self.real_money = real_money
        self.account_number = account_number
        self._rest = rest
        self._book = OrderBook(rest)
        self._hours = ExchangeClock(rest)
        self._charges = AccountCharges(rest)
        self._assets: dict[str, AlpacaAsset] = {}
        self._tracked = TrackedOrders(self._book)
        self._entry = OrderEntry(rest, self._book, self._tracked, self.asset)
        self._stream = start_stream(self._book)
        self._events = OrderEvents(self._book, self._tracked, self._entry, self._stream, self._hours.now)

    def account(self) -> AccountState:
        account = self._rest.get("/account")
        positions = {symbol: float(quantity) for symbol, quantity in self._positions().items()}
        cash, equity, power = (float(account[name]) for name in ("cash", "equity", "buying_power"))
        return AccountState(cash, equity, power, positions)

    def orders(self, client_order_ids: Sequence[str] | None = None) -> list[OrderUpdate]:
        """The named orders that Alpaca knows; None: all that are open, those of others than this session included.

        One that goes through zero, and whose second part was never sent, is not among them: submit it again.
        """
        if client_order_ids is None:
            names = dict.fromkeys(name_of(order.client_order_id) for order in self._book.ask_open())
            return [self._tracked.update(self._tracked.get(name) or self._stranger(name)) for name in names]
        self._entry.learn_earlier_orders()
        found = []
        for name in client_order_ids:
            if not self._tracked.legs(name):
                for leg in (name, name + FIRST_LEG):
                    self._book.ask(leg)
            if self._tracked.legs(name):
                tracked = self._tracked.track_found(name)
                if not self._is_half_sent(tracked):
                    found.append(self._tracked.update(tracked))
        return found

    def submit(self, orders: Sequence[OrderRequest]) -> list[OrderUpdate]:
        return self._entry.submit(orders, self._positions()) if orders else []

    def cancel(self, client_order_ids: Sequence[str]) -> None:
        self._entry.cancel(client_order_ids)

    def market_closed_bar(self, bars: BarSet) -> None:
        """Nothing: the market fills the orders."""

    def poll(self, cursor: str | None) -> tuple[list[BrokerEvent], str | None]:
        """What happened to orders that this process sent or asked for, and to those that the cursor names.

        Orders of others, such as those placed on Alpaca's page, are not told of.
        """
        told = read_cursor(cursor)
        events, after = self._events.since(told)
        charges, after.charges = self._charges.since(told.charges)
        return sorted([*events, *charges], key=lambda event: event.time), after.dump()

    def now(self) -> np.datetime64:
        return self._hours.now()

    def sessions(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        return self._hours.sessions(first, last)

    def close(self) -> None:
        self._stream.close()
        self._rest.close()

    def __enter__(self) -> "AlpacaBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def asset(self, symbol: str) -> AlpacaAsset:
        """What may be done with a symbol; asked for once."""
        if symbol not in self._assets:
            try:
                self._assets[symbol] = asset_of(self._rest.get(f"/assets/{quote(symbol, safe='')}"))
            except Refused as refused:
                if refused.status not in _UNKNOWN_SYMBOL:
                    raise
                self._assets[symbol] = AlpacaAsset(tradable=False, fractionable=False, shortable=False)
        return self._assets[symbol]

    def _positions(self) -> dict[str, Decimal]:
        """Signed quantities, with every digit that Alpaca has."""
        found = {}
        for each in self._rest.get("/positions"):
            quantity = abs(number(each["qty"]))
            found[str(each["symbol"])] = -quantity if each["side"] == "short" else quantity
        return found

    def _stranger(self, name: str) -> Tracked:
        """An order of the account that nobody asked for by its id: its events are not told."""
        return Tracked(name, "", 0, legs=self._tracked.legs(name))

    def _is_half_sent(self, tracked: Tracked) -> bool:
        """Whether only the first of two parts was sent, by an earlier process, and is filled."""
        orders = self._tracked.found(tracked)
        is_first = [order.client_order_id for order in orders] == [tracked.client_order_id + FIRST_LEG]
        return is_first and orders[0].status == "filled" and not tracked.rest and tracked.quantity is None


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
