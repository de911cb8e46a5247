"""An account at Alpaca: orders are sent by REST, and their events received by stream and by polling."""

from collections.abc import Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.activities import AccountActivities
from ml_pipeline.live.alpaca.asset_fees import AssetFees, is_pair
from ml_pipeline.live.alpaca.client import (
    ExchangeClock,
    Refused,
    RestClient,
    read_list,
    read_number,
    read_text,
    reading,
)
from ml_pipeline.live.alpaca.config import AlpacaConfig, Ask, check_real_money, confirm_real_money
from ml_pipeline.live.alpaca.entry import AlpacaAsset, OrderEntry, asset_of
from ml_pipeline.live.alpaca.events import OrderEvents, UpdateStream, read_cursor
from ml_pipeline.live.alpaca.keys import find_keys
from ml_pipeline.live.alpaca.limits import opened_by, refusals
from ml_pipeline.live.alpaca.orders import FIRST_LEG, BrokerOrder, OrderBook, Tracked, TrackedOrders
from ml_pipeline.live.brokers.broker import (
    SMALLEST_QUANTITY,
    AccountState,
    BrokerEvent,
    OrderRequest,
    OrderUpdate,
    Protection,
    QuantityRules,
    TradingSession,
)
from ml_pipeline.trading.accounts.rules import CostsAndLimits
from ml_pipeline.trading.market.bar_set import BarSet

_UNKNOWN_SYMBOL = (404, 422)
_NO_CLOSING_AUCTION = (
    "fill_at close: Alpaca takes orders for the closing auction until 15:50, before the last bar of a day has closed; "
    "orders are sent after the close of their bar, and are filled at the next price of the market"
)


