"""The account and the market behind the server: what it takes, what it refuses, and at which prices it fills.

Arithmetic is in decimals. A long position is closed by one order and a short opened by another, as at Alpaca.
"""

import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_UP, Decimal
from typing import Any, Literal

OPEN = ("new", "accepted", "pending_new", "partially_filled", "held")


class Rejection(Exception):
    """An order that is not taken. status: of HTTP."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.body = status, {"code": code, "message": message}


@dataclass(eq=False)
class Order:
    client_order_id: str
    symbol: str
    side: str
    quantity: Decimal
    kind: str
    limit_price: Decimal | None
    submitted_at: str
    order_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    status: str = "new"
    valid: str = "day"
    order_class: str = ""
    stop_price: Decimal | None = None
    parent: "Order | None" = None
    legs: list["Order"] = field(default_factory=list)
    filled: Decimal = Decimal(0)
    value: Decimal = Decimal(0)
    changed_at: dict[str, str] = field(default_factory=dict)

    @property
    def left(self) -> Decimal:
        return self.quantity - self.filled

    @property
    def sign(self) -> int:
        return 1 if self.side == "buy" else -1

    @property
    def group(self) -> list["Order"]:
        first = self.parent or self
        return [first, *first.legs]

    @property
    def is_exit(self) -> bool:
        """Whether it closes what its group has opened, or what the account holds."""
        return self.parent is not None or self.order_class == "oco"

    def as_json(self, *, nested: bool = False) -> dict[str, Any]:
        average = None if not self.filled else text((self.value / self.filled).quantize(Decimal("1e-9")))
        return {
            "id": self.order_id,
            "client_order_id": self.client_order_id,
            "created_at": self.submitted_at,
            "submitted_at": self.submitted_at,
            "updated_at": self.changed_at.get("updated_at", self.submitted_at),
            **{f"{each}_at": self.changed_at.get(f"{each}_at") for each in ("filled", "canceled", "expired", "failed")},
            "asset_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, self.symbol)),
            "symbol": self.symbol,
            "asset_class": "crypto" if "/" in self.symbol else "us_equity",
            "qty": text(self.quantity),
            "filled_qty": text(self.filled),
            "filled_avg_price": average,
            "order_class": self.order_class,
            "order_type": self.kind,
            "type": self.kind,
            "side": self.side,
            "time_in_force": self.valid,
            "limit_price": None if self.limit_price is None else text(self.limit_price),
            "stop_price": None if self.stop_price is None else text(self.stop_price),
            "status": self.status,
            "extended_hours": False,
            "legs": [leg.as_json() for leg in self.legs] if nested and self.legs else None,
        }


class Exchange:
    """cash: of an account that starts without positions. prices: by symbol; those that are not there cost 100.

    fills: whether market orders are filled as they come, or when `fill` or `close_bar` says so. assets: what differs
    from a tradable, fractionable and shortable one; symbols with a slash are crypto. crypto_fee: a fraction of what is
    credited. in_activities: whether fills show up there; they may be late.
    """

    def __init__(self, publish: Callable[[dict[str, Any]], None]) -> None:
        self.publish = publish
        self.cash = Decimal(100_000)
        self.multiplier = Decimal(2)
        self.day_trades = 0
        self.prices: dict[str, object] = {}
        self.assets: dict[str, dict[str, object]] = {}
        self.fills: Literal["at once", "on demand"] = "at once"
        self.in_activities = True
        self.crypto_fee = Decimal("0.0025")
        self._fees: list[tuple[Order, Decimal, Decimal]] = []  # not posted yet
        self.positions: dict[str, Decimal] = {}
        self.orders: dict[str, Order] = {}  # by client order id
        self.activities: list[dict[str, Any]] = []
        self.lock = threading.RLock()

    # The account

    def price(self, symbol: str) -> Decimal:
        return Decimal(str(self.prices.get(symbol, 100)))

    @property
    def equity(self) -> Decimal:
        return self.cash + sum((q * self.price(symbol) for symbol, q in self.positions.items()), Decimal(0))

    @property
    def buying_power(self) -> Decimal:
        gross = sum((abs(q) * self.price(symbol) for symbol, q in self.positions.items()), Decimal(0))
        opening = [order for order in self._open() if not order.is_exit]
        held = sum((self._opening(order) * self.price(order.symbol) for order in opening), Decimal(0))
        return max(self.multiplier * self.equity - gross - held, Decimal(0))

    def _open(self) -> list[Order]:
        return [order for order in self.orders.values() if order.status in OPEN or order.status == "pending_cancel"]

    def _opening(self, order: Order) -> Decimal:
        """How much of an order makes the position larger."""
        return order.left if self.positions.get(order.symbol, Decimal(0)) * order.sign >= 0 else Decimal(0)

    # Orders

    def submit(self, fields: Mapping[str, Any]) -> Order:
        with self.lock:
            order = self._checked(fields)
            for each in order.group:
                self.orders[each.client_order_id] = each
                self.tell(each, each.status if each.status == "held" else "new")
            if self.fills == "at once" and order.kind == "market":
                self.fill(order.client_order_id)
            return order

    def _checked(self, fields: Mapping[str, Any]) -> Order:
        name = str(fields.get("client_order_id") or uuid.uuid4())
        symbol, quantity = str(fields["symbol"]), Decimal(str(fields["qty"]))
        asset = self.assets.get(symbol, {})
        if name in self.orders:
            raise Rejection(422, 40010001, "client_order_id must be unique")
        if len(name) > 128:
            raise Rejection(422, 40010001, "client_order_id must be no more than 128 characters")
        if asset.get("missing"):
            raise Rejection(422, 42210000, f'asset "{symbol}" not found')
        if not asset.get("tradable", True):
            raise Rejection(422, 42210000, f"asset {symbol} is not tradable")
        if quantity <= 0 or quantity != quantity.quantize(Decimal("1e-9")):
            raise Rejection(422, 42210000, "qty must be > 0 and have at most 9 decimals")
        if fields["side"] not in ("buy", "sell"):
            raise Rejection(422, 42210000, "invalid order")
        if "/" in symbol:
            _check_crypto(fields, quantity, asset)
        order = self._order(name, fields, quantity)
        if "/" not in symbol:
            for each in order.group:
                _check_prices(each)
            self._check_group(order)
        self._check_wash_trade(order)
        self._check_position(order, asset)
        return order

    def _order(self, name: str, fields: Mapping[str, Any], quantity: Decimal) -> Order:
        """The order, with the legs that Alpaca makes of it."""
        order_class, kind, valid = str(fields.get("order_class") or ""), str(fields["type"]), fields["time_in_force"]
        symbol, side = str(fields["symbol"]), str(fields["side"])
        take, stop = fields.get("take_profit"), fields.get("stop_loss")
        limit, at = (fields.get(each) for each in ("limit_price", "stop_price"))
        if order_class == "oco":
            limit = (take or {}).get("limit_price")
        order = Order(
            *(name, symbol, side, quantity, kind, _decimal(limit), moment()),
            valid=str(valid),
            order_class="" if order_class == "simple" else order_class,
            stop_price=_decimal(at),
        )
        if order.valid not in ("day", "gtc", "ioc", "opg", "cls") or kind not in ("market", "limit", "stop"):
            raise Rejection(422, 42210000, "invalid order")
        has = (take is not None) + (stop is not None)
        if order.order_class not in ("", "oco", "bracket", "oto"):
            raise Rejection(422, 42210000, "invalid order_class")
        if has != {"": 0, "oto": 1}.get(order.order_class, 2) or (order_class == "oco" and kind != "limit"):
            raise Rejection(422, 42210000, f"invalid order of class {order_class}")
        exits = {"buy": "sell", "sell": "buy"}[side]
        wanted = []
        if take is not None and order_class != "oco":
            wanted.append((exits, "limit", _decimal(take["limit_price"]), None))
        if stop is not None:
            wanted.append((side if order_class == "oco" else exits, "stop", None, _decimal(stop["stop_price"])))
        for leg_side, leg_kind, leg_limit, leg_stop in wanted:
            leg = Order(str(uuid.uuid4()), symbol, leg_side, quantity, leg_kind, leg_limit, order.submitted_at)
            leg.valid, leg.order_class, leg.stop_price = order.valid, order.order_class, leg_stop
            leg.parent, leg.status = order, "held"
            order.legs.append(leg)
        return order

    def _check_group(self, order: Order) -> None:
        """What Alpaca documents of fractions, advanced orders and auctions."""
        if order.quantity % 1:
            if order.valid != "day":
                raise Rejection(422, 42210000, "fractional orders must be DAY orders")
            if order.order_class:
                raise Rejection(422, 42210000, "fractional orders must be simple orders")
        if order.order_class and order.valid not in ("day", "gtc"):
            raise Rejection(422, 42210000, "bracket orders must be DAY or GTC orders")
        if order.order_class == "oco" and self.positions.get(order.symbol, Decimal(0)) * order.sign >= 0:
            raise Rejection(422, 42210000, "oco orders must be exit orders")
        bases = [self.price(order.symbol), *(each.limit_price for each in order.group if each.limit_price is not None)]
        for each in order.group:
            if each.stop_price is None:
                continue
            if any((base - each.stop_price) * each.sign > Decimal("-0.01") for base in bases):
                word = "greater" if each.sign < 0 else "less"
                raise Rejection(422, 42210000, f"stop price must not be {word} than base price / 1.001")

    def _check_wash_trade(self, order: Order) -> None:
        """Alpaca takes no order against an open one of the other side that it could meet."""
        for each in self._open():
            if each.symbol != order.symbol or each.sign == order.sign or each.status == "held":
                continue
            limits = (each.limit_price, order.limit_price)
            if None in limits or (limits[0] - limits[1]) * order.sign <= 0:  # type: ignore[operator]
                raise Rejection(403, 40310000, "potential wash trade detected. use complex orders")

    def _check_position(self, order: Order, asset: Mapping[str, object]) -> None:
        position = self.positions.get(order.symbol, Decimal(0))
        fraction = order.quantity % 1 != 0
        if fraction and not asset.get("fractionable", True):
            raise Rejection(403, 40310000, f"asset {order.symbol} is not fractionable")
        if position * order.sign < 0:
            held = sum(
                (
                    each.left
                    for each in self._open()
                    if each.symbol == order.symbol and each.sign == order.sign and each.parent is None
                ),
                self._held_by_brackets(order),
            )
            available = abs(position) - held
            if order.quantity > available:
                message = f"insufficient qty available for order (requested: {order.quantity}, available: {available})"
                raise Rejection(403, 40310000, message)
            return
        if order.sign < 0 and fraction and "/" not in order.symbol:
            raise Rejection(422, 42210000, "fractional orders cannot be sold short")
        if order.sign < 0 and "/" in order.symbol:
            raise Rejection(403, 40310000, f"insufficient balance for {order.symbol.partition('/')[0]}")
        if order.sign < 0 and not asset.get("shortable", True):
            raise Rejection(422, 42210000, f"asset {order.symbol} cannot be sold short")
        if order.quantity * self.price(order.symbol) > self.buying_power:
            raise Rejection(403, 40310000, "insufficient buying power")

    def _held_by_brackets(self, order: Order) -> Decimal:
        """Shares that legs of filled entries hold; a stop and a target of one group hold the same ones."""
        legs = [each for each in self._open() if each.symbol == order.symbol and each.sign == order.sign]
        groups = {id(each.parent): each.left for each in legs if each.parent and each.parent.sign != each.sign}
        return sum(groups.values(), Decimal(0))

    def fill(self, client_order_id: str, quantity: object = None, price: object = None) -> None:
        """Fill all that is left of an order, or a part, at the price of its symbol or another one."""
        with self.lock:
            order = self.orders[client_order_id]
            part = order.left if quantity is None else Decimal(str(quantity))
            paid = self.price(order.symbol) if price is None else Decimal(str(price))
            assert 0 < part <= order.left
            assert order.status in (*OPEN, "pending_cancel")
            order.filled += part
            order.value += part * paid
            self.cash -= order.sign * part * paid
            position = self.positions.get(order.symbol, Decimal(0)) + order.sign * part - self._fee(order, part, paid)
            self.positions[order.symbol] = position
            if not position:
                del self.positions[order.symbol]
            order.status = "filled" if not order.left else "partially_filled"
            at, execution = moment(), str(uuid.uuid4())
            order.changed_at["updated_at"] = at
            if order.status == "filled":
                order.changed_at["filled_at"] = at
            event = "fill" if order.status == "filled" else "partial_fill"
            if self.in_activities:
                self.activities.append(
                    {
                        "id": f"{''.join(filter(str.isdigit, at))[:17]}::{execution}",
                        "activity_type": "FILL",
                        "transaction_time": at,
                        "type": event,
                        "price": text(paid),
                        "qty": text(part),
                        "side": order.side,
                        "symbol": order.symbol,
                        "leaves_qty": text(order.left),
                        "order_id": order.order_id,
                        "cum_qty": text(order.filled),
                        "order_status": order.status,
                    }
                )
            more = {"execution_id": execution, "price": text(paid), "qty": text(part), "position_qty": text(position)}
            self.tell(order, event, at, more)
            self._move_group(order)

    def _move_group(self, order: Order) -> None:
        """After a fill: an entry activates its legs, and an exit cancels the other, or reduces it to what is left."""
        if not order.is_exit:
            if order.status == "filled":
                for leg in order.legs:
                    leg.status = "held" if leg.kind == "stop" and len(order.legs) > 1 else "new"
            return
        for other in order.group:
            if other is not order and other.is_exit and other.status in (*OPEN, "pending_cancel"):
                if order.status == "filled":
                    self._end(other, "canceled")
                else:
                    other.quantity = order.left

    def _fee(self, order: Order, part: Decimal, price: Decimal) -> Decimal:
        """What crypto costs, of the credited asset: of coins at once, of dollars with `post_fees`."""
        if "/" not in order.symbol:
            return Decimal(0)
        credited = part if order.sign > 0 else part * price
        fee = (credited * self.crypto_fee).quantize(Decimal("1e-9"), ROUND_UP)
        self._fees.append((order, fee, price))
        return fee if order.sign > 0 else Decimal(0)

    def post_fees(self) -> list[str]:
        """The fees of crypto as activities, which Alpaca posts at the end of a day; returns their ids."""
        with self.lock:
            posted, self._fees = self._fees, []
            names = []
            for order, fee, price in posted:
                kind, cash = ("CFEE", Decimal(0)) if order.sign > 0 else ("FEE", fee)
                names.append(self.charge(cash, kind, "Coin Pair Transaction Fee"))
                self.activities[-1]["symbol"] = order.symbol.replace("/", "")
                if order.sign > 0:
                    self.activities[-1] |= {"qty": text(-fee), "price": text(price)}
            return names

    def close_bar(self, bars: Mapping[str, tuple[object, object, object, object]]) -> None:
        """A bar of each symbol (open, high, low, close): open orders are filled at its open, or at their limit if the
        bar trades through it; prices are then those of its close."""
        with self.lock:
            # An entry fills before its legs, and if a bar reaches stop and target, the stop counts.
            for order in sorted(self._open(), key=lambda order: (order.is_exit, order.stop_price is None)):
                if order.symbol not in bars or order.status not in (*OPEN, "pending_cancel"):
                    continue
                if order.parent is not None and order.parent.status != "filled" and not order.parent.is_exit:
                    continue
                start, high, low, _ = (Decimal(str(each)) for each in bars[order.symbol])
                limit, stop = order.limit_price, order.stop_price
                if stop is not None:
                    worst = low if order.sign < 0 else high
                    if (worst - stop) * order.sign >= 0:
                        self.fill(order.client_order_id, price=min(start, stop) if order.sign < 0 else max(start, stop))
                    continue
                if limit is None or (start - limit) * order.sign <= 0:
                    self.fill(order.client_order_id, price=start)
                elif (low if order.sign > 0 else high) * order.sign < limit * order.sign:
                    self.fill(order.client_order_id, price=limit)
            self.prices.update({symbol: Decimal(str(bar[3])) for symbol, bar in bars.items()})

    def end(self, client_order_id: str, status: Literal["canceled", "expired", "rejected"]) -> None:
        with self.lock:
            order = self.orders[client_order_id]
            if order.status not in (*OPEN, "pending_cancel"):
                raise Rejection(422, 42210000, f'order is already in "{order.status}" state')
            for each in order.group:
                if each.status in (*OPEN, "pending_cancel"):
                    self._end(each, status if each is order else "canceled")

    def _end(self, order: Order, status: str) -> None:
        order.status = status
        at = moment()
        order.changed_at |= {"updated_at": at, f"{'failed' if status == 'rejected' else status}_at": at}
        self.tell(order, status)

    def charge(self, amount: object, kind: str = "FEE", description: str = "") -> str:
        """Money that the account pays; returns the id of the activity."""
        return self.adjust(kind, cash=-Decimal(str(amount)), description=description)

    def adjust(
        self,
        kind: str,
        *,
        cash: object = 0,
        symbol: str = "",
        quantity: object = 0,
        description: str = "",
        **more: object,
    ) -> str:
        """Change cash, or a position, without an order; returns the id of the activity. more: its other fields."""
        with self.lock:
            self.cash += Decimal(str(cash))
            if symbol:
                self.positions[symbol] = self.positions.get(symbol, Decimal(0)) + Decimal(str(quantity))
                if not self.positions[symbol]:
                    del self.positions[symbol]
            day = moment()[:10]
            name = f"{day.replace('-', '')}000000000::{uuid.uuid4()}"
            of_shares = {"symbol": symbol, "qty": text(Decimal(str(quantity)))} if symbol else {}
            self.activities.append(
                {
                    "id": name,
                    "activity_type": kind,
                    "date": day,
                    "net_amount": text(Decimal(str(cash))),
                    "description": description,
                    "status": "executed",
                    **of_shares,
                    **more,
                }
            )
            return name

    def split(self, symbol: str, new: int, old: int) -> None:
        """A split, as two activities: the old quantity goes, and the new one comes."""
        with self.lock:
            had = self.positions[symbol]
            for quantity in (-had, had * new / old):
                self.adjust("SPLIT", symbol=symbol, quantity=quantity, description=f"{new} for {old}")
            self.prices[symbol] = self.price(symbol) * old / new

    def tell(self, order: Order, event: str, at: str | None = None, more: Mapping[str, Any] | None = None) -> None:
        self.publish({"event": event, "timestamp": at or moment(), "order": order.as_json(), **(more or {})})


CRYPTO = {"min_order_size": "0.000009", "min_trade_increment": "0.000000001", "price_increment": "0.01"}


def _check_crypto(fields: Mapping[str, Any], quantity: Decimal, asset: Mapping[str, object]) -> None:
    """Crypto is valid until canceled, in steps and from a smallest order on; it has no shorts."""
    rules = {**CRYPTO, **asset}
    if fields.get("time_in_force") not in ("gtc", "ioc"):
        raise Rejection(422, 42210000, "invalid crypto time_in_force")
    if quantity < Decimal(str(rules["min_order_size"])):
        raise Rejection(403, 40310000, f"cost basis must be >= minimal amount of order {rules['min_order_size']}")
    if quantity % Decimal(str(rules["min_trade_increment"])):
        raise Rejection(422, 42210000, "invalid qty increment")
    if "limit_price" in fields and Decimal(str(fields["limit_price"])) % Decimal(str(rules["price_increment"])):
        raise Rejection(422, 42210000, "invalid limit_price increment")


def _check_prices(order: Order) -> None:
    for name, price in (("limit_price", order.limit_price), ("stop_price", order.stop_price)):
        if price is not None and price != price.quantize(Decimal("0.01") if price >= 1 else Decimal("0.0001")):
            raise Rejection(422, 42210000, f"invalid {name} {price}. sub-penny increment does not fulfill minimum")


def _decimal(value: object) -> Decimal | None:
    return None if value is None else Decimal(str(value))


def text(number: Decimal) -> str:
    return f"{number.normalize():f}"


def moment() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "000Z"
