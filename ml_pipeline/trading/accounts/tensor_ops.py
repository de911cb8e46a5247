"""Tensor operations for batches of accounts, on any device; no data passes through the host.

N accounts, A assets, T bars. Only this module of `trading` imports torch, and worker processes never import it.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.trading.accounts.array_ops import Arrays, Batch, Tables
from ml_pipeline.trading.accounts.execution import Kernel, make_kernel
from ml_pipeline.trading.accounts.orders import Ops

TORCH_OPS = Ops(
    where=torch.where,
    least=lambda a, b: torch.clamp(a, max=b),
    greatest=lambda a, b: torch.clamp(a, min=b),
    floor=torch.floor,
    log=torch.log,
    sqrt=torch.sqrt,
    tanh=torch.tanh,
)


class TorchArrays(Arrays):
    """As `array_ops.NumpyArrays`. Money is float64, or float32 on mps, which has no float64."""

    ops = TORCH_OPS

    def __init__(self, device: str) -> None:
        self.kernel: Kernel = make_kernel(TORCH_OPS)
        self.device = torch.device(device)
        self.money = torch.float32 if self.device.type == "mps" else torch.float64

    def array(self, values: Any, dtype: Any = None) -> Tensor:
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(np.ascontiguousarray(values))
            dtype = dtype or (self.money if values.dtype == torch.float64 else None)
        return torch.as_tensor(values, device=self.device, dtype=dtype)

    def to_host(self, values: Tensor) -> Any:
        return values.cpu().numpy()

    def full(self, shape: tuple[int, ...], value: float | bool, dtype: Any = None) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def take(self, table: Tensor, rows: Tensor) -> Tensor:
        return table.index_select(1, rows)

    def observations(self, tables: Tables, rows: Tensor, window: int, batch: Batch, clip: float) -> Tensor:
        seen = [tables.features.index_select(0, rows - (window - 1 - i)) for i in range(window)]
        weights = self.weights_in_equity(tables, rows, batch, clip)
        return torch.cat([*seen, weights.T.to(torch.float32)], dim=1)

    def chosen(self, flags: Tensor) -> Tensor:
        return flags  # counting them would synchronize with the device

    def renewable(self, values: Tensor, chosen: Tensor) -> Tensor:
        return values

    def renew(self, values: Tensor, chosen: Tensor, new: Tensor) -> Tensor:
        return torch.where(chosen, new, values)

    def observe_again(self, seen: Tensor, chosen: Tensor, arguments: tuple[Any, ...]) -> Tensor:
        return self.observations(*arguments)

    def finite(self, values: Tensor) -> bool:
        return self.device.type != "cpu" or bool(torch.isfinite(values).all())

    def to_indices(self, values: Tensor) -> Tensor:
        return values.to(torch.int64)

    def floats(self, values: Tensor) -> Tensor:
        return values.to(torch.float32)
