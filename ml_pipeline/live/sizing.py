"""Turn the decision of a policy into orders, with the arithmetic of the accounting kernel.

The kernel counts in floats; `QuantityRules.quantity` makes decimals of its quantities.

A symbols. A broker that sizes at the fill gets targets; others get quantities, sized at the close of the decision.
"""

from decimal import Decimal

from ml_pipeline.live.brokers.broker import OrderRequest, QuantityRules, exact
from ml_pipeline.live.decisions.policy_runner import Decision
from ml_pipeline.live.orders import client_order_id
from ml_pipeline.live.portfolio import AccountBook
from ml_pipeline.trading.accounts.execution import PLAIN
from ml_pipeline.trading.accounts.orders import PLAIN_OPS, SMALLEST_ORDER, Terms, order_steps

_STEPS = order_steps(PLAIN_OPS)


def size_orders(
    decision: Decision,
    *,
    books: AccountBook,
    terms: Terms,
    session_id: str,
    sizes_at_fill: bool,
    quantities: QuantityRules | None = None,
) -> list[OrderRequest]:
    """The orders of a decision at the closes of `books`.

    sizes_at_fill: of the broker. If True, every symbol that may trade gets an order, in the order of the symbols, with
    an estimated quantity. Otherwise quantities are affordable at the closes and allowed by `quantities`, sales come
    before purchases, and orders of 0 are left out.
    """
    used = terms.closing() if decision.closing else terms
    sized, filled = _sized(decision, books, used)
    requests: list[OrderRequest] = []
    targets = _targets_to_tell(decision, books, used) if sizes_at_fill else None
    positions = {} if sizes_at_fill else books.positions
    rules, closes, least = quantities or QuantityRules(), books.closes, SMALLEST_ORDER * books.equity
    for i, symbol in enumerate(books.symbols):
        if not decision.may_trade[i]:
            continue
        if sizes_at_fill:
            quantity = exact(sized[i])
        else:
            held, wanted = positions.get(symbol, Decimal(0)), filled[i]
            if decision.weights[i] == 0.0 and not used.relative and abs(float(held)) * closes[i] <= least:
                wanted = -float(held)  # the kernel drops what is so small, but at a broker it would stay for ever
            quantity = _sendable(rules, symbol, wanted, held=held, close=closes[i], closing=decision.closing)
            if not quantity:
                continue
        requests.append(
            OrderRequest(
                client_order_id(session_id, decision.time, symbol),
                symbol,
                quantity,
                0.0 if decision.closing else float(decision.weights[i]),
                _limit_price(float(quantity), closes[i], used),
                bool(decision.closing),
                None if requests else targets,
            )
        )
    return requests if sizes_at_fill else sorted(requests, key=lambda request: request.quantity > 0)


def _sized(decision: Decision, books: AccountBook, terms: Terms) -> tuple[list[float], list[float]]:
    """(signed quantities that reach the targets, the part of them that cash can pay) at the closes, each (A,)."""
    closes, holdings = books.closes, books.holdings
    may_trade = [bool(may and close > 0.0) for may, close in zip(decision.may_trade, closes, strict=True)]
    orders, filled = [0.0] * len(closes), [0.0] * len(closes)
    weights = [0.0] * len(closes) if decision.closing else list(decision.weights)
    equity = PLAIN.size_orders(weights, may_trade, books.cash, holdings, closes, terms, orders)
    PLAIN.fill_orders(orders, books.cash, equity, closes, books.half_spreads, terms, filled)
    return orders, filled


def _sendable(
    rules: QuantityRules, symbol: str, wanted: float, *, held: Decimal, close: float, closing: bool
) -> Decimal:
    """The quantity that the broker accepts; 0 if it would be too small."""
    if closing:
        return Decimal(0) if rules.is_flat(symbol, held) else -held
    quantity = rules.quantity(symbol, wanted, held) if wanted else Decimal(0)
    is_sent = quantity == -held or abs(float(quantity)) * close >= rules.smallest_order
    return quantity if is_sent else Decimal(0)


def _limit_price(quantity: float, close: float, terms: Terms) -> float | None:
    if terms.limit < 0.0 or not quantity:
        return None
    return float(close * (1.0 - terms.limit if quantity > 0.0 else 1.0 + terms.limit))


def _targets_to_tell(decision: Decision, books: AccountBook, terms: Terms) -> tuple[float, ...] | None:
    """All weights, if symbols without an order count in the sum that `max_gross` scales; otherwise None."""
    untold = any(weight and not may for weight, may in zip(decision.weights, decision.may_trade, strict=True))
    if decision.closing or not untold:
        return None
    if not terms.relative:  # only relative targets depend on the price of the fill
        closes, holdings = books.closes, books.holdings
        wanted = (
            _STEPS.target(w, n, p, 1.0, terms) for w, n, p in zip(decision.weights, holdings, closes, strict=True)
        )
        if sum(map(abs, wanted)) <= terms.max_gross:
            return None
    return tuple(map(float, decision.weights))
