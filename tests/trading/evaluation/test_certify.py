"""Needs vectorbt and backtesting.py (extra certify): the accounts are theirs, and nothing of the kernel."""

import importlib.util
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.accounts.trades import costs_of, trades_of
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation import metrics
from ml_pipeline.trading.evaluation.baselines import run_policy
from ml_pipeline.trading.evaluation.certify import TOLERANCE, largest_difference

HAS_VECTORBT = importlib.util.find_spec("vectorbt") is not None
needs_backtesting = pytest.mark.skipif(
    importlib.util.find_spec("backtesting") is None, reason="backtesting.py is not installed"
)


def needs_vectorbt(test):
    """Skip the test without vectorbt, and give it time to compile: whichever runs first waits for some 30 s of work.

    If the time runs out during that, numba swallows the failure, and reports "no compiled object yet" in its place.
    """
    return pytest.mark.skipif(not HAS_VECTORBT, reason="vectorbt is not installed")(pytest.mark.timeout(900)(test))


def _run(market, rules, actions):
    env = StatefulTradingEnv(market, rules)
    one_choice = len(market.symbols) == 1 and rules.action_mode in {"discrete", "buy_hold_sell"}
    waiting = iter(actions)
    return run_policy(env, lambda _: int(next(waiting)[0]) if one_choice else next(waiting))


@pytest.mark.long
@needs_vectorbt
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["discrete", "target_weights", "buy_hold_sell", "trade"])
def test_vectorbt_says_the_same_of_random_orders_with_every_cost(random_case, mode):
    n_trades = 0
    for seed in range(30):
        market, rules, actions = random_case(seed, 1 + seed % 4, mode, 0.03, within=seed % 2 > 0)
        ledger = _run(market, rules, actions)
        n_trades += sum(np.count_nonzero(column) for name, column in ledger.items() if name.startswith("filled"))
        assert largest_difference(ledger, rules, market.periods_per_year) < TOLERANCE, (seed, rules)
    assert n_trades > 300


@pytest.mark.long
@needs_vectorbt
@pytest.mark.filterwarnings("ignore")
def test_a_ledger_that_is_wrong_is_found(random_case):
    market, _, actions = random_case(1, 2, "target_weights", 0.03)
    rules = TradingRules("target_weights")
    ledger = _run(market, rules, actions)
    for name in ("filled_A", "fill_price_A", "equity"):
        wrong = ledger[name].copy()
        row = int(np.flatnonzero(ledger["filled_A"])[0])
        wrong[row] *= 1 + 1e-5
        assert largest_difference({**ledger, name: wrong}, rules, market.periods_per_year) > TOLERANCE
    assert largest_difference(ledger, TradingRules("target_weights", fee_bps=6), market.periods_per_year) > TOLERANCE


