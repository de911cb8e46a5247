"""The state of a Stable-Baselines3 model besides its weights, as tensors and plain values.

Its own zip files are pickles, which run code when opened; nothing here does.

Stable-Baselines3 draws from the global random generators of Python, NumPy and torch, which the whole process shares.
A run swaps its own states in while it trains, and the previous ones back afterwards: so code between two of its
iterations does not change its random numbers.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch

States = dict[str, Any]


class OwnGenerators:
    """One run's states of the global generators; initially those at construction."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._states = self._now()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within the block, the global generators have the run's states."""
        others = self._now()
        self._set(self._states)
        try:
            yield
        finally:
            self._states = self._now()
            self._set(others)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """For use within `in_use`: random numbers drawn in this block do not change the run's later ones."""
        own = self._states = self._now()
        try:
            yield
        finally:
            self._set(own)

    def state_dict(self) -> States:
        """The states as tensors, numbers and lists; do not call within `in_use`, except in `set_aside`."""
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


# Attributes that change while a model learns, if it has them.
_COUNTERS = (
    "num_timesteps",
    "_episode_num",
    "_n_updates",
    "_n_calls",
    "exploration_rate",
    "_current_progress_remaining",
)


def learner_state(model: Any) -> dict[str, Any]:
    """Optimizers, counters, last observations and the random-action generator; no weights, no replay buffer."""
    _, variables = model._get_torch_save_params()
    return {
        "optimizers": {name: state for name, state in model.get_parameters().items() if name != "policy"},
        "variables": {name: _attribute(model, name).detach().clone() for name in variables},
        "counters": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "last_obs": _as_tensors(model._last_obs),
        "last_original_obs": _as_tensors(model._last_original_obs),
        "last_episode_starts": _as_tensors(model._last_episode_starts),
        "actions": dict(model.action_space.np_random.bit_generator.state),
    }


def load_learner_state(model: Any, state: Mapping[str, Any], *, environments_restored: bool) -> None:
    """Continue where `state` was taken; with new episodes if its environments are lost."""
    model.set_parameters({**state["optimizers"], "policy": model.policy.state_dict()}, device=model.device)
    for name, value in state["variables"].items():
        _attribute(model, name).data.copy_(value)
    for name, value in state["counters"].items():
        setattr(model, name, value)
    model.action_space.np_random.bit_generator.state = state["actions"]
    if environments_restored:
        model._last_obs = _as_arrays(state["last_obs"])
        model._last_original_obs = _as_arrays(state["last_original_obs"])
        model._last_episode_starts = _as_arrays(state["last_episode_starts"])


def replay_state(model: Any) -> dict[str, Any] | None:
    """The filled part of the replay buffer: views, not copies. None if the algorithm has none."""
    buffer = getattr(model, "replay_buffer", None)
    if buffer is None:
        return None
    # With optimize_memory_usage the row after the last one holds its next observation.
    n_rows = buffer.buffer_size if buffer.full else min(buffer.pos + 1, buffer.buffer_size)
    rows = {name: _as_tensors(value, n_rows) for name, value in _arrays_of(buffer).items()}
    return {"pos": buffer.pos, "full": buffer.full, "rows": rows}


def load_replay_state(model: Any, state: Mapping[str, Any]) -> None:
    """Refill the replay buffer. Raises ValueError or KeyError if `state` does not fit."""
    buffer = model.replay_buffer
    for name, value in _arrays_of(buffer).items():
        saved = state["rows"][name]
        parts = [(value[key], saved[key]) for key in value] if isinstance(value, dict) else [(value, saved)]
        for array, tensor in parts:
            array[: len(tensor)] = tensor.numpy()
    buffer.pos, buffer.full = state["pos"], state["full"]


def _arrays_of(buffer: Any) -> dict[str, Any]:
    """The arrays with one row per step, by name; Dict observations are dicts of arrays."""

    def has_rows(value: Any) -> bool:
        if isinstance(value, dict):
            return bool(value) and all(map(has_rows, value.values()))
        return isinstance(value, np.ndarray) and value.shape[:1] == (buffer.buffer_size,)

    return {name: value for name, value in vars(buffer).items() if has_rows(value)}


def _attribute(model: Any, dotted: str) -> Any:
    return reduce(getattr, dotted.split("."), model)


def _as_tensors(value: Any, n_rows: int | None = None) -> Any:
    if isinstance(value, dict):
        return {key: _as_tensors(each, n_rows) for key, each in value.items()}
    return None if value is None else torch.from_numpy(np.asarray(value)[:n_rows])


def _as_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_arrays(each) for key, each in value.items()}
    return None if value is None else value.numpy().copy()
