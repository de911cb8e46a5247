"""A broker of your own: it fills each order at the close of the next bar.

PYTHONPATH=examples ml-pipeline paper-trade --model MODEL --broker own_broker:NextCloseBroker --follow bars.csv

`BrokerContract` of `ml_pipeline.testing` checks that it keeps the rules of docs/reference/paper-trading.md.
"""

from decimal import Decimal

import numpy as np

from ml_pipeline.live import ENDED, AccountState, Fill, OrderUpdate, QuantityRules

BOOK = {}  # stands for the account on the broker's machine


class NextCloseBroker:
    """An account of 10,000 in cash that fills whole units at the close, at no cost."""

    name = "next-close"
    sizes_at_fill = False
    real_money = False
    quantities = QuantityRules(usual_step=1.0)

    def __init__(self, symbols, rules, folder, book=BOOK):
        self.symbols, self.book = tuple(symbols), book
        if not book:
            book.update(cash=10_000.0, held={}, closes={}, orders={}, events=[], now=np.datetime64("2024-01-01", "ns"))

    def account(self):
        book = self.book
        worth = sum(float(quantity) * book["closes"][symbol] for symbol, quantity in book["held"].items())
        return AccountState(book["cash"], book["cash"] + worth, max(book["cash"], 0.0), dict(book["held"]))

    def orders(self, client_order_ids=None):
        updates = [update for _, update in self.book["orders"].values()]
        if client_order_ids is None:
            return [update for update in updates if update.status not in ENDED]
        return [update for update in updates if update.client_order_id in client_order_ids]

    def submit(self, orders):
        for order in orders:
            if order.client_order_id not in self.book["orders"]:  # accept an order once
                refusal = "" if order.symbol in self.symbols else f"{order.symbol} is not traded here"
                self._note(order, "rejected" if refusal else "accepted", reason=refusal)  # answer a rejection
        return [self.book["orders"][order.client_order_id][1] for order in orders]

    def cancel(self, client_order_ids):
        for update in self.orders():
            if update.client_order_id in client_order_ids:
                self._note(self.book["orders"][update.client_order_id][0], "canceled")

    def market_closed_bar(self, bars):  # a real broker ignores this: the market is its own
        book = self.book
        if bars.closed_at <= book["now"]:
            return  # a bar that was seen before changes nothing
        traded = {name: close for name, close in zip(self.symbols, bars.close.tolist(), strict=True) if close > 0}
        book["closes"].update(traded)
        book["now"] = bars.closed_at
        for update in self.orders():
            order, price = book["orders"][update.client_order_id][0], traded.get(update.symbol)
            if price is None or not self._within_limit(order, price):
                continue  # no bar of this symbol, or a worse price than the limit
            book["cash"] -= float(order.quantity) * price  # quantities are decimals, money is a float
            book["held"][order.symbol] = book["held"].get(order.symbol, Decimal(0)) + order.quantity
            fill_id = f"fill of {order.client_order_id}"  # a fill keeps its ID
            book["events"].append(
                Fill(fill_id, order.client_order_id, order.symbol, order.quantity, price, 0.0, book["now"])
            )
            self._note(order, "filled", order.quantity)

    def poll(self, cursor):
        events = self.book["events"][int(cursor or 0) :]
        return events, str(int(cursor or 0) + len(events)) if events else cursor

    def now(self):
        return self.book["now"]

    def sessions(self, first, last):
        return []  # a market that never closes

    def close(self):
        pass

    def _within_limit(self, order, price):
        if order.limit_price is None:
            return True
        return price <= order.limit_price if order.quantity > 0 else price >= order.limit_price

    def _note(self, order, status, filled=Decimal(0), reason=""):
        update = OrderUpdate(
            order.client_order_id, order.symbol, status, order.quantity, filled, self.book["now"], reason
        )
        self.book["orders"][order.client_order_id] = order, update
        self.book["events"].append(update)
