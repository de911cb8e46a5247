"""The state of a collector for another number of environments. N environments before, M after."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def resized(state: dict[str, Any], num_envs: int) -> dict[str, Any]:
    """A state that `Collector.state_dict` gave between two rollouts, for `num_envs` environments in place of its own.

    What belongs to one environment stays with the first ones; that of the last ones goes, and further ones begin as an
    episode does: with a return of 0 and an empty memory. What belongs to all of them, such as statistics, stays.
    The last observations of further ones are 0: they are written once they are known.
    """
    resize = _resizing(num_envs)
    episodes, scaler = state["episodes"], state["reward_scaler"]
    return {
        **state,
        "buffer": {**state["buffer"], "observations": resize(state["buffer"]["observations"], dim=-2)},
        "episodes": {**episodes, **{name: resize(episodes[name]) for name in ("returns", "lengths")}},
        "reward_scaler": None if scaler is None else {**scaler, "returns": resize(scaler["returns"])},
        "memory": None if state["memory"] is None else resize(state["memory"]),
    }


def _resizing(num_envs: int) -> Callable[..., Any]:
    """A function that cuts a list (N,) or a tensor along `dim` to the first M elements, or adds zeros up to M."""

    def resize(of_each: list[Any] | Tensor, dim: int = 0) -> list[Any] | Tensor:
        if isinstance(of_each, list):
            return of_each[:num_envs] + [0] * (num_envs - len(of_each))
        kept = of_each.narrow(dim, 0, min(num_envs, of_each.shape[dim]))
        shape = list(kept.shape)
        shape[dim] = num_envs - shape[dim]
        return torch.cat([kept, kept.new_zeros(shape)], dim=dim)

    return resize
