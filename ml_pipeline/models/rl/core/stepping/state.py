"""The whole state of one environment: its wrappers, its generators, and what the caller adds.

Plain data where the environment has such a state, see `plain_state`. All others are written by cloudpickle, so that an
environment needs to support nothing. In these, two kinds of objects are special:
- one whose class says `shared_between_environments = True` (market data) is not written. Restoring takes it from the
  live environment, as the same one by order of appearance.
- one that pickles as its constructor's arguments (`gymnasium.utils.EzPickle`, as LunarLander and MuJoCo do) would
  silently come back as a new one. It is refused.
Opening a pickle runs code that it names. So its type is `PickledState`, which torch's `weights_only` does not read: no
file that was read that way holds a state that could run code.
"""

import io
import pickle
from typing import Any

import gymnasium
from gymnasium.utils import EzPickle

from ml_pipeline.models.rl.core.stepping.by_value import ByValuePickler
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.models.rl.core.stepping.plain_state import plain_state_of, set_plain_state
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
