"""The state of an environment as plain data, which can be restored without running code that came with it.

Possible where an environment's class, and that of each wrapper around it, either defines `get_plain_state()` and
`set_plain_state(state)`, or is one of Gymnasium's whose attributes are its whole state.
"""

from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from ml_pipeline.runtime.plain_data import NotPlain, from_plain, to_plain

_WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
_ENVIRONMENTS = "gymnasium.envs.classic_control."
# Attributes that no step changes.
_CONSTANT = frozenset({
    "env", "spec", "metadata", "render_mode", "action_space", "observation_space",
    "_saved_kwargs", "_cached_spec", "_metadata", "_action_space", "_observation_space",
})  # fmt: skip


def plain_state_of(env: gymnasium.Env) -> list[Any]:
    """The states of the outermost wrapper to the environment, as plain data. Raises NotPlain where one has none."""
    return [to_plain(_state_of(layer)) for layer in _layers(env)]


def set_plain_state(env: gymnasium.Env, states: Any) -> None:
    """Put `env` into a state of `plain_state_of`. Raises ValueError, or what the environment raises, if it cannot."""
    layers = list(_layers(env))
    if not isinstance(states, list) or len(states) != len(layers):
        raise ValueError("it is of an environment with other wrappers")
    for layer, data in zip(layers, states, strict=True):
        state = from_plain(data)
        if _defines_state(layer):
            layer.set_plain_state(state)  # type: ignore[attr-defined]
        else:
            _set_attributes(layer, state)


def _layers(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    yield env
    while isinstance(env, gymnasium.Wrapper):
        env = env.env
        yield env


def _defines_state(layer: gymnasium.Env) -> bool:
    """Whether its own class does: what a subclass adds, its base class does not know."""
    return "get_plain_state" in vars(type(layer))


def _state_of(layer: gymnasium.Env) -> Any:
    if _defines_state(layer):
        return layer.get_plain_state()  # type: ignore[attr-defined]
    return {name: getattr(layer, name) for name in _names(layer)}


def _names(layer: gymnasium.Env) -> set[str]:
    """The attributes that are its state. Raises NotPlain where they may not be all of it."""
    kind = type(layer)
    if kind not in _WRAPPERS and not kind.__module__.startswith(_ENVIRONMENTS):
        raise NotPlain(f"a {kind.__name__}")
    return {*vars(layer)} - _CONSTANT


def _set_attributes(layer: gymnasium.Env, state: Any) -> None:
    """Raises ValueError where `state` would put anything else than numbers and texts in the place of its state."""
    kind = type(layer)
    if not isinstance(state, dict) or any(
        not isinstance(name, str) or name in _CONSTANT or callable(getattr(kind, name, None)) for name in state
    ):
        raise ValueError(f"it is of another environment than {kind.__name__}")
    for name in _names(layer) - {*state}:
        delattr(layer, name)
    vars(layer).update(state)
