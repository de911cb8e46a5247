"""Gymnasium spaces: encoding observations as numbers, fitting actions, and converting spaces to plain data and back.

Checkpoints hold plain data, which torch loads with `weights_only`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError

Array = np.ndarray
# For libraries with their own kinds of spaces: a wrapper that removes these parts of an observation.
_WRAPPERS = {"minigrid": "minigrid.wrappers:ImgObsWrapper"}


class UnsupportedSpace(UserError):
    """No network fits these observations or actions."""


def observation_encoder(space: spaces.Space, *, dtype: type = np.float32) -> tuple[Callable[[Any], Array], int]:
    """A function from a batch of observations to an array (N, D) of `dtype`, and D.

    Numbers are flattened, choices become one-hot vectors, and the parts of a Dict or Tuple are concatenated. The
    function also takes a single observation, and returns (1, D). It may return a view of its argument.
    space: of a single environment. dtype: np.uint8 if every part is an image, else float32.
    Raises UnsupportedSpace for spaces without a fixed size.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        size = math.prod(space.shape)
        return lambda batch: np.asarray(batch, dtype=dtype).reshape(-1, size), size
    if isinstance(space, spaces.Discrete):
        one_hot: Array = np.eye(int(space.n), dtype=dtype)
        return lambda batch: one_hot[np.asarray(batch).reshape(-1) - space.start], int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        choices, size = zip(space.nvec.ravel(), space.start.ravel(), strict=True), space.nvec.size
        parts: dict[Any, spaces.Space] = {i: spaces.Discrete(n, start=start) for i, (n, start) in enumerate(choices)}
        return _side_by_side(parts, lambda batch, i: np.asarray(batch).reshape(-1, size)[:, i], dtype)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        named = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return _side_by_side(dict(named), lambda batch, key: batch[key], dtype)
    raise _not_of_fixed_size(space)


def batch_size(space: spaces.Space, observation: Any) -> int | None:
    """N for a batch of N observations, None for a single one. space: of a single environment.

    Raises UserError if the observation has another form or shape, or parts of several sizes.

    >>> batch_size(spaces.Box(-1, 1, (3,)), [0.0, 0.5, 1.0]), batch_size(spaces.Discrete(2), [0, 1, 1, 0])
    (None, 4)
    """
    sizes = set(_batch_sizes(space, observation, "an observation"))
    if len(sizes) != 1:
        found = ", ".join(sorted("one observation" if n is None else f"a batch of {n}" for n in sizes))
        raise UserError(f"The parts of an observation must have equally many rows, but are {found}.")
    return sizes.pop()


def _batch_sizes(space: spaces.Space, part: Any, name: str) -> Iterator[int | None]:
    """`batch_size` of each part of an observation that is not a Dict or Tuple."""
    received = type(part).__name__
    if isinstance(space, spaces.Dict) and isinstance(part, Mapping) and space.spaces.keys() <= part.keys():
        for key, inner in space.spaces.items():
            yield from _batch_sizes(inner, part[key], f'the part "{key}" of {name}')
        return
    if isinstance(space, spaces.Tuple) and isinstance(part, tuple | list) and len(part) == len(space):
        for i, inner in enumerate(space.spaces):
            yield from _batch_sizes(inner, part[i], f"part {i} of {name}")
        return
    if not isinstance(part, Mapping | tuple) and not isinstance(space, spaces.Dict | spaces.Tuple):
        shape = tuple(np.shape(part))
        if shape == space.shape or shape[1:] == space.shape:
            yield None if shape == space.shape else shape[0]
            return
        received = f"shape {shape}"
    remedy = "; reset() returns the observation and a dict, so pass only the first" if isinstance(part, tuple) else ""
    raise UserError(
        f"Expected {name} in {space_name(space)}, or a batch of them with one more dimension in front, but got "
        f"{received}{remedy}."
    )


def flat_size(space: spaces.Space, key: str | None = None) -> int:
    """The number of columns of a space other than Dict and Tuple; key: its name if it is a part of one.

    Raises UnsupportedSpace if the space has no fixed size.
    """
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise _not_of_fixed_size(space, key)
    return spaces.flatdim(space)


def _not_of_fixed_size(space: spaces.Space, key: str | None = None) -> UnsupportedSpace:
    kind = type(space)
    if key is None:
        return UnsupportedSpace(
            f"Observations of {kind.__name__} are not of fixed size; wrap the environment so that it gives a Box, "
            "Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them."
        )
    wrapper = _WRAPPERS.get(kind.__module__.partition(".")[0])
    named = f", such as --wrappers {wrapper}" if wrapper else ""
    return UnsupportedSpace(
        f'The part "{key}" of the observation is of {kind.__name__}, which is not of fixed size; leave it out by a '
        f"wrapper{named}, or turn it into numbers there."
    )


def _side_by_side(
    parts: dict[Any, spaces.Space], pick: Callable[[Any, Any], Any], dtype: type
) -> tuple[Callable[[Any], Array], int]:
    encoders = {key: observation_encoder(part, dtype=dtype) for key, part in parts.items()}

    def encode(batch: Any) -> Array:
        return np.concatenate([encoder(pick(batch, key)) for key, (encoder, _) in encoders.items()], axis=1)

    return encode, sum(size for _, size in encoders.values())


