"""Orders that close positions, whatever a model wants."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from ml_pipeline.live.brokers.broker import OrderRequest
from ml_pipeline.live.orders.order_ids import client_order_id


def closing_orders(
    held: Iterable[tuple[str, float]],
    *,
    session_id: str,
    bar_time: np.datetime64,
    purpose: Literal["flatten", "difference"],
) -> list[OrderRequest]:
    """An order for each symbol of which something is held. held: (symbol, signed quantity). purpose: in their ids."""
    return [
        OrderRequest(client_order_id(session_id, bar_time, symbol, purpose=purpose), symbol, -n, 0.0, closing=True)
        for symbol, n in held
        if n
    ]
