"""The whole state of one environment: its wrappers, its generators, and what the caller adds.

Plain data if the class of the environment, and that of each wrapper around it, either defines `get_plain_state()` and
`set_plain_state(state)`, or is one of Gymnasium's whose attributes are its whole state: it can be restored without
running code that came with it. All others are written by cloudpickle, so that an environment needs to support nothing.
In these, two kinds of objects are special:
- one whose class says `shared_between_environments = True` (market data) is not written. Restoring takes it from the
  live environment, as the same one by order of appearance.
- one that pickles as its constructor's arguments (`gymnasium.utils.EzPickle`, as LunarLander and MuJoCo do) would
  silently come back as a new one. It is refused.
Opening a pickle runs code that it names. So its type is `PickledState`, which torch's `weights_only` does not read: no
file that was read that way holds a state that could run code.
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
    """A state that is a pickle: restore only what you wrote yourself."""


EnvState = dict[str, Any] | PickledState


def dump(index: int, env: gymnasium.Env, rest: Any) -> EnvState:
    """The state of `env` and `rest`. Raises StateNotAvailable with the environment's `index` and the reason."""
    try:
        return {"layers": plain_state_of(env), "rest": to_plain(rest)}
    except NotPlain:
        return _pickled(index, env, rest)


def load(index: int, live: gymnasium.Env, state: EnvState) -> tuple[gymnasium.Env, Any]:
    """The environment and the rest, as dumped.

    Of plain data it is `live` itself; of a pickle another one, whose shared objects are those of `live`, which is then
    to be dropped. Raises StateNotAvailable where `state` is neither, or of something else.
    """
    try:
        if isinstance(state, PickledState):
            return _unpickled(live, state)
        if not isinstance(state, dict):
            raise ValueError(f"a {type(state).__name__} is no state")
        set_plain_state(live, state["layers"])
        return live, from_plain(state["rest"])
    except Exception as error:  # foreign code may raise anything, and so may a state that is cut short
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
