"""Copies the arrays of a step to a device and back; on cuda through page-locked memory."""

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray


class Transfers:
    """Between NumPy on the host and tensors on `device`; page-locked memory is reused from call to call.

    Call `to_device`, then `to_host`: an array that is sent may be read until the next `to_host` returns, and the array
    that `to_host` returns is valid until the next call of it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.pins = device.type == "cuda"
        self._kept: dict[str, Tensor] = {}

    def to_device(self, array: Array, name: str = "sent") -> Tensor:
        """The array on the device; name: each array that one step sends has its own."""
        source = torch.from_numpy(array)
        if not self.pins:
            return source.to(self._device)
        return self._pinned(name, source).copy_(source).to(self._device, non_blocking=True)

    def to_host(self, tensor: Tensor) -> Array:
        """The tensor as an array; waits for the device."""
        if not self.pins:
            return tensor.cpu().numpy()
        received = self._pinned("received", tensor).copy_(tensor, non_blocking=True)
        wait_for(self._device)
        return received.numpy()

    def _pinned(self, name: str, like: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = self._kept[name] = pin(like)
        return kept


def pin(like: Tensor) -> Tensor:
    """Page-locked memory on the host, of this shape and dtype."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all work so far."""
    torch.cuda.current_stream(device).synchronize()