@pytest.mark.slow
@needs_backtesting
@pytest.mark.filterwarnings("ignore")
def test_backtesting_py_says_the_same_of_whole_lots(tiny_market):
    """One asset, long or flat, filled at the next open, for a commission."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import backtesting
        import pandas as pd

    for seed in range(5):
        generator = np.random.default_rng(seed)
        close = 100 * np.exp(generator.normal(0, 0.02, 80).cumsum())
        open_ = close * np.exp(generator.normal(0, 0.01, 80))
        rules = TradingRules(allow_short=False, lot_size=1, fee_bps=20, max_position=0.9, initial_cash=100_000)
        ledger = _run(tiny_market(close, open_), rules, generator.integers(0, 2, (80, 1)))
        filled = ledger["filled_A"]

        class Replay(backtesting.Strategy):
            def init(self):
                pass

            def next(self, filled=filled):
                row = len(self.data)  # filled at the open of this row
                if row < len(filled) and filled[row] > 0:
                    self.buy(size=filled[row])
                elif row < len(filled) and filled[row] < 0:
                    self.position.close()

        high, low = np.maximum(open_, close), np.minimum(open_, close)
        frame = pd.DataFrame(
            {"Open": open_, "High": high, "Low": low, "Close": close}, index=pd.to_datetime(ledger["time"])
        )
        frame = pd.concat([frame.iloc[:1], frame]).set_axis(pd.date_range("2000-01-01", periods=81))
        filled = np.concatenate([[0.0], filled])
        Replay.next.__defaults__ = (filled,)
        stats = backtesting.Backtest(frame, Replay, cash=100_000, commission=rules.fee_bps / 1e4).run()
        theirs = stats["_equity_curve"]["Equity"].to_numpy()[1:]
        assert np.count_nonzero(filled) > 10
        np.testing.assert_allclose(ledger["equity"], theirs, rtol=1e-9)


@pytest.mark.slow
@needs_backtesting
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", ["long", "short"])
def test_backtesting_py_stops_and_takes_profit_where_the_account_does(tiny_market, side):
    """It knows no fractions: it is given the prices of stop and target that belong to the open of the entry. It also
    assumes the stop where a bar reaches both, and also stops in the bar of the entry."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import backtesting
        import pandas as pd

    choice, sign = (2, 1) if side == "long" else (0, -1)
    n_exits = 0
    for seed in range(6):
        generator = np.random.default_rng(seed)
        close = 100 * np.exp(generator.normal(0, 0.02, 120).cumsum())
        open_ = np.append(close[0], close[:-1]) * np.exp(generator.normal(0, 0.004, 120))
        high, low = (
            np.exp(s * generator.exponential(0.01, 120)) * f(open_, close)
            for s, f in ((1, np.maximum), (-1, np.minimum))
        )
        rules = TradingRules(
            lot_size=1,
            fee_bps=0 if side == "short" else 20,
            max_position=0.9,
            initial_cash=100_000,
            stop_loss=0.02,
            take_profit=0.03,
        )
        market = tiny_market(close, open_, high=high, low=low)
        ledger = _run(market, rules, np.where(generator.random((120, 1)) < 0.6, choice, 1))
        filled, exited = ledger["filled_A"] * sign, ledger["exited_A"]
        n_exits += np.count_nonzero(exited)

        class Replay(backtesting.Strategy):
            def init(self):
                pass

            def next(self, filled=filled, open_=open_):
                row = len(self.data)  # filled at the open of this row
                if row < len(filled) and filled[row] > 0:
                    levels = {"sl": open_[row] * (1 - 0.02 * sign), "tp": open_[row] * (1 + 0.03 * sign)}
                    (self.buy if sign > 0 else self.sell)(size=filled[row], **levels)
                elif row < len(filled) and filled[row] < 0:
                    self.position.close()

        frame = pd.DataFrame({"Open": open_, "High": high, "Low": low, "Close": close})
        frame = pd.concat([frame.iloc[:1], frame]).set_axis(pd.date_range("2000-01-01", periods=121))
        Replay.next.__defaults__ = (np.append(0.0, filled), np.append(0.0, open_))
        stats = backtesting.Backtest(frame, Replay, cash=100_000, commission=rules.fee_bps / 1e4).run()
        theirs = stats["_equity_curve"]["Equity"].to_numpy()[1:]
        np.testing.assert_allclose(ledger["equity"], theirs, rtol=1e-9)
    assert n_exits > 30


@pytest.mark.long
@needs_vectorbt
@pytest.mark.filterwarnings("ignore")
def test_vectorbt_stops_and_takes_profit_where_the_account_does(tiny_market):
    """By its own `sl_stop` and `tp_stop`. It differs in two ways, which the orders here avoid: it looks for no stop in
    the bar of an entry, so entries are at the close, and it fills one order per bar, so none follows an exit at the
    same close. It books an order at the close in that bar's row, and the ledger in the next one."""
    import vectorbt

    n_exits, n_bars = 0, 150
    for seed in range(6):
        generator = np.random.default_rng(seed)
        close = 100 * np.exp(generator.normal(0, 0.02, n_bars).cumsum())
        open_ = np.append(close[0], close[:-1]) * np.exp(generator.normal(0, 0.01, n_bars))
        high = np.maximum(open_, close) * np.exp(generator.exponential(0.01, n_bars))
        low = np.minimum(open_, close) * np.exp(-generator.exponential(0.01, n_bars))
        rules = TradingRules(fee_bps=20, fill_at="close", stop_loss=0.03, take_profit=0.04, allow_short=False)
        env = StatefulTradingEnv(tiny_market(close, open_, high=high, low=low), rules)
        env.reset(seed=0)
        wanted, long, left = generator.random(n_bars) < 0.5, False, False
        entries, exits = np.zeros((2, n_bars), dtype=bool)
        for t in range(n_bars - 1):
            choice = long if left else bool(wanted[t])
            entries[t], exits[t] = choice and not long, long and not choice
            left = env.step(int(choice))[0][-1] == 0 and choice
            long = choice and not left
        ledger = env.ledger()
        n_exits += np.count_nonzero(ledger["exited_A"])
        theirs = vectorbt.Portfolio.from_signals(
            close, entries, exits, open=open_, high=high, low=low, sl_stop=0.03, tp_stop=0.04, fees=0.002,
            init_cash=rules.initial_cash, stop_entry_price="fillprice", stop_exit_price="stoplimit", freq="1D",
        ).value()  # fmt: skip
        same_row = ~(entries | exits)
        np.testing.assert_allclose(ledger["equity"][same_row], np.asarray(theirs)[same_row], rtol=1e-9)
    assert n_exits > 80


