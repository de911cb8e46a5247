"""Read the records of a session from its folder: its journal, its ledger, and the models that traded."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.live.brokers.broker import FLOWS, Adjustment, OrderUpdate
from ml_pipeline.live.corporate_actions import price_factors, rescaled_bars
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy, load_deployed_policy
from ml_pipeline.live.reconciliation.recorded import (
    AdjustedAccount,
    ModelInTurn,
    PaidCharge,
    RecordedSession,
    RefusedOrder,
    SentOrder,
    SessionEvent,
)
from ml_pipeline.live.reconciliation.splits import Booked, after_splits, unreported_splits
from ml_pipeline.live.record.journal import MISSED, REFUSED, Journal, OrderRecord
from ml_pipeline.live.record.session_log import time_text
from ml_pipeline.live.session_files import JOURNAL_FILE, LEDGER_FILE
from ml_pipeline.runtime.files import open_regular
from ml_pipeline.trading.accounts.ledger import Ledger
from ml_pipeline.trading.accounts.rules import CostsAndLimits
from ml_pipeline.trading.evaluation.report import column_names
from ml_pipeline.trading.market.bar_set import BarSet, MarketBuffer
from ml_pipeline.trading.market.data import FloatArray, MarketData
from ml_pipeline.trading.market.timeframes import Timing, infer_calendar, make_clock
from ml_pipeline.trading.settings import MarketConditions

_OF_TIME = "time"
_PRICES = ("open", "high", "low", "close", "volume")


def read_session(folder: Path) -> RecordedSession:
    """The record of the session in this folder, which may still be trading and is not changed.

    Raises UserError if there is no session, it has not traded yet, or one of its models is missing.
    """
    path = folder / JOURNAL_FILE
    if not path.is_file():
        raise UserError(f"{shown_path(folder)} has no {JOURNAL_FILE}, so it is not the folder of a session.")
    with closing(Journal(path, writes=False)) as journal, journal.at_one_time():
        if journal.first_account_bar() is None:
            raise UserError(f"The session in {shown_path(folder)} has no row in its ledger yet; let it trade first.")
        read = _Journalled(journal)
    return _record(folder, read)


class _Journalled:
    """The content of a journal, read once."""

    def __init__(self, journal: Journal) -> None:
        self.bars = list(journal.bars())
        first = journal.first_account_bar()
        assert first is not None
        self.first = first
        self.symbols = tuple(json.loads(str(journal.meta("symbols"))))
        self.initial_cash = float(journal.meta("initial_cash") or "nan")
        self.periods_per_year = journal.meta("periods_per_year")
        self.n_rows = sum(1 for _ in journal.ledger_lines())
        self.orders = journal.orders()
        # What was booked since the last bar is in no row yet.
        self.fills = [each for each in journal.fills_by_bar() if each[0] < len(self.bars)]
        self.charges = [each for each in journal.charges_by_bar() if each[0] < len(self.bars)]
        self.adjustments = [each for each in journal.adjustments() if each[0] < len(self.bars)]
        self.reported = price_factors(journal, self.symbols, self.bars)
        self.split_symbols = {action.symbol for _, action in journal.corporate_actions() if action.factor != 1.0}
        self.decided = set(journal.decided_bars())
        self.models = journal.models()
        self.log = [json.loads(line) for line in journal.log_lines()]
        self.start = next(line for line in self.log if line["event"] == "start")

    def time(self, number: int) -> np.datetime64:
        """The time of the bar with this number."""
        return self.bars[number].time

    @property
    def flows(self) -> list[tuple[int, Adjustment]]:
        """The adjustments whose cash the backtest moves as well; that of a trade by hand belongs to its shares."""
        traded = {number for number, each in self.adjustments if each.kind == "difference" and each.quantity}
        return [
            (number, each)
            for number, each in self.adjustments
            if each.kind in FLOWS and not (each.kind == "difference" and number in traded)
        ]

    @property
    def account_times(self) -> list[np.datetime64]:
        return [bars.time for bars in self.bars[self.first : self.first + self.n_rows]]


def _record(folder: Path, read: _Journalled) -> RecordedSession:
    settings = read.start["settings"]
    policies = [_policy(Path(model.path), settings) for model in read.models]
    ledger = read_ledger(folder / LEDGER_FILE, read.account_times)
    factors = _price_factors(read, ledger)
    market = _market(read, policies[0], list(rescaled_bars(read.bars, factors)))
    observed = None if np.array_equal(factors, read.reported) else list(rescaled_bars(read.bars, read.reported))
    closing_at = _closing_bars(read)
    simulated = read.start["broker"] == "simulated"
    at_end = read.time(read.first + read.n_rows - 2) if read.n_rows > 1 else None
    of_log = _by_bar(read)
    told, corrections = corrected_bars(
        read.bars, [line for line in read.log if line["event"] == "correction"], read.symbols
    )
    record = RecordedSession(
        market=market,
        ledger=ledger,
        models=[_in_turn(read, i, policies) for i in range(len(policies))],
        orders=[_sent(read, order) for order in read.orders if order.status not in {REFUSED, MISSED}],
        updates=[_update(read, order) for order in read.orders if order.status not in {REFUSED, MISSED}],
        fills=[fill for _, fill in read.fills],
        fill_bars=[read.time(number) for number, _ in read.fills],
        charges=[PaidCharge(read.time(number), charge.amount, charge.what) for number, charge in read.charges],
        flows=[PaidCharge(read.time(number), -each.cash, each.kind) for number, each in read.flows if each.cash],
        adjustments=[_adjusted(read, number, each) for number, each in read.adjustments],
        observed=None if observed is None else _market(read, policies[0], observed),
        refusals=_refusals(read, of_log, closing_at),
        events=_events(read, of_log, closing_at),
        corrected=_market(read, policies[0], list(rescaled_bars(told, factors))) if corrections else None,
        corrections=corrections,
        sizes_at_fill=simulated,
        slippage_in_costs=simulated,
        closes_at_end=_closes_at_end(read, at_end),
        name=folder.name,
        real_money=bool(read.start.get("real_money")),
        notes=_notes(read),
    )
    return record if (factors == 1.0).all() else after_splits(record, 1.0 / factors)


def _price_factors(read: _Journalled, ledger: Ledger) -> FloatArray:
    """Factors that turn the prices of each bar into those after all splits, (bars, A)."""
    splits = [
        Booked(number, each.symbol, float(each.quantity))
        for number, each in read.adjustments
        if each.kind == "split" and each.symbol in set(read.symbols) - read.split_symbols
    ]
    return read.reported * unreported_splits(splits, read.bars, read.symbols, ledger, read.first)


def _adjusted(read: _Journalled, number: int, each: Adjustment) -> AdjustedAccount:
    """The adjustment, without cash that the backtest has as well."""
    cash = 0.0 if (number, each) in read.flows else each.cash
    quantity = float(each.quantity)
    return AdjustedAccount(read.time(number), each.symbol, quantity, each.in_words(), cash, each.kind)


def read_ledger(path: Path, times: Sequence[np.datetime64]) -> Ledger:
    """Read ledger.csv, with exact times for its rows; the file has them to the second. An empty cell is NaN.

    Raises UserError if it cannot be read, or has no rows.
    """
    import polars as pl

    try:
        with open_regular(path) as file:
            content = file.read()
        table = pl.read_csv(content, infer_schema=False)
        table.columns = column_names(content.partition(b"\n")[0].decode())
        columns = {name: table[name].cast(pl.Float64).to_numpy() for name in table.columns if name != _OF_TIME}
    except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise UserError(f"{shown_path(path)} cannot be read as a ledger: {error}") from error
    n = min(len(times), len(table))
    if not n:
        raise UserError(f"{shown_path(path)} has no rows.")
    own: Ledger = {_OF_TIME: np.array(times[:n], dtype="datetime64[ns]")}
    return own | {name: np.array(values[:n], dtype=np.float64) for name, values in columns.items()}


def _policy(path: Path, settings: Mapping[str, Any]) -> DeployedPolicy:
    names = {each.name for each in fields(MarketConditions)}
    changes = {name: value for name, value in settings.items() if name in names}
    if (replayed := settings.get("replay")) is not None:
        changes["data"] = Path(replayed)
    return load_deployed_policy(path, changes)


def _market(read: _Journalled, policy: DeployedPolicy, bars: Sequence[BarSet]) -> MarketData:
    tape = MarketBuffer(read.symbols, _timing(read.bars, policy), source="the session's bars")
    for each in bars:
        tape.append(each)
    market = tape.market()
    calendar = policy.calendar(infer_calendar(market.times))
    if read.periods_per_year is not None:
        calendar = calendar._replace(periods_per_year=float(read.periods_per_year))
    return replace(market, calendar=calendar)


def _timing(bars: Sequence[BarSet], policy: DeployedPolicy) -> Timing:
    """The timing of the bars: times are opens if bars close later than their time."""
    clock = make_clock(policy.config.session, policy.config.timezone)
    lengths = [int((each.closed_at - each.time) / np.timedelta64(1, "ns")) for each in bars]
    if any(lengths):
        return Timing(max(lengths), "open", clock)
    steps = np.diff(np.array([each.time for each in bars]).astype(np.int64))
    return Timing(int(np.min(steps)) if len(steps) else 1, "close", clock)


def _in_turn(read: _Journalled, i: int, policies: Sequence[DeployedPolicy]) -> ModelInTurn:
    policy, number = policies[i], min(read.models[i].number, len(read.bars) - 1)
    rules = replace(policies[0].rules, initial_cash=read.initial_cash)
    return ModelInTurn(
        first_bar=read.time(number),
        act=policy.act,
        features=tuple(policy.config.features),
        scaler=policy.scaler,
        window=policy.window,
        rules=replace(rules, action_mode=policy.rules.action_mode, allow_short=policy.rules.allow_short),
        name=f"{policy.name} {policy.version}" if policy.version else policy.name,
    )


def _sent(read: _Journalled, order: OrderRecord) -> SentOrder:
    request = order.request
    return SentOrder(
        request.client_order_id,
        read.time(order.number),
        request.symbol,
        float(request.quantity),
        request.weight,
        request.closing,
    )


def _update(read: _Journalled, order: OrderRecord) -> OrderUpdate:
    request, status = order.request, order.status
    known: Any = status if status != "written" else "accepted"
    time = read.time(order.number)
    return OrderUpdate(request.client_order_id, request.symbol, known, None, order.filled_quantity, time, order.reason)


@dataclass
class _BarLog:
    """The log entries of one bar."""

    refusals: list[dict[str, Any]]
    sentences: dict[str, str]
    away: bool = False


def _by_bar(read: _Journalled) -> dict[np.datetime64, _BarLog]:
    found: dict[np.datetime64, _BarLog] = defaultdict(lambda: _BarLog([], {}))
    away = False
    for line in read.log:
        event = line["event"]
        if event in {"broker_away", "broker_back"}:
            away = event == "broker_away"
        if line["bar"] is None:
            continue
        own = found[np.datetime64(line["bar"], "ns")]
        own.away |= away
        if event == "refusal":
            own.refusals.append(line)
        elif sentence := line.get("sentence") or line.get("why"):
            own.sentences[event] = sentence
    return found


def _closing_bars(read: _Journalled) -> set[int]:
    """The numbers of bars at which all positions were closed without a decision of the model."""
    closing_orders = {order.number for order in read.orders if order.request.closing and order.status != REFUSED}
    purposeful = {line["bar"] for line in read.log if line["event"] == "decision" and any(line["targets"].values())}
    wanted = {n for n in closing_orders if n not in read.decided or time_text(read.time(n)) in purposeful}
    return wanted


def _refusals(read: _Journalled, of_log: Mapping[np.datetime64, _BarLog], closing_at: set[int]) -> list[RefusedOrder]:
    found = []
    refused = [order for order in read.orders if order.status == REFUSED]
    with_orders = {order.number for order in read.orders}
    for order in refused:
        found.append(RefusedOrder(read.time(order.number), order.request.symbol, "a guard", order.reason))
    for number in range(read.first, read.first + read.n_rows):
        time = read.time(number)
        said = of_log.get(time)
        if said is None or not said.refusals:
            continue
        guard, sentence = said.refusals[0]["guard"], said.refusals[0].get("sentence") or ""
        if number in closing_at:
            found.append(RefusedOrder(time, None, guard, sentence, flattens=True))
        elif number not in with_orders:
            found.append(RefusedOrder(time, None, guard, sentence))
    return found


def _events(read: _Journalled, of_log: Mapping[np.datetime64, _BarLog], closing_at: set[int]) -> list[SessionEvent]:
    found = []
    for number in range(read.first, read.first + read.n_rows):
        time = read.time(number)
        said = of_log.get(time) or _BarLog([], {})
        if number in closing_at:
            if not said.refusals:
                sentence = said.sentences.get("gap") or said.sentences.get("stop") or "all positions were closed"
                kind: Any = "gap" if "gap" in said.sentences else "flatten"
                found.append(SessionEvent(time, kind, sentence))
        elif number not in read.decided:
            is_away = said.away and "missed" in said.sentences
            sentence = said.sentences.get("missed") or said.sentences.get("late") or "nothing was decided"
            found.append(SessionEvent(time, "broker_away" if is_away else "missed", sentence))
    for order in read.orders:
        if order.status == MISSED:
            found.append(SessionEvent(read.time(order.number), "broker_away", order.reason))
    return found


def _closes_at_end(read: _Journalled, at_end: np.datetime64 | None) -> bool | None:
    """Whether the last order in the ledger closed positions at the end of a market session, by the calendar.

    If nothing was held and nothing wanted, there was no order, and a closing has the same effect.
    """
    if at_end is None:
        return None
    if any(order.request.closing for order in read.orders if read.time(order.number) == at_end):
        return True
    decided = [line for line in read.log if line["event"] == "decision" and line["bar"] == time_text(at_end)]
    return any(not any(line["targets"].values()) and not any(line["positions"].values()) for line in decided)


def _notes(read: _Journalled) -> tuple[str, ...]:
    moved = "; ".join(each.in_words() for _, each in read.flows if each.cash)
    notes: tuple[str, ...] = ()
    if moved:
        notes += (f"The backtest moves the same money at the same bars: {moved}.",)
    starts = [line["settings"] for line in read.log if line["event"] == "start"]
    names = {each.name for each in fields(CostsAndLimits)}
    costs = [{name: value for name, value in settings.items() if name in names} for settings in starts]
    if all(each == costs[0] for each in costs):
        return notes
    return (
        *notes,
        "The session was restarted with other costs or limits; the backtest has those of its first start.",
    )


def corrected_bars(
    bars: Sequence[BarSet], corrections: Sequence[Mapping[str, Any]], symbols: Sequence[str]
) -> tuple[list[BarSet], list[np.datetime64]]:
    """(the bars with all corrections in them, the times of those that differ).

    corrections: the log's events, in order. Each has the `bar` (its time), the `symbols` that changed, and new values
    of `open`, `high`, `low`, `close` and `volume`, one per symbol of the session; missing ones are unchanged. A symbol
    without a bar gets one if all of its prices are given.
    """
    told = list(bars)
    row_of = {each.time.astype(np.int64).item(): row for row, each in enumerate(bars)}
    for correction in corrections:
        row = row_of.get(np.datetime64(correction["bar"], "ns").astype(np.int64).item())
        if row is not None:
            told[row] = _corrected(told[row], correction, symbols)
    changed = [old.time for old, new in zip(bars, told, strict=True) if not _same(old, new)]
    return told, changed


def _corrected(bars: BarSet, correction: Mapping[str, Any], symbols: Sequence[str]) -> BarSet:
    names = set(correction.get("symbols") or symbols)
    own = np.array([symbol in names for symbol in symbols])
    values: dict[str, Any] = {}
    for name in _PRICES:
        if (given := correction.get(name)) is not None:
            new = np.array([np.nan if value is None else value for value in given], dtype=np.float64)
            values[name] = np.where(own & ~np.isnan(new), new, getattr(bars, name))
    close = values.get("close", bars.close)
    # Missing prices follow the close, so that the bar stays valid.
    low, high = values.get("low", bars.low), values.get("high", bars.high)
    values["low"], values["high"] = np.where(own, np.fmin(low, close), low), np.where(own, np.fmax(high, close), high)
    opened = values.get("open", bars.open)
    values["open"] = np.where(own & np.isnan(opened), close, opened)
    volume = values.get("volume", bars.volume)
    values["volume"] = np.where(own & np.isnan(volume), 0.0, volume)
    return replace(bars, **values, fillable=bars.fillable | (own & np.isnan(bars.close) & ~np.isnan(close)))


def _same(first: BarSet, second: BarSet) -> bool:
    return all(np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True) for name in _PRICES)
