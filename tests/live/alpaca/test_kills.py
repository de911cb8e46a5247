"""A session that ends at any moment goes on as if nothing had been: no order is lost, none is sent twice."""

import random
from dataclasses import dataclass, field
from decimal import Decimal

import pytest

from ml_pipeline.live.alpaca.client import RestClient
from ml_pipeline.live.brokers.broker import ENDED, BrokerUnavailable, Fill, OrderRequest, OrderUpdate, exact

# Positions after each decision, of two symbols: through zero both ways, in fractions, and flat.
TARGETS = [(2.5, -3.0), (-2.0, 0.0), (4.25, 5.5), (0.0, -1.0), (-3.0, 2.0), (1.5, -4.0), (-1.0, 0.75), (2.0, -2.0)]
SYMBOLS = ("AAPL", "TSLA")


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the program runs any more."""


@dataclass
class Journal:
    """What is on disk: each change is whole or not at all."""

    orders: dict = field(default_factory=dict)  # (request, status) by id
    fills: dict = field(default_factory=dict)
    cursor: str | None = None

    def position(self, symbol):
        return sum(each.quantity for each in self.fills.values() if each.symbol == symbol)

    def named(self, *statuses):
        return [name for name, (_, status) in self.orders.items() if status in statuses]

    def note(self, updates):
        for each in updates:
            self.orders[each.client_order_id] = (self.orders[each.client_order_id][0], each.status)

    def book(self, events, cursor):
        for each in events:
            if isinstance(each, Fill):
                assert each.fill_id not in self.fills, "a fill was told twice"
                self.fills[each.fill_id] = each
        self.note([each for each in events if isinstance(each, OrderUpdate)])
        self.cursor = cursor


def trade(broker, journal, all_targets, symbols=SYMBOLS):
    """Goes through the targets, from wherever the journal is."""
    for number, targets in enumerate(all_targets):
        if any(name.startswith(f"{number + 1}-") for name in journal.orders):
            continue
        if unsent := journal.named("written"):
            journal.note(broker.orders(unsent))
            if left := journal.named("written"):
                journal.note(broker.submit([journal.orders[name][0] for name in left]))
        collect(broker, journal)
        if not any(name.startswith(f"{number}-") for name in journal.orders):
            requests = [
                OrderRequest(f"{number}-{symbol}", symbol, exact(target) - journal.position(symbol), 0.1)
                for symbol, target in zip(symbols, targets, strict=True)
            ]
            journal.orders |= {each.client_order_id: (each, "written") for each in requests}
            journal.note(broker.submit(requests))
        collect(broker, journal)


def collect(broker, journal):
    while journal.named("accepted", "partly_filled"):
        journal.book(*broker.poll(journal.cursor))
    journal.book(*broker.poll(journal.cursor))


def kill_at_times(monkeypatch, chance, rng):
    """Every request may be the last thing that a process does: before it is sent, or before its answer is read."""
    call, kills = RestClient._call, []

    def may_kill(self, *arguments, **options):
        for moment in ("before", "after"):
            if rng.random() < chance:
                kills.append(moment)
                if moment == "after":
                    call(self, *arguments, **options)
                raise Killed
        return call(self, *arguments, **options)

    monkeypatch.setattr(RestClient, "_call", may_kill)
    return kills


LONG = pytest.mark.long


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "silent", "rounds"),
    [(0, False, 1), *(pytest.param(seed, bool(seed % 2), 3, marks=LONG) for seed in range(1, 5))],
)
def test_killed_at_any_moment_the_account_ends_as_if_nothing_had_been(
    open_broker, server, monkeypatch, *, seed, silent, rounds
):
    server.updates.silent = silent
    journal = Journal()
    first = open_broker(listening=False)
    journal.book(*first.poll(None))
    first.close()
    kills = kill_at_times(monkeypatch, 0.15, random.Random(seed))
    while True:
        try:
            broker = open_broker(listening=False)
        except (Killed, BrokerUnavailable):
            continue
        try:
            trade(broker, journal, TARGETS * rounds)
            break
        except Killed:
            continue
        finally:
            broker.close()
    assert len(kills) >= 5 * rounds, "nothing was tested"
    assert not journal.named("written", "accepted", "partly_filled")
    assert {status for _, status in journal.orders.values()} <= {*ENDED}
    wanted = dict(zip(SYMBOLS, TARGETS[-1], strict=True))
    assert {symbol: float(quantity) for symbol, quantity in server.trading.exchange.positions.items()} == wanted
    assert {symbol: journal.position(symbol) for symbol in SYMBOLS} == wanted
    sent = [name.removesuffix(".0") for name in server.trading.exchange.orders]
    assert {*sent} == {name for name, (request, _) in journal.orders.items() if request.quantity}


# Of two pairs, whose fees are taken from what is bought.
COINS = ("BTC/USD", "ETH/USD")
OF_COINS = [(0.5, 0.0), (0.2, 1.5), (0.0, 0.7), (0.31, 0.0), (0.1, 0.2), (0.0, 0.9), (0.4, 0.0), (0.0, 0.25)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=LONG), pytest.param(2, marks=LONG)])
def test_killed_at_any_moment_the_fills_add_up_to_the_coins_of_the_account(open_broker, server, monkeypatch, seed):
    journal = Journal()
    first = open_broker(listening=False, symbols=COINS)
    journal.book(*first.poll(None))
    first.close()
    kills = kill_at_times(monkeypatch, 0.15, random.Random(seed))
    while True:
        try:
            broker = open_broker(listening=False, symbols=COINS)
        except (Killed, BrokerUnavailable):
            continue
        try:
            trade(broker, journal, OF_COINS, COINS)
            break
        except Killed:
            continue
        finally:
            broker.close()
    assert len(kills) >= 5, "nothing was tested"
    assert {symbol: n for symbol in COINS if (n := journal.position(symbol))} == server.trading.exchange.positions
    assert server.trading.exchange.positions == {"ETH/USD": Decimal("0.249375")}
    paid = sum(float(each.quantity) * each.price + each.costs for each in journal.fills.values())
    assert float(100_000 - server.trading.exchange.cash) == pytest.approx(paid, abs=1e-4)
