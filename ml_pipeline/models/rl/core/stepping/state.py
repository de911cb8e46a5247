"""The full state of one environment: its wrappers, its generators, and the caller's data.

A state is plain data if the class of the environment, and that of each wrapper around it, either defines
`get_plain_state()` and `set_plain_state(state)`, or is a class of Gymnasium whose attributes are its full state. Such a
state can be restored without running code from it. All others are pickled by cloudpickle, without any support from the
environment. Two kinds of objects are special in pickles:
- An object whose class has `shared_between_environments = True` (market data) is not saved. Restoring takes it from the
  live environment, matched by order of appearance.
- An object that pickles as its constructor's arguments (`gymnasium.utils.EzPickle`, as LunarLander and MuJoCo do) would
  silently come back as a new one. It is refused.
Loading a pickle can run code. Its type is therefore `PickledState`, which torch's `weights_only` does not read.
"""

import io
import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
from gymnasium.utils import EzPickle
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from ml_pipeline.models.rl.core.stepping.by_value import ByValuePickler
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.runtime.plain_data import NotPlain, from_plain, to_plain


class PickledState(bytes):
    """A pickled state; restore only states that you saved yourself."""


EnvState = dict[str, Any] | PickledState


def dump(index: int, env: gymnasium.Env, rest: Any) -> EnvState:
    """The state of `env` and `rest`. Raises StateNotAvailable with the environment's `index` and the reason."""
    try:
        return {"layers": plain_state_of(env), "rest": to_plain(rest)}
    except NotPlain:
        return _pickled(index, env, rest)


def load(index: int, live: gymnasium.Env, state: EnvState) -> tuple[gymnasium.Env, Any]:
    """The environment and the rest, as dumped.

    For plain data, the environment is `live` itself. For a pickle, it is a new one with the shared objects of `live`,
    and `live` should be dropped. Raises StateNotAvailable if `state` is invalid or belongs to another environment.
    """
    try:
        if isinstance(state, PickledState):
            return _unpickled(live, state)
        if not isinstance(state, dict):
            raise ValueError(f"a {type(state).__name__} is not a state")
        set_plain_state(live, state["layers"])
        return live, from_plain(state["rest"])
    except Exception as error:  # foreign code and truncated states may raise anything
        raise StateNotAvailable(index, f"it cannot be restored ({type(error).__name__}: {error})") from error


def _pickled(index: int, env: gymnasium.Env, rest: Any) -> PickledState:
    sink = io.BytesIO()
    try:
        _Writer(sink).dump((env, rest))
    except _NotWhole as error:
        raise StateNotAvailable(index, str(error)) from None
    except Exception as error:  # foreign __getstate__ and __reduce__ may raise anything
        raise StateNotAvailable(index, f"it cannot be pickled ({type(error).__name__}: {error})") from error
    return PickledState(sink.getvalue())


def _unpickled(live: gymnasium.Env, state: PickledState) -> tuple[gymnasium.Env, Any]:
    writer = _Writer(io.BytesIO())
    writer.dump(live)
    env, rest = _Reader(io.BytesIO(state), writer.shared).load()
    return env, rest


class _NotWhole(Exception):
    """Pickling would lose something."""


class _Writer(ByValuePickler):
    def __init__(self, sink: io.BytesIO) -> None:
        super().__init__(sink)
        self.shared: list[Any] = []

    def persistent_id(self, obj: Any) -> tuple[int, str] | None:
        kind = type(obj)
        if getattr(kind, "shared_between_environments", False) is True:
            position = next((k for k, known in enumerate(self.shared) if known is obj), len(self.shared))
            if position == len(self.shared):
                self.shared.append(obj)
            return position, kind.__qualname__
        if isinstance(obj, EzPickle) and kind.__getstate__ is EzPickle.__getstate__:
            raise _NotWhole(f"{kind.__name__} pickles only its constructor's arguments (gymnasium.utils.EzPickle)")
        return None


class _Reader(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, shared: list[Any]) -> None:
        super().__init__(source)
        self._shared = shared

    def persistent_load(self, pid: tuple[int, str]) -> Any:
        position, kind = pid
        if position >= len(self._shared) or type(self._shared[position]).__qualname__ != kind:
            raise pickle.UnpicklingError(f"the live environment holds no {kind} to share")
        return self._shared[position]


_WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
_ENVIRONMENTS = "gymnasium.envs.classic_control."
# Attributes that no step changes.
_CONSTANT = frozenset({
    "env", "spec", "metadata", "render_mode", "action_space", "observation_space",
    "_saved_kwargs", "_cached_spec", "_metadata", "_action_space", "_observation_space",
})  # fmt: skip


def plain_state_of(env: gymnasium.Env) -> list[Any]:
    """The states from the outermost wrapper to the environment, as plain data. Raises NotPlain if one has none."""
    return [to_plain(_state_of(layer)) for layer in _layers(env)]


def set_plain_state(env: gymnasium.Env, states: Any) -> None:
    """Restore a state from `plain_state_of`. Raises ValueError, or an error of the environment, if that fails."""
    layers = list(_layers(env))
    if not isinstance(states, list) or len(states) != len(layers):
        raise ValueError("it belongs to an environment with other wrappers")
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
    """Whether its own class defines it; a base class's method would miss attributes of the subclass."""
    return "get_plain_state" in vars(type(layer))


def _state_of(layer: gymnasium.Env) -> Any:
    if _defines_state(layer):
        return layer.get_plain_state()  # type: ignore[attr-defined]
    return {name: getattr(layer, name) for name in _names(layer)}


def _names(layer: gymnasium.Env) -> set[str]:
    """The names of the attributes that are its state. Raises NotPlain if they may not be its full state."""
    kind = type(layer)
    if kind not in _WRAPPERS and not kind.__module__.startswith(_ENVIRONMENTS):
        raise NotPlain(f"a {kind.__name__}")
    return {*vars(layer)} - _CONSTANT


def _set_attributes(layer: gymnasium.Env, state: Any) -> None:
    """Raises ValueError if `state` would set a constant attribute or a method."""
    kind = type(layer)
    if not isinstance(state, dict) or any(
        not isinstance(name, str) or name in _CONSTANT or callable(getattr(kind, name, None)) for name in state
    ):
        raise ValueError(f"it belongs to another environment than {kind.__name__}")
    for name in _names(layer) - {*state}:
        delattr(layer, name)
    vars(layer).update(state)
