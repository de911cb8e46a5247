"""report.html of a session: the page of an evaluation, made from its trades and compared with the same baselines."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.cash_flows import flows_by_row
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.session_files import REPORT_FILE
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.evaluation.baselines import buy_and_hold, equal_weight, random_policies
from ml_pipeline.trading.evaluation.metrics import time_weighted
from ml_pipeline.trading.evaluation.page import write_page
from ml_pipeline.trading.evaluation.report import column_names, results_table
from ml_pipeline.trading.evaluation.results import Evaluation
from ml_pipeline.trading.market.bar_set import MarketBuffer
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.splits import Split
from ml_pipeline.trading.market.timeframes import Calendar, Timing
from ml_pipeline.trading.traded_market import TradedMarket

_FEWEST_ROWS = 3
"""No report is written for fewer rows."""


def write_session_report(
    folder: Path,
    journal: Journal,
    policy: DeployedPolicy,
    rules: TradingRules,
    *,
    symbols: tuple[str, ...],
    timing: Timing,
    calendar: Calendar,
) -> str | None:
    """Write the page and return the table of its figures as text; None if the ledger is too short.

    Raises UserError if the figures cannot be computed.
    """
    ledger = ledger_of(journal)
    first = journal.first_account_bar()
    if ledger is None or first is None or len(ledger["time"]) < _FEWEST_ROWS:
        return None
    if any(adjustment.quantity for _, adjustment in journal.adjustments()):
        raise UserError("positions changed without orders, as by a split; live.jsonl has the adjustments.")
    if any(ledger[f"position_{symbol}"][0] for symbol in symbols):
        raise UserError("the session took over positions of unknown cost; `reconcile` compares it with a backtest.")
    flows = flows_by_row(journal, len(ledger["time"]))
    agent, notes = (_time_weighted(ledger, flows), [_about(flows)]) if flows[1:].any() else (ledger, [])
    tape = MarketBuffer(symbols, timing, calendar)
    for bars in journal.bars():
        tape.append(bars)
    market = tape.market()
    split = Split("test", first, first + len(ledger["time"]))
    config = replace(policy.config, data=None, initial_cash=rules.initial_cash)
    traded = TradedMarket(config, market=market, scaler=policy.scaler, splits={"test": split})
    env = traded.evaluation_env("test")
    evaluation = Evaluation(
        split="live",
        agent=agent,
        buy_and_hold=buy_and_hold(env),
        equal_weight=equal_weight(env),
        random=random_policies(env, turnover_of=agent),
        calendar=traded.market.calendar,
        rules=rules,
        remarks=traded.market.remarks,
    )
    try:
        write_page(folder / REPORT_FILE, evaluation, notes=notes)
    except OSError as error:
        raise UserError(f"{folder / REPORT_FILE} cannot be written: {error.strerror}.") from error
    return "\n".join([results_table(evaluation), *notes])


def _time_weighted(ledger: Ledger, flows: FloatArray) -> Ledger:
    return {**ledger, "equity": time_weighted(ledger["equity"], flows), "money": ledger["equity"]}


def _about(flows: FloatArray) -> str:
    came, went = np.maximum(flows[1:], 0.0).sum(), np.maximum(-flows[1:], 0.0).sum()
    return (
        f"{came:,.2f} came into the account and {went:,.2f} left it. Returns are time-weighted: they leave it out, and "
        "the equity shown is the initial cash with these returns."
    )


def ledger_of(journal: Journal) -> Ledger | None:
    """The ledger so far, as in `ledger.csv`; None before its first row."""
    import polars as pl

    header, lines = journal.meta("ledger_header"), "".join(journal.ledger_lines())
    if header is None or not lines:
        return None
    frame = pl.read_csv(io.StringIO(header + lines), infer_schema=False)
    times = frame["time"].str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ns").to_numpy()
    frame.columns = column_names(header.rstrip("\n"))
    numbers = {name: frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy() for name in frame.columns[1:]}
    return {"time": times, **numbers}
