"""Small markets to trade in."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import ArrayLike

from ml_pipeline.trading.prepared_market import PreparedMarket

# A busy machine is no reason to fail.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def tiny_market() -> Callable[..., PreparedMarket]:
    """A prepared market of given prices, (T,) or (T, A), with one feature an asset: the number of the bar."""

    def make(close: ArrayLike, open: ArrayLike | None = None, tradable: ArrayLike | None = None) -> PreparedMarket:
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
        )

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
