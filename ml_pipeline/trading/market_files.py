from collections.abc import Sequence
from pathlib import Path

from ml_pipeline.trading.market_data import MarketData


def load_market(path: str | Path, *, symbols: Sequence[str] | None = None) -> MarketData:
    raise NotImplementedError
