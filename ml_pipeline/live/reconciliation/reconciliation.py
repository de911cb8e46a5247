"""Compare the ledger of a session with that of its backtest, and explain the difference."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ml_pipeline.config.wording import counted, text_table
from ml_pipeline.live.reconciliation.attribution import Attribution, attribute
from ml_pipeline.live.reconciliation.backtest import SessionBacktest, same_bits
from ml_pipeline.live.reconciliation.causes import MEANINGS
from ml_pipeline.live.reconciliation.costs import (
    OrderFilled,
    RealizedCosts,
    filled_orders,
    realized_costs,
)
from ml_pipeline.live.reconciliation.recorded import RecordedSession
from ml_pipeline.live.record.session_log import plain
from ml_pipeline.trading.evaluation.metrics import returns_of, sharpe, time_weighted
from ml_pipeline.trading.evaluation.uncertainty import sharpe_standard_error
from ml_pipeline.trading.market.times import as_text

# Standard errors in half the width of a 95 % interval.
_NORMAL_95 = 1.96


class Ratio(NamedTuple):
    """A Sharpe ratio with its 95 % interval; NaN if it is undefined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "undefined"
        if np.isnan(self.low):
            return f"{self.value:.2f} (too few bars for an interval)"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True, eq=False)
class Reconciliation:
    """The comparison of a session with the backtest of the same bars.

    filled: the filled orders. text: a summary for a terminal.
    """

    record: RecordedSession
    attribution: Attribution
    costs: RealizedCosts
    filled: Sequence[OrderFilled]

    @property
    def is_equal(self) -> bool:
        """Whether both ledgers are equal to the last bit."""
        return same_bits(self.attribution.backtest, self.attribution.rows)

    @property
    def difference(self) -> float:
        """Final equity of the session minus that of the backtest, in money."""
        return self.attribution.difference

    def in_bps(self, money: float) -> float:
        """Money in basis points of the session's initial equity."""
        return money / float(self.attribution.rows["equity"][0]) * 1e4

    @cached_property
    def divergent_rows(self) -> int:
        """Rows of the ledger in which the equities differ."""
        rows, backtest = self.attribution.rows["equity"], self.attribution.backtest["equity"]
        n = min(len(rows), len(backtest))
        return int((rows[:n] != backtest[:n]).sum()) + abs(len(rows) - len(backtest))

    @cached_property
    def sharpes(self) -> tuple[Ratio, Ratio]:
        """(session, backtest), of time-weighted returns."""
        per_year = self.record.market.periods_per_year
        ledgers = (self.attribution.rows, self.attribution.backtest)
        flows = [self.record.flows_at(ledger["time"]) for ledger in ledgers]
        live, tested = (time_weighted(each["equity"], flow) for each, flow in zip(ledgers, flows, strict=True))
        return _ratio(live, per_year), _ratio(tested, per_year)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        n = len(self.attribution.rows["time"])
        if self.is_equal:
            return f"The session's ledger equals the backtest's, bit for bit: {counted(n, 'bar')}, no difference."
        if not self.difference:
            divergent = counted(self.divergent_rows, "bar")
            return f"Session and backtest end with the same equity, but their ledgers differ in {divergent}."
        word = "below" if self.difference < 0 else "above"
        return (
            f"The session ended {abs(self.difference):,.2f} {word} the backtest "
            f"({self.in_bps(self.difference):+,.2f} bps of its initial equity); they differ in "
            f"{self.divergent_rows:,} of {counted(n, 'bar')}."
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """Remarks on the figures and their limits."""
        live, tested = self.sharpes
        n = len(self.attribution.rows["time"])
        said = [
            f"Sharpe ratio of the session {live}, of the backtest {tested}, with 95 % intervals over "
            f"{counted(n, 'bar')}: {_sharpe_verdict(live)}",
            *self.costs.sentences,
        ]
        if self.costs.n_fills:
            median, late = self.costs.delay_s
            said.insert(
                1,
                f"{counted(self.costs.n_fills, 'order')} filled, {_seconds(median)} after the decision's close in the "
                f"median and {_seconds(late)} at the 95th percentile; compared with fills at that close without costs, "
                f"they lost {self.costs.shortfall:,.2f} (implementation shortfall).",
            )
        return (*said, *self.record.notes)

    @property
    def cause_rows(self) -> list[list[str]]:
        """The table of causes: header, one row per cause, rounding, and the sum."""
        header = ["cause", "bars x symbols", "at once", "followed", "money", "bps"]
        rows = [
            [
                each.cause.replace("_", " "),
                f"{each.times:,}",
                f"{each.at_once:+,.2f}",
                f"{each.followed:+,.2f}",
                f"{each.worth:+,.2f}",
                f"{self.in_bps(each.worth):+,.2f}",
            ]
            for each in self.attribution.causes
        ]
        if not rows:
            return []
        rounding = self.attribution.rounding
        rows.append(["rounding", "", "", "", f"{rounding:+,.2f}", f"{self.in_bps(rounding):+,.2f}"])
        rows.append(["all", "", "", "", f"{self.difference:+,.2f}", f"{self.in_bps(self.difference):+,.2f}"])
        return [header, *rows]

    @property
    def cost_rows(self) -> list[list[str]]:
        """The table of costs: header, then one row per symbol and side."""
        header = [
            "orders filled",
            "n",
            "traded",
            "assumed bps",
            "paid bps",
            "of which slippage",
            "95 % interval",
            "shortfall",
        ]
        rows = []
        for each in self.costs.sides:
            low, high = each.slippage_interval
            interval = "too few" if np.isnan(low) else f"{low:+.2f} to {high:+.2f}"
            rows.append(
                [
                    f"{each.symbol or 'all'}, {each.side}",
                    f"{each.fills:,}",
                    f"{each.traded:,.0f}",
                    f"{each.assumed:.2f}",
                    f"{each.realized:.2f}",
                    f"{each.slippage:+.2f}",
                    interval,
                    f"{each.shortfall:+.2f}",
                ]
            )
        return [header, *rows] if rows else []

    @property
    def text(self) -> str:
        """The verdict, the causes and the costs, for a terminal."""
        first, last = (as_text(self.attribution.rows["time"][i]) for i in (0, -1))
        parts = [f"{self.record.name}, {first} to {last}", self.verdict]
        if rows := self.cause_rows:
            parts.append(text_table(rows))
        if rows := self.cost_rows:
            parts.append(text_table(_shortened(rows)))
        return "\n\n".join([*parts, "\n".join(self.sentences)])

    def as_json(self) -> dict[str, Any]:
        """Every figure, without NaN."""
        live, tested = self.sharpes
        rows, backtest = self.attribution.rows, self.attribution.backtest
        figures = {
            "session": self.record.name,
            "first_bar": as_text(rows["time"][0]),
            "last_bar": as_text(rows["time"][-1]),
            "n_bars": len(rows["time"]),
            "bit_for_bit": self.is_equal,
            "verdict": self.verdict,
            "start_equity": float(rows["equity"][0]),
            "equity": {"session": float(rows["equity"][-1]), "backtest": float(backtest["equity"][-1])},
            "difference": {"money": self.difference, "bps": self.in_bps(self.difference)},
            "parted_bars": self.divergent_rows,
            "causes": [
                {**each._asdict(), "bps": self.in_bps(each.worth), "meaning": MEANINGS[each.cause]}
                for each in self.attribution.causes
            ],
            "rounding": self.attribution.rounding,
            "parted": [
                {**each._asdict(), "bar": as_text(rows["time"][each.bar])} for each in self.attribution.divergent
            ],
            "costs": {
                "sides": [
                    {**each._asdict(), "slippage_interval": [*each.slippage_interval], "met": each.realized}
                    for each in self.costs.sides
                ],
                "settings": self.costs.settings,
                "delay_s": {"median": self.costs.delay_s[0], "p95": self.costs.delay_s[1]},
                "shortfall": self.costs.shortfall,
                "n_fills": self.costs.n_fills,
            },
            "sharpe": {"session": live._asdict(), "backtest": tested._asdict()},
            "sentences": list(self.sentences),
        }
        return dict(plain(figures))


def reconcile(record: RecordedSession) -> Reconciliation:
    """Run the session's bars through the backtest, and compare.

    Raises UserError if the record is inconsistent.
    """
    backtest = SessionBacktest(record)
    filled = filled_orders(record, backtest)
    return Reconciliation(record, attribute(record, backtest), realized_costs(record, filled), filled)


def _ratio(equity: Any, per_year: float) -> Ratio:
    returns = returns_of(equity)
    value, error = sharpe(returns, per_year), sharpe_standard_error(returns, per_year)
    return Ratio(value, value - _NORMAL_95 * error, value + _NORMAL_95 * error)


def _sharpe_verdict(live: Ratio) -> str:
    if np.isnan(live.low):
        return "too few to judge its return."
    if live.low <= 0 <= live.high:
        return "too few to distinguish its return from chance; whether fills are as assumed shows sooner."
    return "enough to distinguish its return from chance, if future bars are similar."


def _seconds(seconds: float) -> str:
    if abs(seconds) < 120:
        return f"{seconds:,.1f} s"
    return f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _shortened(rows: list[list[str]], most: int = 8) -> list[list[str]]:
    """The rows of all symbols together, and at most `most` rows in all."""
    if len(rows) <= most + 1:
        return rows
    return [rows[0], *rows[1 : most - 1], *rows[-2:]]