@pytest.mark.long
@needs_vectorbt
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["discrete", "target_weights"])
def test_vectorbt_counts_the_same_trades_with_the_same_profits(random_case, mode):
    """Without a borrowing fee, which it does not have; its positions are our trades."""
    import vectorbt

    n_trades = 0
    for seed in range(12):
        market, rules, actions = random_case(seed, 1, mode, 0.03)
        rules = replace(rules, borrow_bps_per_year=0.0, fixed_fee=0.0, sell_fee_bps=None)
        ledger = _run(market, rules, actions)
        filled, price = ledger["filled_A"], np.nan_to_num(ledger["fill_price_A"], nan=1.0)
        portfolio = vectorbt.Portfolio.from_orders(
            close=np.nan_to_num(ledger["close_A"], nan=1.0),
            size=filled,
            price=price,
            fees=(rules.fee_bps + rules.slippage_bps) / 1e4 + ledger.get("half_spread_A", np.zeros(len(filled))),
            direction="both",
            init_cash=rules.initial_cash,
            freq="1D",
        )
        theirs = portfolio.positions.records
        ours = trades_of(ledger, costs_of(ledger, rules, market.periods_per_year))
        profits = [trade.profit for trade in ours]
        np.testing.assert_allclose(profits, theirs["pnl"], rtol=1e-9, atol=1e-7)
        paid = theirs["entry_fees"] + theirs["exit_fees"]
        np.testing.assert_allclose([trade.costs for trade in ours], paid, atol=1e-7)
        np.testing.assert_allclose([trade.entry_price for trade in ours], theirs["entry_price"], rtol=1e-9)
        assert [trade.open for trade in ours] == (theirs["status"] == 0).tolist()
        if len(ours) > 1 and min(profits) < 0 < max(profits):
            stats = portfolio.positions
            assert metrics.expectancy(profits) == pytest.approx(float(stats.pnl.mean()), rel=1e-9)
            assert metrics.win_rate(profits) == pytest.approx(float(stats.win_rate()), rel=1e-9)
            assert metrics.profit_factor(profits) == pytest.approx(float(stats.profit_factor()), rel=1e-9)
        n_trades += len(ours)
    assert n_trades > 30


@pytest.mark.long
@needs_vectorbt
@pytest.mark.filterwarnings("ignore")
def test_an_account_that_could_not_pay_for_what_it_borrowed_is_replayed_to_its_end(tiny_market):
    # As in test_agreement: covering takes all the cash, and the rest that is short cannot be paid for.
    market = tiny_market(close=[[100, 100], [100, 100], [250, 200], [250, 200], [250, 200]])
    rules = TradingRules("discrete", fee_bps=0, borrow_bps_per_year=252 * 100)
    ledger = _run(market, rules, np.array([[0, 2], [0, 2], [1, 2], [1, 2]]))
    assert ledger["cash"][-1] == 0
    assert largest_difference(ledger, rules, market.periods_per_year) < TOLERANCE


def test_without_vectorbt_it_says_what_to_install(tiny_market, monkeypatch):
    ledger = _run(tiny_market(close=[1, 1, 1]), TradingRules(), [[0], [1]])
    monkeypatch.setitem(sys.modules, "vectorbt", None)
    with pytest.raises(UserError, match=r"which is not installed; pip install .*\[certify\]"):
        largest_difference(ledger, TradingRules(), 252)
