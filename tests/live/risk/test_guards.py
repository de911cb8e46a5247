"""All guards together: no order that breaks a limit leaves, whatever the book; a guard that fails lets nothing pass."""

import json
import math
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.broker import OrderRequest
from ml_pipeline.live.risk.config import GuardConfig
from ml_pipeline.live.risk.guard import TRADE, Guard
from ml_pipeline.live.risk.guards import Guards
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.data import market_from_arrays
from tests.live.risk.guarded_accounts import MINUTE, NOON, Books, bars, guards_of, order, seconds
from tests.live.risk.test_decision_guards import Decision

SYMBOLS = ("A", "B", "C", "D")
ALL_LIMITS = {
    "guard_position": 0.5,
    "guard_position_money": 4_000.0,
    "guard_gross": 1.0,
    "guard_order": 0.3,
    "guard_order_money": 2_500.0,
    "guard_orders_per_minute": 3,
}
prices = st.floats(0.01, 1_000.0)
fractions = st.floats(-2.0, 2.0)
odd_numbers = st.sampled_from([0.0, math.nan, math.inf, -math.inf])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Books, list[float], list[OrderRequest]]:
    """A book, closes, and the orders of one decision: some of them odd, some several for a symbol."""
    equity = draw(st.floats(-1_000.0, 100_000.0))
    closes = [draw(prices) for _ in SYMBOLS]
    scale = max(abs(equity), 1.0)
    holdings = {symbol: draw(fractions) * scale / close for symbol, close in zip(SYMBOLS, closes, strict=True)}
    orders = []
    for i in range(draw(st.integers(0, 7))):
        symbol = draw(st.sampled_from(SYMBOLS))
        close = closes[SYMBOLS.index(symbol)]
        whole = st.sampled_from([0.0, -1.0, -0.5, -2.0, 0.1]).map(lambda part, s=symbol: part * holdings[s])
        quantity = draw(st.one_of(fractions.map(lambda part, p=close: part * scale / p), whole, odd_numbers))
        weight = draw(st.one_of(fractions, odd_numbers))
        closing = draw(st.booleans())
        orders.append(OrderRequest(f"{i}", symbol, quantity, 0.0 if closing else weight, closing=closing))
    return Books(equity, holdings), closes, orders


def is_at_most(value: float, limit: float) -> bool:
    return value <= limit + 1e-6 * max(1.0, abs(limit))


@given(cases())
def test_no_order_that_breaks_a_limit_leaves(case):
    books, closes, orders = case
    guards = guards_of(*SYMBOLS, **ALL_LIMITS)
    guards.on_bars(bars(*closes), NOON + seconds(60), None)
    sent, refused = guards.on_orders(orders, books, closes, NOON + seconds(60))

    assert len(sent) + len(refused) == len(orders)
    assert sent == [each for each in orders if each in sent]  # in their order
    price = dict(zip(SYMBOLS, closes, strict=True))
    before = {symbol: books.holdings[symbol] * price[symbol] for symbol in SYMBOLS}
    smaller, opened = [], []
    for each in sent:
        assert math.isfinite(each.quantity)
        assert math.isfinite(each.weight)
        assert each.symbol in SYMBOLS
        worth, held = each.quantity * price[each.symbol], before[each.symbol]
        reduces = worth * held < 0 and is_at_most(abs(worth), abs(held))
        (smaller if reduces or each.quantity == 0.0 else opened).append(each)
    # Each order by itself.
    for each in opened:
        worth = abs(each.quantity * price[each.symbol])
        assert is_at_most(worth, 0.3 * books.equity)
        assert is_at_most(worth, 2_500.0)
    for each in sent:
        if each.quantity == 0.0 and not each.closing:
            target = abs(each.weight * books.equity)
            held = abs(before[each.symbol]) + sum(
                abs(o.quantity * price[o.symbol]) for o in sent if o.symbol == each.symbol
            )
            assert is_at_most(target, max(held, min(0.5 * books.equity, 4_000.0)))
    # All of them together: where each symbol ends, and what they add up to.
    ends = dict(before)
    for each in sent:
        ends[each.symbol] += each.quantity * price[each.symbol]
    for symbol in {each.symbol for each in opened}:
        most = min(0.5 * books.equity, 4_000.0)
        assert is_at_most(abs(ends[symbol]), max(most, abs(before[symbol]) if ends[symbol] * before[symbol] > 0 else 0))
    if opened:
        assert is_at_most(sum(map(abs, ends.values())), books.equity)
    assert len(opened) <= 3
    # What makes a position smaller was not refused: alone of its symbol, and with numbers.
    for each in orders:
        held = books.holdings[each.symbol]
        alone = sum(other.symbol == each.symbol for other in orders) == 1
        reduces = each.quantity * held < 0 and abs(each.quantity) <= abs(held)
        if alone and reduces and math.isfinite(each.weight):
            assert each in sent