class AlpacaBroker:
    """Alpaca's paper account, or with `real_money` its live account.

    Every call ends within seconds, or raises BrokerUnavailable. Only the caller's thread sends orders.
    account_number: as on Alpaca's page; also the `account_id`. protects: positions get a stop or target, and are whole
    shares. notices: for the user, at the start of a session.
    """

    name = "alpaca"
    sizes_at_fill = False
    has_clock = True

    def __init__(
        self,
        rest: RestClient,
        start_stream: Callable[[OrderBook], UpdateStream],
        *,
        real_money: bool,
        account_number: str,
        protects: bool = False,
    ) -> None:
        self.real_money = real_money
        self.account_number = self.account_id = account_number
        self._protects = protects
        self.notices: tuple[str, ...] = ()
        self._rest = rest
        self._book = OrderBook(rest)
        self._hours = ExchangeClock(rest)
        self._activities = AccountActivities(rest)
        self._fees = AssetFees(self._positions)
        self._assets: dict[str, AlpacaAsset] = {}
        self._earlier: set[str] | None = None  # orders at the first comparison
        self._tracked = TrackedOrders(self._book)
        self._entry = OrderEntry(rest, self._book, self._tracked, self.asset)
        self._stream = start_stream(self._book)
        self._events = OrderEvents(self._book, self._tracked, self._entry, self._stream, self._hours.now)

    @property
    def quantities(self) -> QuantityRules:
        """Nine decimals, or the steps of crypto. Whole shares are rounded with each order, and reported."""
        pairs = {symbol: asset for symbol, asset in self._assets.items() if asset.is_crypto}
        return QuantityRules(
            {symbol: asset.step for symbol, asset in pairs.items()},
            usual_step=SMALLEST_QUANTITY,
            smallest={symbol: asset.smallest for symbol, asset in pairs.items()},
        )

    def account(self) -> AccountState:
        """Cash, equity and positions. The next `poll` also requests the stops, targets and activities that may have led
        to them."""
        self._activities.ask_now()
        self._events.ask_now()
        account = self._rest.get("/account")
        positions = self._positions()
        with reading(f"account {self.account_number}"):
            cash, equity, power = (float(read_number(account, name)) for name in ("cash", "equity", "buying_power"))
        self._fees.note_account(positions)
        return AccountState(cash, equity, power, positions)

    def orders(self, client_order_ids: Sequence[str] | None = None) -> list[OrderUpdate]:
        """The known orders among these IDs; None: all open orders, including those of other sources, and orders of
        other sources that were filled since the first such call.

        An order through zero whose second part was never sent is not included: submit it again.
        """
        if client_order_ids is None:
            listed = [*self._book.ask_open_legs(), *(order.client_order_id for order in self._filled_elsewhere())]
            names = dict.fromkeys(map(self._tracked.owner, listed))
            return [self._tracked.update(self._tracked.get(name) or self._stranger(name)) for name in names]
        self._entry.learn_earlier_orders()
        found = []
        for name in client_order_ids:
            if not self._tracked.legs(name):
                for leg in (name, name + FIRST_LEG):
                    self._book.ask(leg)
            if self._tracked.legs(name):
                tracked = self._tracked.track_found(name)
                if not self._tracked.is_half_sent(tracked):
                    found.append(self._tracked.update(tracked))
        return found

    def submit(self, orders: Sequence[OrderRequest]) -> list[OrderUpdate]:
        """As `Broker.submit`. What the account does not allow is rejected before anything is sent."""
        if not orders:
            return []
        positions = self._positions()
        self._fees.note_account(positions)
        self._fees.note_sent(order.symbol for order in orders)
        new = [order for order in orders if not self._tracked.legs(order.client_order_id)]
        opens = any(opened_by(order, positions.get(order.symbol, Decimal(0))) for order in new)
        with reading(f"account {self.account_number}"):
            refused = refusals(new, positions, self._rest.get("/account")) if opens else {}
        sent = self._entry.submit([order for order in orders if order.client_order_id not in refused], positions)
        answers = {update.client_order_id: update for update in sent}
        for order in orders:
            if (reason := refused.get(order.client_order_id)) is not None:
                answers[order.client_order_id] = self._entry.rejected(order, reason)
        return [answers[order.client_order_id] for order in orders]

    def cancel(self, client_order_ids: Sequence[str]) -> None:
        self._entry.cancel(client_order_ids)

    def protect(self, protections: Sequence[Protection]) -> list[OrderUpdate]:
        return [self._entry.protect(each) for each in protections]

    def unprotect(self, symbols: Collection[str]) -> None:
        self._entry.unprotect(symbols)

    def market_closed_bar(self, bars: BarSet) -> None:
        """The market fills the orders; the next `poll` requests all stops and targets that it may have reached."""
        self._events.ask_now()

    def poll(self, cursor: str | None) -> tuple[list[BrokerEvent], str | None]:
        """The events of orders that this process sent or looked up, and of those in the cursor.

        Orders of other sources, such as those placed on Alpaca's page, are not included.
        """
        told = read_cursor(cursor)
        events, after = self._events.since(told)
        received = self._fees.taken_off(cursor, told.held, events)
        if received is None:
            return [], cursor
        events, after.held = received
        activities, after.charges, after.asked_on = self._activities.since(
            told.charges, asked_on=told.asked_on, charges_only=told.charges_only
        )
        text = after.dump()
        self._fees.note_cursor(text, (self._tracked.symbol(name) for name in after.requests))
        return sorted([*events, *activities], key=lambda event: event.time), text

    def now(self) -> np.datetime64:
        return self._hours.now()

    def sessions(self, first: np.datetime64, last: np.datetime64) -> list[TradingSession]:
        return [] if any(asset.is_crypto for asset in self._assets.values()) else self._hours.sessions(first, last)

    def close(self) -> None:
        self._stream.close()
        self._rest.close()

    def __enter__(self) -> "AlpacaBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def asset(self, symbol: str) -> AlpacaAsset:
        """What the account may do with a symbol; requested once."""
        if symbol not in self._assets:
            try:
                with reading(f"asset {symbol}"):
                    asset = asset_of(self._rest.get(f"/assets/{quote(symbol, safe='')}"))
                # Without the slash, orders and positions would have another name than the session.
                tradable = asset.tradable and asset.is_crypto == is_pair(symbol)
                if is_pair(symbol):  # the books hold dollars: ETH/BTC would be paid in bitcoin
                    tradable = tradable and symbol.endswith("/USD")
                self._assets[symbol] = asset._replace(tradable=tradable, protected=self._protects)
            except Refused as refused:
                if refused.status not in _UNKNOWN_SYMBOL:
                    raise
                self._assets[symbol] = AlpacaAsset(tradable=False, fractionable=False, shortable=False)
        return self._assets[symbol]

    def _positions(self) -> dict[str, Decimal]:
        """Signed quantities, with all of Alpaca's digits. Raises UnreadableAnswer."""
        answer, found = self._rest.get("/positions"), dict[str, Decimal]()
        with reading("list of positions"):
            positions = read_list(answer)
        for each in positions:
            symbol, side = each.get("symbol"), each.get("side")
            with reading(f"position {symbol} ({each.get('asset_id')})"):
                quantity = read_number(each, "qty")
                if side not in ("long", "short") or (side == "long" and quantity < 0):
                    raise ValueError(f'its side is "{side}" and its qty {quantity}')
                if not isinstance(symbol, str) or not symbol or self._name_of(each) in found:
                    raise ValueError("its symbol is missing or repeated")
            found[self._name_of(each)] = -abs(quantity) if side == "short" else quantity
        return found

    def _name_of(self, position: Mapping[str, Any]) -> str:
        """The symbol of a position. Alpaca writes BTC/USD as BTCUSD there."""
        symbol = str(position["symbol"])
        pairs = {name.replace("/", ""): name for name, asset in self._assets.items() if asset.is_crypto}
        return pairs.get(symbol, symbol) if position.get("asset_class") == "crypto" else symbol

    def _filled_elsewhere(self) -> list[BrokerOrder]:
        """The filled orders of other sources that the account received after the first call."""
        recent = self._book.ask_recent()
        if self._earlier is None:
            self._earlier = {order.client_order_id for order in recent}
        new = [order for order in recent if order.filled and order.client_order_id not in self._earlier]
        return [order for order in new if self._tracked.get(self._tracked.owner(order.client_order_id)) is None]

    def _stranger(self, name: str) -> Tracked:
        """An order of another source, whose events are not reported."""
        return Tracked(name, "", 0, legs=self._tracked.legs(name))


