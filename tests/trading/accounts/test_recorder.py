import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.execution import PLAIN
from ml_pipeline.trading.accounts.ledger import LedgerRecorder, LedgerRow, symbols_of
from ml_pipeline.trading.envs.actions import ActionReader
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv

DAYS = np.datetime64("2024-01-01", "ns") + np.arange(9) * np.timedelta64(1, "D")
MODES = ["discrete", "target_weights", "buy_hold_sell", "trade"]


def _row(day, equity=1.0, costs=0.0, **changes):
    return LedgerRow(DAYS[day], equity, equity, costs, [2.0], [0.0], [0.0], [2.0])._replace(**changes)


def _kernel_rows(market, rules, actions):
    """The rows of an account that the kernel alone steps bar by bar, all orders filled or not."""
    prices, spreads, fillable = market.fill_tables(rules.fill_at)
    reader, terms = ActionReader(rules, market.symbols), rules.terms(market.periods_per_year)
    cash, zeros = rules.initial_cash, [0.0] * len(market.symbols)
    holdings, orders, filled = zeros.copy(), zeros.copy(), zeros.copy()
    first = market.close[0].tolist()
    yield LedgerRow(market.times[0], cash, cash, 0.0, first, holdings, filled, first, spreads[0].tolist())
    for bar, action in enumerate(actions[: market.n_bars - 1]):
        one_choice = len(zeros) == 1 and rules.action_mode in {"discrete", "buy_hold_sell"}
        weights, trades = reader.read(int(action[0]) if one_choice else action, fillable[bar].tolist())
        closes, paid, spread = market.close[bar + 1].tolist(), prices[bar].tolist(), spreads[bar].tolist()
        cash, costs, equity, margin_called = PLAIN.step(
            weights, trades, cash, holdings, paid, spread, closes, terms, orders, filled
        )
        yield LedgerRow(market.times[bar + 1], equity, cash, costs, closes, holdings, filled, paid, spread)
        if margin_called or equity <= 0.01 * rules.initial_cash:
            return


@given(
    seed=st.integers(0, 2**32 - 1),
    n_assets=st.integers(1, 4),
    mode=st.sampled_from(MODES),
    stop=st.integers(0, 60),
)
def test_the_ledger_has_the_numbers_of_the_kernel_to_the_last_bit(random_case, *, seed, n_assets, mode, stop):
    market, rules, actions = random_case(seed, n_assets, mode, 0.03)
    whole = LedgerRecorder(market.symbols, quotes=True)
    resumed = LedgerRecorder(market.symbols, quotes=True)
    expected, costs_paid = [], 0.0
    for i, row in enumerate(_kernel_rows(market, rules, actions)):
        costs_paid += row.costs
        expected.append([row.equity, row.cash, costs_paid, *map(list, row[4:9])])  # the kernel changes its lists
        whole.append(row)
        if i == stop:
            resumed = LedgerRecorder.from_ledger(resumed.ledger())
        resumed.append(row)
    ledger = whole.ledger()
    assert whole.costs_paid == costs_paid
    for k, name in enumerate(("equity", "cash", "costs_paid")):
        assert ledger[name].tolist() == [row[k] for row in expected]
    for a, symbol in enumerate(market.symbols):
        for k, kind in enumerate(("close", "position", "filled", "fill_price", "half_spread"), start=3):
            column = np.array([row[k][a] for row in expected])
            if kind in {"close", "fill_price"}:
                column[column == 0] = np.nan  # not listed yet
            np.testing.assert_array_equal(ledger[f"{kind}_{symbol}"], column)
    np.testing.assert_array_equal(ledger["time"], market.times[: len(expected)])
    assert _bytes(resumed.ledger()) == _bytes(ledger)


@pytest.mark.parametrize("mode", MODES)
def test_an_environment_records_what_the_kernel_does(random_case, mode):
    for seed in range(6):
        market, rules, actions = random_case(seed, 1 + seed % 3, mode, 0.03)
        quotes = market.half_spread is not None
        recorder = LedgerRecorder(market.symbols, quotes=quotes)
        for row in _kernel_rows(market, rules, actions):
            recorder.append(row if quotes else row._replace(half_spreads=None))
        env = StatefulTradingEnv(market, rules)
        env.reset(seed=0)
        for action in actions[: len(recorder.ledger()["time"]) - 1]:
            env.step(action[0] if env.action_space.shape == () else action)
        assert _bytes(env.ledger()) == _bytes(recorder.ledger())