def leaves_of(space: spaces.Space) -> list[spaces.Space]:
    """The spaces within a Dict or Tuple, at any depth, in the order of their columns; for other spaces, the space."""
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in leaves_of(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in leaves_of(part)]
    return [space]


def action_fitter(space: spaces.Space, *, squash: bool = False) -> Callable[[Array], Any]:
    """A function from a batch of the policy's actions to a batch of actions for the environments.

    space: of a single environment. Discrete: from int64 (N,), which count from 0, to actions that count from the start
    of the space. Box: from float32 (N, A) to the shape and dtype of the space, clipped to its bounds or, with `squash`,
    mapped into them by tanh. MultiDiscrete, MultiBinary, Dict and Tuple: from float32 (N, K), parts in columns.
    Raises UnsupportedSpace for other spaces, and for a Box without bounds if `squash` is on.
    """
    if isinstance(space, spaces.Discrete):
        start = space.start
        return (lambda actions: actions) if start == 0 else (lambda actions: actions + start)
    fit, _ = _columns_fitter(space, squash)
    return fit


def _columns_fitter(space: spaces.Space, squash: bool) -> tuple[Callable[[Array], Any], int]:
    """`action_fitter` for actions in columns, and the number of columns."""
    if isinstance(space, spaces.Discrete):
        first = space.start
        return lambda columns: columns[:, 0].astype(np.int64) + first, 1
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        shape, start = (-1, *space.shape), getattr(space, "start", 0)
        return lambda columns: (columns.reshape(shape) + start).astype(space.dtype), math.prod(space.shape)
    if isinstance(space, spaces.Box):
        return (_squashing if squash else _clipping)(space), math.prod(space.shape)
    if isinstance(space, spaces.Dict):
        fitters = [_columns_fitter(part, squash) for part in space.spaces.values()]
        keys = list(space.spaces)
        return lambda columns: dict(zip(keys, _fit_parts(fitters, columns), strict=True)), sum(n for _, n in fitters)
    if isinstance(space, spaces.Tuple):
        fitters = [_columns_fitter(part, squash) for part in space.spaces]
        return lambda columns: tuple(_fit_parts(fitters, columns)), sum(n for _, n in fitters)
    raise UnsupportedSpace(
        f"Actions of {type(space).__name__} are not supported; wrap the environment so that it takes a Box, Discrete, "
        "MultiDiscrete, MultiBinary, or a Dict or Tuple of them."
    )


def _fit_parts(fitters: Sequence[tuple[Callable[[Array], Any], int]], columns: Array) -> Iterator[Any]:
    start = 0
    for fit, width in fitters:
        yield fit(columns[:, start : start + width])
        start += width


def only_row(batch: Any) -> Any:
    """The action in a batch of one, in the form that a single environment expects."""
    if isinstance(batch, dict):
        return {key: only_row(part) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(only_row(part) for part in batch)
    return batch[0]


def _clipping(space: spaces.Box) -> Callable[[Array], Array]:
    shape, low, high = (-1, *space.shape), space.low, space.high
    return lambda actions: actions.reshape(shape).clip(low, high).astype(space.dtype, copy=False)


def _squashing(space: spaces.Box) -> Callable[[Array], Array]:
    if not space.is_bounded():
        raise UnsupportedSpace(
            f"squash_actions needs bounds on both sides, but the action space is {space}; switch it off, or wrap the "
            "environment so that its actions are bounded."
        )
    shape, low, high = (-1, *space.shape), space.low, space.high
    middle, half = (low + high) / 2, (high - low) / 2
    # Clipped, because rounding errors may exceed the bounds.
    return lambda u: np.clip(middle + half * np.tanh(u.reshape(shape)), low, high).astype(space.dtype, copy=False)


Data = dict[str, Any]
_PLAIN_KEYS = (str, int)


def space_as_data(space: spaces.Space) -> Data | None:
    """Kind, shape, bounds and dtype of a space, and its parts, as numbers, strings and lists.

    None for spaces that no policy supports, and for Dict keys other than strings and numbers.

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
    """The space from the data of `space_as_data`. Raises UserError if the data do not describe a space."""
    try:
        return _READERS[data["kind"]](data)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise UserError(f"These are not the data of a space: {error!r}.") from error


def space_name(space: spaces.Space) -> str:
    """A short description of the space, without bounds.

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
    """One number if all bounds are equal, as for images; else a flat list of all bounds."""
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
    # Older releases of Gymnasium take no dtype.
    dtype = {} if data["dtype"] == "int64" else {"dtype": np.dtype(data["dtype"]).type}
    return spaces.Discrete(data["n"], start=data["start"], **dtype)


def _multi_discrete(data: Mapping[str, Any]) -> spaces.MultiDiscrete:
    dtype = np.dtype(data["dtype"]).type
    nvec, start = (np.array(data[name], dtype=dtype) for name in ("nvec", "start"))
    return spaces.MultiDiscrete(nvec, dtype=dtype, start=start)


def _multi_binary(data: Mapping[str, Any]) -> spaces.MultiBinary:
    return spaces.MultiBinary(data["n"])


def _dict(data: Mapping[str, Any]) -> spaces.Dict:
    # As pairs, because Gymnasium would sort the keys of a mapping, and thus the columns of encoded observations.
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
