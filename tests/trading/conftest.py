"""Small markets to trade in."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from ml_pipeline.trading.accounts.rules import TradingRules
from ml_pipeline.trading.envs.prepared_market import PreparedMarket


@pytest.fixture(scope="module", autouse=True)
def _brief_evaluations(brief_evaluations: None) -> None:
    """A module about intervals or baselines has a `brief_evaluations` that changes nothing."""


@pytest.fixture(scope="session")
def tiny_market() -> Callable[..., PreparedMarket]:
    """A prepared market of given prices, (T,) or (T, A), with one feature an asset: the number of the bar."""

    def make(
        close: ArrayLike,
        open: ArrayLike | None = None,
        tradable: ArrayLike | None = None,
        *,
        half_spread: ArrayLike | None = None,
        high: ArrayLike | None = None,
        low: ArrayLike | None = None,
    ) -> PreparedMarket:
        closes = np.array(close, dtype=float)
        closes = closes[:, None] if closes.ndim == 1 else closes
        n_bars, n_assets = closes.shape
        return PreparedMarket(
            symbols=tuple("ABCDEFGH"[:n_assets]),
            times=np.datetime64("2024-01-01", "ns") + np.arange(n_bars) * np.timedelta64(1, "D"),
            open=closes if open is None else np.array(open, dtype=float).reshape(closes.shape),
            close=closes,
            tradable=np.full(closes.shape, True)
            if tradable is None
            else np.array(tradable, dtype=bool).reshape(closes.shape),
            features=np.repeat(np.arange(n_bars, dtype=np.float32)[:, None], n_assets, axis=1),
            clip=1e6,
            periods_per_year=252.0,
            **{
                name: None if values is None else np.array(values, dtype=float).reshape(closes.shape)
                for name, values in (("half_spread", half_spread), ("high", high), ("low", low))
            },
        )

    return make


@pytest.fixture(scope="session")
def random_case(tiny_market: Callable[..., PreparedMarket]) -> Callable[..., tuple[PreparedMarket, TradingRules, Any]]:
    """(market, rules, actions) of a seed: gaps, late listings, quotes; each cost and limit on in half of them.

    within: also each of the rules by which accounts trade within bars.
    """

    def make(
        seed: int, n_assets: int, mode: str, volatility: float, *, within: bool = False
    ) -> tuple[PreparedMarket, TradingRules, Any]:
        generator = np.random.default_rng(seed)
        market = random_market(tiny_market, generator, n_assets, volatility=volatility)
        rules = random_rules(generator, mode)
        actions = random_actions(generator, rules, market.n_bars, n_assets)
        if within:
            market, rules = with_ranges(market, generator, volatility), within_bars(rules, generator, volatility)
        return market, rules, actions

    return make


@pytest.fixture(scope="session")
def market_file() -> Callable[[str], Path]:
    """The path of a real market file, or a skip where the machine has none."""

    def find(name: str) -> Path:
        path = Path(__file__).parents[3] / "shared" / "data" / name
        if not path.exists():
            pytest.skip(f"{path} is not there")
        return path

    return find


def random_market(tiny_market: Any, generator: Any, n_assets: int, *, volatility: float, n_bars: int = 60) -> Any:
    close = 100 * np.exp(generator.normal(0, volatility, (n_bars, n_assets)).cumsum(axis=0))
    open_ = close * np.exp(generator.normal(0, volatility / 2, close.shape))
    tradable = generator.random(close.shape) < 0.9
    for asset, listed in enumerate(generator.integers(0, 20, n_assets)):
        close[:listed, asset] = open_[:listed, asset] = 0.0
        tradable[:listed, asset] = False
    spread = generator.uniform(0, 0.01, close.shape) if generator.random() < 0.5 else None
    return tiny_market(close, open_, tradable, half_spread=spread)


def random_rules(generator: Any, mode: Any) -> TradingRules:
    """Each cost and each limit is on in half of the cases."""

    def maybe(low: float, high: float, off: Any) -> Any:
        return float(generator.uniform(low, high)) if generator.random() < 0.5 else off

    return TradingRules(
        mode,
        allow_short=bool(generator.random() < 0.7),
        fill_at="next_open" if generator.random() < 0.5 else "close",
        fee_bps=maybe(0, 300, 0.0),
        sell_fee_bps=maybe(0, 300, None),
        fixed_fee=maybe(0, 30, 0.0),
        slippage_bps=maybe(0, 100, 0.0),
        borrow_bps_per_year=maybe(0, 50_000, 0.0),
        lot_size=maybe(0.1, 7, 0.0),
        min_order=maybe(0, 500, 0.0),
        max_position=maybe(0.1, 1, 1.0),
        max_gross=maybe(0.3, 1, 1.0),
        trade_limit_percent=maybe(5, 100, None),
        action_threshold=maybe(0, 0.5, 0.0),
        min_cash=maybe(0, 0.5, 0.0),
    )


def with_ranges(market: PreparedMarket, generator: Any, volatility: float) -> PreparedMarket:
    """The market with highs and lows around its opens and closes, and with nights and weekends."""
    wicks = np.exp(generator.exponential(volatility / 2, (2, *market.close.shape)))
    high = np.maximum(market.open, market.close) * wicks[0]
    low = np.minimum(market.open, market.close) / wicks[1]
    return replace(market, high=high, low=low, day=np.cumsum(generator.integers(0, 4, market.n_bars)))


def within_bars(rules: TradingRules, generator: Any, volatility: float) -> TradingRules:
    """Each of stop, target, leverage, financing, limits and sizes at the decision in about half of the cases, and at
    least one of them."""
    stop, target, gross = *(generator.uniform(0.5, 3, 2) * volatility), generator.uniform(1.1, 5)
    on = generator.random(6) < 0.5
    changes: dict[str, Any] = {}
    if on[0] or not on.any():
        changes["stop_loss"] = min(stop, 0.99)
    if on[1]:
        changes["take_profit"] = min(target, 5.0)
    if on[2]:
        margin = float(generator.uniform(0.05, 0.95 / gross))
        changes |= {"max_gross": gross, "max_position": gross * generator.uniform(0.2, 1), "maintenance_margin": margin}
    if on[3] and rules.fill_at == "next_open":
        changes["financing_bps_per_year"] = float(generator.uniform(0, 20_000))
    if on[4] and rules.fill_at == "next_open":
        changes["limit_bps"] = float(generator.uniform(0, 10_000 * volatility))
    if on[5]:
        changes["size_at"] = "decision"
    return replace(rules, **changes)


def random_actions(generator: Any, rules: TradingRules, n_bars: int, n_assets: int) -> Any:
    if rules.action_mode == "discrete":
        return generator.integers(0, len(rules.positions), (n_bars, n_assets))
    if rules.action_mode == "buy_hold_sell":
        return generator.integers(0, 3, (n_bars, n_assets))
    return generator.normal(0, 0.7, (n_bars, n_assets))
