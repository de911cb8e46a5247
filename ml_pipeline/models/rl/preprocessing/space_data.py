"""Gymnasium spaces to plain data, which a checkpoint can hold and torch's `weights_only` reads, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError

Data = dict[str, Any]
_PLAIN_KEYS = (str, int)


def space_as_data(space: spaces.Space) -> Data | None:
    """Kind, shape, bounds and dtype as numbers, strings and lists, and the parts of a Dict or Tuple likewise.

    None for what it cannot describe: kinds that no policy reads, and Dict keys other than strings and numbers.

    >>> space_as_data(spaces.Discrete(3, start=-1))
    {'kind': 'Discrete', 'n': 3, 'start': -1, 'dtype': 'int64'}
    >>> space_as_data(spaces.Box(0, 255, (84, 84), np.uint8))
    {'kind': 'Box', 'shape': [84, 84], 'low': 0, 'high': 255, 'dtype': 'uint8'}
    """
    if isinstance(space, spaces.Dict):
        parts = [[key, space_as_data(part)] for key, part in space.spaces.items()]
        is_plain = all(type(key) in _PLAIN_KEYS and part is not None for key, part in parts)
        return {"kind": "Dict", "parts": parts} if is_plain else None
    if isinstance(space, spaces.Tuple):
        in_order = [space_as_data(part) for part in space.spaces]
        return None if None in in_order else {"kind": "Tuple", "parts": in_order}
    return _leaf_as_data(space)


def space_from_data(data: Mapping[str, Any]) -> spaces.Space:
    """The space that `space_as_data` described. Raises UserError if the data describe none."""
    try:
        return _READERS[data["kind"]](data)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise UserError(f"These are not the data of a space: {error!r}.") from error


def space_name(space: spaces.Space) -> str:
    """The space in a few words, without its bounds.

    >>> space_name(spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(4)))
    'Dict(a: Box(3,), b: Discrete(4))'
    """
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{key}: {space_name(part)}' for key, part in space.spaces.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(map(space_name, space.spaces))})"
    return " ".join(str(space).split())


def _leaf_as_data(space: spaces.Space) -> Data | None:
    if isinstance(space, spaces.Box):
        data = {"shape": list(space.shape), "low": _as_numbers(space.low), "high": _as_numbers(space.high)}
        return {"kind": "Box", **data, "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        data = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"kind": "MultiDiscrete", **data, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": list(space.shape) if len(space.shape) != 1 else int(space.shape[0])}
    return None


def _as_numbers(bounds: np.ndarray) -> Any:
    """One number if all are the same, as the bounds of images are; else all of them, flat."""
    flat = bounds.ravel()
    return flat[0].item() if flat.size and (flat == flat[0]).all() else flat.tolist()


def _bounds(numbers: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    if isinstance(numbers, list):
        return np.array(numbers, dtype=dtype).reshape(shape)
    return np.full(shape, numbers, dtype=dtype)


def _box(data: Mapping[str, Any]) -> spaces.Box:
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    low, high = (_bounds(data[name], shape, dtype) for name in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _discrete(data: Mapping[str, Any]) -> spaces.Discrete:
    # Only newer releases of Gymnasium take a dtype.
    dtype = {} if data["dtype"] == "int64" else {"dtype": np.dtype(data["dtype"]).type}
    return spaces.Discrete(data["n"], start=data["start"], **dtype)


def _multi_discrete(data: Mapping[str, Any]) -> spaces.MultiDiscrete:
    dtype = np.dtype(data["dtype"]).type
    nvec, start = (np.array(data[name], dtype=dtype) for name in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)


def _multi_binary(data: Mapping[str, Any]) -> spaces.MultiBinary:
    return spaces.MultiBinary(data["n"])


def _dict(data: Mapping[str, Any]) -> spaces.Dict:
    # As pairs: of a mapping Gymnasium would sort the keys, and so the columns of an encoded observation.
    return spaces.Dict([(key, space_from_data(part)) for key, part in data["parts"]])


def _tuple(data: Mapping[str, Any]) -> spaces.Tuple:
    return spaces.Tuple([space_from_data(part) for part in data["parts"]])


_READERS = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
    "Dict": _dict,
    "Tuple": _tuple,
}