@given(cases())
def test_without_limits_every_possible_order_leaves(case):
    books, closes, orders = case
    guards = guards_of(*SYMBOLS)
    guards.on_bars(bars(*closes), NOON + seconds(60), None)
    sent, _ = guards.on_orders(orders, books, closes, NOON + seconds(60))
    assert sent == [each for each in orders if math.isfinite(each.quantity) and math.isfinite(each.weight)]


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 4)), max_size=20))
def test_no_minute_holds_more_orders_than_allowed(decisions):
    guards, now, sent = guards_of("A", guard_orders_per_minute=5), NOON, deque()
    for wait_s, n in decisions:
        now = now + seconds(wait_s)
        guards.on_bars(bars(100.0, time=now - seconds(60)), now, None)
        orders = [order("A", 1.0 + i) for i in range(n)]
        sent.extend(now for _ in guards.on_orders(orders, Books(1e9), [100.0], now)[0])
        assert sum(time > now - seconds(60) for time in sent) <= 5


def test_without_settings_guards_say_nothing_of_recorded_bars():
    generator = np.random.default_rng(3)
    close = 100.0 * np.exp(0.2 * generator.standard_normal((60, 2)).cumsum(0))  # jumps of 20 %
    close[generator.random((60, 2)) < 0.3] = math.nan
    close[:9, 1] = math.nan  # listed later
    times = NOON + np.arange(60) * np.timedelta64(60, "s")
    spread = np.where(generator.random((60, 2)) < 0.5, math.nan, 0.01)
    market = market_from_arrays(("A", "B"), times, close, half_spread=spread)
    guards = Guards(GuardConfig(), market.symbols, timing=market.timing)
    for t, recorded in enumerate(bar_sets_of(market)):
        assert guards.sift(recorded) is recorded
        closes, weights = np.nan_to_num(market.close[t]), generator.uniform(-3, 3, 2).tolist()
        books = Books(holdings=generator.uniform(-99, 99, 2))
        verdicts = [
            guards.on_bars(recorded, recorded.closed_at, None),
            guards.on_account(books, recorded.time),
            guards.on_decision(Decision(weights=weights)),
        ]
        assert verdicts == [TRADE] * 3
        listed = [i for i in range(2) if closes[i]]
        orders = [order(market.symbols[i], weights[i] * 50, weights[i]) for i in listed]
        assert guards.on_orders(orders, books, closes.tolist(), recorded.closed_at) == (orders, [])


class Failing(Guard):
    name = "failing"

    def __init__(self, method: str) -> None:
        def fail(*args: object) -> None:
            raise ZeroDivisionError("division by\nzero")

        setattr(self, method, fail)


def with_a_failing_guard(method: str) -> Guards:
    guards = guards_of("A")
    guards._guards.insert(0, Failing(method))
    return guards


@pytest.mark.parametrize("method", ["on_bars", "on_account", "on_decision", "before_orders", "on_order", "note_sent"])
def test_a_guard_that_fails_lets_no_order_through_and_says_so(method):
    guards, now = with_a_failing_guard(method), NOON + seconds(60)
    verdicts = [
        guards.on_bars(bars(100.0), now, None),
        guards.on_account(Books(), NOON),
        guards.on_decision(Decision()),
    ]
    sent, refused = guards.on_orders([order("A", 1.0)], Books(), [100.0], now)
    assert sent == []
    told = [refusal for verdict in verdicts for refusal in verdict.refusals] + refused
    failing = [refusal.sentence for refusal in told if refusal.guard == "failing"]
    assert set(failing) == {"Nothing is ordered because the guard failing failed: ZeroDivisionError: division by zero"}


