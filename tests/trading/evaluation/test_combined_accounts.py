"""Accounts of single symbols, added up."""

import numpy as np
import pytest

from ml_pipeline.trading.evaluation.combined_accounts import evaluation_together, ledger_together
from ml_pipeline.trading.evaluation.metrics import total_return
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask


def ledger_of(symbol, days, equity, position, close):
    days = np.array(days, dtype="datetime64[D]").astype("datetime64[ns]")
    equity, position, close = (np.array(values, float) for values in (equity, position, close))
    return {
        "time": days,
        "equity": equity,
        "cash": equity - position * close,
        "costs_paid": np.zeros(len(days)),
        f"close_{symbol}": close,
        f"position_{symbol}": position,
        f"filled_{symbol}": np.diff(position, prepend=0.0),
        f"fill_price_{symbol}": close,
    }


A = ledger_of("A", ["2024-01-01", "2024-01-02", "2024-01-04"], [100, 100, 110], [0, 10, 10], [9, 10, 11])
B = ledger_of("B", ["2024-01-02", "2024-01-03"], [100, 90], [0, 0], [5, 6])


def test_money_is_added_up_and_waits_where_a_symbol_has_no_bar():
    both = ledger_together([A, B])
    assert both["time"].astype("datetime64[D]").astype(str).tolist() == [f"2024-01-0{day}" for day in (1, 2, 3, 4)]
    assert both["equity"].tolist() == [200, 200, 190, 200]  # 100 + 100, 100 + 100, 100 + 90, 110 + 90
    assert both["position_A"].tolist() == [0, 10, 10, 10]
    assert both["filled_A"].tolist() == [0, 10, 0, 0]
    np.testing.assert_array_equal(both["close_B"], [np.nan, 5, 6, 6])


def test_a_ledger_together_adds_up_as_every_ledger_does():
    both = ledger_together([A, B])
    worth = sum(both[f"position_{s}"] * np.nan_to_num(both[f"close_{s}"]) for s in "AB")
    np.testing.assert_allclose(both["cash"] + worth, both["equity"])


def evaluations():
    market = synthetic_market(n_bars=300, n_symbols=2)
    config = TradingConfig(features=("log_return_1",))
    tasks = [TradingTask(config, market=market.select([symbol])) for symbol in market.symbols]
    return [task.compare(lambda observation: int(observation[0] > 0) * 2).evaluation for task in tasks]


def test_an_evaluation_together_has_the_money_of_all():
    each = evaluations()
    together = evaluation_together(each)
    assert together.rules.initial_cash == 2 * each[0].rules.initial_cash
    ends = [evaluation.agent["equity"][-1] for evaluation in each]
    assert together.agent["equity"][-1] == pytest.approx(sum(ends))
    assert together.figures["agent"]["total_return"] == pytest.approx(
        np.mean([total_return(evaluation.agent["equity"]) for evaluation in each])
    )
    n_trades = [evaluation.figures["agent"]["n_trades"] for evaluation in each]
    assert together.figures["agent"]["n_trades"] == sum(n_trades)
    costs = [evaluation.figures["agent"]["costs_paid"] for evaluation in each]
    assert together.figures["agent"]["costs_paid"] == pytest.approx(sum(costs))
    assert len(together.random) == len(each[0].random)
    assert together.remarks == tuple(dict.fromkeys(remark for one in each for remark in one.remarks))


def test_one_alone_is_itself():
    (one, _) = evaluations()
    assert evaluation_together([one]) is one
