"""Alpaca's trading by REST: account, positions, orders, assets, activities, clock and calendar."""

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from tests.live.alpaca_server.exchange import CRYPTO, OPEN, Exchange, Order, Rejection, text
from tests.live.alpaca_server.trade_updates import TradeUpdates

NEW_YORK = ZoneInfo("America/New_York")
HALF_DAYS = {date(2024, 7, 3), date(2024, 11, 29)}
HOLIDAYS = {date(2024, 7, 4), date(2024, 11, 28), date(2024, 12, 25)}
_PAGE = 100


class Trading:
    """account_number: as the account shows it. blocked: whether it may not trade. now: the right time, this machine's
    if no test sets it. ahead: how far the clock is ahead of it."""

    def __init__(self, key: str, secret: str, updates: TradeUpdates) -> None:
        self.key, self.secret = key, secret
        self.exchange = Exchange(updates.publish)
        self.account_number = "PA1234567890"
        self.blocked = False
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.ahead = timedelta(0)

    def routes(self) -> list[BaseRoute]:
        handlers: list[tuple[str, str, Callable[[Request], Response]]] = [
            ("GET", "/account", self.account),
            ("GET", "/account/activities", self.activities),
            ("GET", "/account/activities/{kind}", self.activities),
            ("GET", "/positions", self.positions),
            ("GET", "/orders", self.orders),
            ("POST", "/orders", self.submit),
            ("GET", "/orders:by_client_order_id", self.order_by_client_id),
            ("GET", "/orders/{order_id}", self.order),
            ("DELETE", "/orders/{order_id}", self.cancel),
            ("GET", "/assets/{symbol:path}", self.asset),
            ("GET", "/clock", self.clock),
            ("GET", "/calendar", self.calendar),
        ]
        return [Route(f"/v2{path}", self._guarded(handler), methods=[method]) for method, path, handler in handlers]

    def _guarded(self, handler: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            keys = request.headers.get("APCA-API-KEY-ID"), request.headers.get("APCA-API-SECRET-KEY")
            if keys != (self.key, self.secret):
                return JSONResponse({"code": 40110000, "message": "request is not authorized"}, 401)
            request.state.content = await request.json() if request.method == "POST" else None
            try:
                with self.exchange.lock:
                    return handler(request)
            except Rejection as rejection:
                return JSONResponse(rejection.body, rejection.status)

        return answer

    def account(self, request: Request) -> Response:
        exchange = self.exchange
        return JSONResponse(
            {
                "id": str(uuid.uuid5(uuid.NAMESPACE_DNS, self.account_number)),
                "account_number": self.account_number,
                "status": "ACTIVE",
                "currency": "USD",
                "cash": text(exchange.cash),
                "equity": text(exchange.equity),
                "portfolio_value": text(exchange.equity),
                "buying_power": text(exchange.buying_power),
                "multiplier": text(exchange.multiplier),
                "daytrade_count": exchange.day_trades,
                "pattern_day_trader": False,
                "trading_blocked": self.blocked,
                "account_blocked": False,
                "trade_suspended_by_user": False,
                "shorting_enabled": True,
            }
        )

    def positions(self, request: Request) -> Response:
        exchange = self.exchange
        return JSONResponse(
            [
                {
                    "asset_id": str(uuid.uuid5(uuid.NAMESPACE_DNS, symbol)),
                    "symbol": symbol.replace("/", ""),
                    "exchange": "NASDAQ",
                    "asset_class": "crypto" if "/" in symbol else "us_equity",
                    "avg_entry_price": text(exchange.price(symbol)),
                    "qty": text(quantity),
                    "side": "long" if quantity > 0 else "short",
                    "market_value": text(quantity * exchange.price(symbol)),
                    "cost_basis": text(quantity * exchange.price(symbol)),
                }
                for symbol, quantity in exchange.positions.items()
            ]
        )

    def orders(self, request: Request) -> Response:
        asked = request.query_params
        found = sorted(self.exchange.orders.values(), key=lambda order: order.submitted_at, reverse=True)
        if asked.get("status", "open") == "open":
            found = [order for order in found if order.status in OPEN or order.status == "pending_cancel"]
        if "after" in asked:
            found = [order for order in found if order.submitted_at > asked["after"]]
        nested = asked.get("nested") == "true"
        if nested:
            found = [order for order in found if order.parent is None or order.parent not in found]
        return JSONResponse([order.as_json(nested=nested) for order in found[: int(asked.get("limit", "50"))]])

    def submit(self, request: Request) -> Response:
        return JSONResponse(self.exchange.submit(request.state.content).as_json(nested=True))

    def order_by_client_id(self, request: Request) -> Response:
        return _found(self.exchange.orders.get(request.query_params["client_order_id"]))

    def order(self, request: Request) -> Response:
        return _found(self._by_id(request), nested=request.query_params.get("nested") == "true")

    def cancel(self, request: Request) -> Response:
        order = self._by_id(request)
        if order is None:
            return _found(None)
        self.exchange.end(order.client_order_id, "canceled")
        return Response(status_code=204)

    def _by_id(self, request: Request) -> Order | None:
        wanted = request.path_params["order_id"]
        return next((order for order in self.exchange.orders.values() if order.order_id == wanted), None)

    def activities(self, request: Request) -> Response:
        asked = request.query_params
        kinds = request.path_params.get("kind", asked.get("activity_types", "")).split(",")
        found = sorted(self.exchange.activities, key=lambda each: each["id"])
        if asked.get("category") == "non_trade_activity":
            kinds = [each["activity_type"] for each in found if each["activity_type"] != "FILL"]
        found = [each for each in found if each["activity_type"] in kinds and each["id"] > asked.get("page_token", "")]
        after = asked.get("after", "")
        found = [each for each in found if each.get("transaction_time", f"{each.get('date')}T24") > after]
        return JSONResponse(found[: int(asked.get("page_size", _PAGE))])

    def asset(self, request: Request) -> Response:
        symbol = request.path_params["symbol"]
        differs = self.exchange.assets.get(symbol, {})
        if differs.get("missing"):
            return JSONResponse({"code": 40410000, "message": f"asset not found for {symbol}"}, 404)
        usual: dict[str, object] = dict.fromkeys(
            ("tradable", "fractionable", "shortable", "easy_to_borrow", "marginable"), True
        )
        if "/" in symbol:
            usual |= {"class": "crypto", "shortable": False, "easy_to_borrow": False, "marginable": False} | CRYPTO
        name = str(uuid.uuid5(uuid.NAMESPACE_DNS, symbol))
        return JSONResponse(
            {"id": name, "class": "us_equity", "exchange": "NASDAQ", "symbol": symbol, "status": "active"}
            | usual
            | differs
        )

    def clock(self, request: Request) -> Response:
        now = (self.now() + self.ahead).astimezone(NEW_YORK)
        day = now.date() + timedelta(days=1)
        opens = datetime.combine(day, datetime.min.time(), NEW_YORK).replace(hour=9, minute=30)
        return JSONResponse(
            {
                "timestamp": now.isoformat(),
                "is_open": True,
                "next_open": opens.isoformat(),
                "next_close": opens.replace(hour=16, minute=0).isoformat(),
            }
        )

    def calendar(self, request: Request) -> Response:
        day, last = (date.fromisoformat(request.query_params[name]) for name in ("start", "end"))
        found: list[dict[str, Any]] = []
        while day <= last:
            if day.weekday() < 5 and day not in HOLIDAYS:
                close = "13:00" if day in HALF_DAYS else "16:00"
                found.append({"date": str(day), "open": "09:30", "close": close, "session_open": "0400"})
            day += timedelta(days=1)
        return JSONResponse(found)


def _found(order: Order | None, *, nested: bool = False) -> Response:
    if order is None:
        return JSONResponse({"code": 40410000, "message": "order not found for the id"}, 404)
    return JSONResponse(order.as_json(nested=nested))
