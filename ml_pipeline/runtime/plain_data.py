"""Converts values to plain data and back: numbers, strings, lists, tuples and dicts, which load without running code.

Bytes and NumPy's arrays, scalars and generators become a dict whose only key is None; no other value has that key.
Bytes are stored as Latin-1 strings, because torch's `weights_only` rejects an empty `bytes` in a checkpoint.
"""

import math
from typing import Any

import numpy as np

_SIMPLE = (type(None), bool, int, float, str)
_KINDS = "biufcmMSU"  # dtype kinds that hold no Python objects
_BIT_GENERATORS: dict[str, type[np.random.BitGenerator]] = {
    each.__name__: each
    for each in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


class NotPlain(TypeError):
    """A value that cannot be converted to plain data."""


def to_plain(value: Any) -> Any:
    """A copy of `value` as plain data. Raises NotPlain if `from_plain` could not restore the same types.

    >>> to_plain((1, "a", [2.5, None]))
    (1, 'a', [2.5, None])
    >>> to_plain(np.array([1, 2], np.uint8))
    {None: ('|u1', (2,), '\\x01\\x02')}
    """
    try:
        return _to_plain(value)
    except RecursionError:
        raise NotPlain("a value that holds itself, or too deep a one") from None


def _to_plain(value: Any) -> Any:
    kind = type(value)
    if kind in _SIMPLE:
        return value
    if kind is list or kind is tuple:
        return kind(map(_to_plain, value))
    if kind is dict:
        if not all(type(key) in (str, int) for key in value):
            raise NotPlain("a dict with keys other than texts and whole numbers")
        return {key: _to_plain(each) for key, each in value.items()}
    if isinstance(value, np.generic) or kind is np.ndarray:
        if value.dtype.kind not in _KINDS:
            raise NotPlain(f"an array of {value.dtype}")
        return {None: (value.dtype.str, None if kind is not np.ndarray else value.shape, _text(value.tobytes()))}
    if kind is bytes:
        return {None: ("bytes", _text(value))}
    if kind is np.random.Generator and type(value.bit_generator).__name__ in _BIT_GENERATORS:
        return {None: ("generator", _to_plain(dict(value.bit_generator.state)))}
    raise NotPlain(f"a {kind.__name__}")


def from_plain(data: Any) -> Any:
    """The value that `to_plain` converted to `data`. Runs no code; raises ValueError if `data` did not come from it.

    >>> from_plain({None: ('|u1', (2,), '\\x01\\x02')})
    array([1, 2], dtype=uint8)
    """
    kind = type(data)
    if kind in _SIMPLE:
        return data
    if kind is list or kind is tuple:
        return kind(map(from_plain, data))
    if kind is dict and None in data:
        return _from_marked(data[None])
    if kind is dict:
        return {key: from_plain(each) for key, each in data.items()}
    raise ValueError(f"a {kind.__name__} is no plain data")


def _text(values: bytes) -> str:
    return values.decode("latin-1")


def _from_marked(parts: Any) -> Any:
    match parts:
        case ("bytes", str() as text):
            return text.encode("latin-1")
        case ("generator", dict() as state):
            state = from_plain(state)
            bit_generator = _BIT_GENERATORS.get(str(state.get("bit_generator")))
            if bit_generator is None:
                raise ValueError(f"there is no generator {state.get('bit_generator')!r}")
            generator = np.random.Generator(bit_generator(0))
            generator.bit_generator.state = state
            return generator
        case (str() as name, (tuple() | None) as shape, str() as text):
            dtype, values = np.dtype(name), text.encode("latin-1")
            if dtype.kind not in _KINDS or len(values) != dtype.itemsize * math.prod(shape or ()):
                raise ValueError(f"{len(values)} bytes are no array {shape} of {name}")
            array = np.frombuffer(values, dtype).reshape(shape or ()).copy()
            return array[()] if shape is None else array
    raise ValueError("neither bytes nor an array nor a generator")