def _bytes(ledger):
    return {name: column.tobytes() for name, column in ledger.items()}


def test_rows_by_hand():
    recorder = LedgerRecorder(["A", "B"], quotes=True)
    recorder.append(LedgerRow(DAYS[0], 10.0, 10.0, 0.0, [2.0, 0.0], [0.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.1, 0.0]))
    recorder.append(LedgerRow(DAYS[1], 9.5, 5.0, 0.5, [2.25, 8.0], [2.0, 0.0], [2.0, 0.0], [2.25, 0.0], [0.1, 0.2]))
    ledger = recorder.ledger()
    per_symbol = [
        f"{kind}_{symbol}" for symbol in "AB" for kind in ("close", "position", "filled", "fill_price", "half_spread")
    ]
    assert list(ledger) == ["time", "equity", "cash", "costs_paid", *per_symbol]
    assert symbols_of(ledger) == recorder.symbols == ("A", "B")
    assert ledger["costs_paid"].tolist() == [0, 0.5]
    assert ledger["filled_A"].tolist() == [0, 2]
    np.testing.assert_array_equal(ledger["close_B"], [np.nan, 8])  # a price of 0 is none
    np.testing.assert_array_equal(ledger["fill_price_B"], [np.nan, np.nan])
    assert ledger["half_spread_B"].tolist() == [0, 0.2]


def test_a_ledger_is_readable_after_every_row_and_keeps_its_rows():
    recorder, lengths = LedgerRecorder(["A"]), []
    assert recorder.ledger()["equity"].shape == (0,)
    ledgers = []
    for day in range(3):
        recorder.append(_row(day, equity=1.0 + day))
        ledgers.append(recorder.ledger())
        lengths.append(len(recorder.ledger()["time"]))
    assert lengths == [1, 2, 3]
    assert [ledger["equity"].tolist() for ledger in ledgers] == [[1], [1, 2], [1, 2, 3]]
    ledgers[-1]["equity"][:] = 0
    assert recorder.ledger()["equity"].tolist() == [1, 2, 3]


def test_a_list_that_changes_afterwards_does_not_change_the_ledger():
    recorder, positions = LedgerRecorder(["A"]), [3.0]
    recorder.append(_row(0, positions=positions))
    positions[0] = 4.0
    assert recorder.ledger()["position_A"].tolist() == [3]


def test_a_ledger_read_back_from_a_file_is_continued_with_the_same_bits():
    whole, first = LedgerRecorder(["A"]), LedgerRecorder(["A"])
    for day, costs in enumerate([0.0, 0.1, 0.2]):
        whole.append(_row(day, costs=costs))
        first.append(_row(day, costs=costs))
    text = json.dumps({name: column.tolist() for name, column in first.ledger().items()})
    read = {name: np.array(column) for name, column in json.loads(text).items()}
    read["time"] = read["time"].astype("datetime64[ns]")
    again = LedgerRecorder.from_ledger(read)
    for recorder in (whole, again):
        recorder.append(_row(3, costs=0.3))
    assert again.costs_paid == whole.costs_paid == 0.1 + 0.2 + 0.3
    assert _bytes(again.ledger()) == _bytes(whole.ledger())
    assert _bytes(pickle.loads(pickle.dumps(again)).ledger()) == _bytes(whole.ledger())


def test_an_empty_ledger_is_continued():
    recorder = LedgerRecorder.from_ledger(LedgerRecorder(["A"]).ledger())
    recorder.append(_row(0, costs=0.5))
    assert recorder.ledger()["costs_paid"].tolist() == [0.5]


@pytest.mark.parametrize("day", [1, 0])
def test_a_bar_that_is_not_after_the_last_is_refused_and_changes_nothing(day):
    recorder = LedgerRecorder(["A"])
    recorder.append(_row(1))
    before = _bytes(recorder.ledger())
    with pytest.raises(UserError, match=r"times increase, but 2024-01-0.* does not come after 2024-01-02"):
        recorder.append(_row(day, costs=1.0))
    assert (recorder.costs_paid, _bytes(recorder.ledger())) == (0.0, before)


@pytest.mark.parametrize("name", ["time", "cash", "filled_A"])
def test_a_table_that_is_no_ledger_is_refused(name):
    recorder = LedgerRecorder(["A"])
    recorder.append(_row(0))
    ledger = recorder.ledger()
    del ledger[name]
    with pytest.raises(UserError, match=f"This is not a ledger: column {name} is missing"):
        LedgerRecorder.from_ledger(ledger)
