"""The global random generators, from which Stable-Baselines3 draws, as those of one run.

Python's, NumPy's and torch's belong to the whole process. A run puts its own states into them while it trains, and what
was there before back: so nothing that happens between two of its iterations changes what it draws.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

States = dict[str, Any]


class OwnGenerators:
    """The states of the global generators that belong to one run; as they are now, until they were in use."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._states = self._now()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block, the global generators are those of the run."""
        others = self._now()
        self._set(self._states)
        try:
            yield
        finally:
            self._states = self._now()
            self._set(others)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Within a block of `in_use`: what is drawn in this block changes nothing of what the run draws after it."""
        own = self._states = self._now()
        try:
            yield
        finally:
            self._set(own)

    def state_dict(self) -> States:
        """The states as tensors, numbers and lists; not for a block of `in_use`, unless they are set aside."""
        states = self._states
        version, internal, gauss = states["python"]
        name, keys, position, has_gauss, cached = states["numpy"]
        return {
            "python": [version, list(internal), gauss],
            "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
            **{key: states[key] for key in ("torch", "cuda") if key in states},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        version, internal, gauss = saved["python"]
        name, keys, position, has_gauss, cached = saved["numpy"]
        self._states = {
            "python": (version, tuple(internal), gauss),
            "numpy": (name, keys.numpy().astype(np.uint32), position, has_gauss, cached),
            "torch": saved["torch"],
        }
        if self._on_cuda:
            self._states["cuda"] = saved.get("cuda", torch.cuda.get_rng_state())

    def _now(self) -> States:
        states: States = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
        }
        if self._on_cuda:
            states["cuda"] = torch.cuda.get_rng_state()
        return states

    def _set(self, states: States) -> None:
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["torch"])
        if self._on_cuda:
            torch.cuda.set_rng_state(states["cuda"])