def open_alpaca(
    config: AlpacaConfig,
    *,
    symbols: Sequence[str] = (),
    rules: CostsAndLimits | None = None,
    ask: Ask | None = None,
) -> AlpacaBroker:
    """The paper account, or the live one after `confirm_real_money`; close it at the end.

    symbols: to trade; their assets are requested now, not with the first order. rules: of the session. ask: asks the
    user on a terminal; None if there is none. Raises UserError for missing or refused keys, a blocked account or an
    unknown symbol, and BrokerUnavailable.
    """
    check_real_money(config)
    keys = find_keys(live=config.live)
    rest = RestClient(keys, live=config.live, url=config.alpaca_url, timeout_s=config.alpaca_timeout_s)
    try:
        account = rest.get("/account")
        with reading("account", account):
            number = read_text(account, "account_number")
        if account.get("trading_blocked") or account.get("account_blocked") or account.get("trade_suspended_by_user"):
            raise UserError(
                "Alpaca does not allow this account to trade: it is blocked or suspended; see app.alpaca.markets for "
                "the reason."
            )
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
            protects=rules is not None and (rules.stop_loss is not None or rules.take_profit is not None),
        )
    except BaseException:
        rest.close()
        raise
    if rules is not None and rules.fill_at == "close":
        broker.notices = (_NO_CLOSING_AUCTION,)
    try:
        unknown = [symbol for symbol in symbols if not broker.asset(symbol).tradable]
        if unknown:
            raise UserError(
                f"{', '.join(unknown)} cannot be traded in this account, which trades US stocks, ETFs and crypto that "
                "Alpaca has; name such symbols, pairs with the dollar as BTC/USD, or use the simulated broker."
            )
        if any(map(is_pair, symbols)):
            if broker._protects:
                raise UserError(
                    "stop_loss and take_profit are orders at Alpaca, which has none for crypto; train without "
                    "them, or use the simulated broker."
                )
            broker._fees.begin()
    except BaseException:
        broker.close()
        raise
    return broker