@pytest.mark.parametrize("method", ["on_bars", "on_account", "on_decision", "on_order"])
def test_a_guard_that_fails_does_not_keep_positions_from_being_closed(method):
    guards, now = with_a_failing_guard(method), NOON + seconds(60)
    guards.on_bars(bars(100.0), now, None)
    closing = order("A", -5.0, closing=True)
    assert guards.on_orders([closing], Books(holdings={"A": 5.0}), [100.0], now) == ([closing], [])


def test_books_that_cannot_be_read_let_no_order_through():
    guards = guards_of("A")
    sent, refused = guards.on_orders([order("A", 1.0)], Books(holdings=[1.0, 2.0]), [100.0], NOON)
    assert sent == []
    assert "the guard the account failed" in refused[0].sentence


def test_where_trading_is_held_no_order_leaves_but_those_that_close():
    guards, now = guards_of("A"), NOON + seconds(600)
    assert guards.on_bars(bars(100.0), now, None).action == "hold"  # stale
    closing, books = order("A", -5.0, closing=True), Books(holdings={"A": 5.0})
    sent, refused = guards.on_orders([order("A", 1.0), order("A", -1.0), closing], books, [100.0], now)
    assert sent == [closing]
    assert [(each.guard, each.symbol) for each in refused] == [("guard_stale_s", "A")] * 2


def test_a_hold_lasts_for_one_bar():
    guards = guards_of("A")
    guards.on_bars(bars(100.0), NOON + seconds(600), None)
    guards.on_bars(bars(100.0), NOON + seconds(60), None)
    assert guards.on_orders([order("A", 1.0)], Books(), [100.0], NOON + seconds(60))[0] == [order("A", 1.0)]


def test_the_strongest_action_holds_and_every_refusal_is_told():
    guards = guards_of("A", guard_features="flatten", guard_drawdown=0.1, guard_on_loss="hold")
    far = (("rsi_14", 99.0, 0.0, 10.0),)
    verdict = guards.on_decision(Decision(action=math.nan, out_of_range=far))
    assert verdict.action == "flatten"
    assert [refusal.guard for refusal in verdict.refusals] == ["impossible_action", "guard_features"]


def test_positions_may_stand_in_the_order_of_the_symbols():
    guards = guards_of("A", "B", guard_position=0.5)
    books = Books(holdings=[0.0, 40.0])
    assert guards.on_orders([order("B", 11.0)], books, np.array([100.0, 100.0]), NOON)[0] == []
    assert len(guards.on_orders([order("B", 10.0)], books, {"A": 100.0, "B": 100.0}, NOON)[0]) == 1


def test_the_state_is_json_and_goes_on_with_other_settings():
    settings = {**ALL_LIMITS, "guard_drawdown": 0.5, "guard_price_jump": 0.1, "guard_halt_bars": 3}
    guards = guards_of(*SYMBOLS, **settings)
    assert json.loads(json.dumps(guards.state(), allow_nan=False)) == guards.state()  # before the first bar
    guards.on_bars(bars(1.0, 2.0, math.nan, 4.0), NOON + seconds(60), None)
    guards.on_account(Books(), NOON)
    guards.on_orders([order("A", 1.0)], Books(), [1.0, 2.0, math.nan, 4.0], NOON + seconds(60))
    state = json.loads(json.dumps(guards.state(), allow_nan=False))
    again = guards_of(*SYMBOLS, **settings)
    again.set_state(state)
    assert again.state() == guards.state()
    Guards(GuardConfig(), ("A", "E"), timing=MINUTE).set_state(state)  # fewer guards, other symbols


def test_a_state_that_is_none_is_refused():
    with pytest.raises(UserError, match="guard_losses"):
        guards_of("A").set_state({"guard_losses": {"day": 3}})
