"""Reads a pickle without running it: classes and functions stay names, and calls stay descriptions.

`pickle.loads` imports and calls whatever a pickle names. Here its instructions only move values on a stack; nothing is
imported and nothing is called. Arrays, dtypes and numbers of NumPy can be rebuilt from their descriptions.
"""

import pickletools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ml_pipeline.config.errors import UserError

_MOST_INSTRUCTIONS = 300_000


@dataclass(frozen=True)
class Name:
    """A class or function that the pickle names, such as "numpy.dtype"."""

    name: str


@dataclass
class Call:
    """A call that the pickle describes: the name that it calls, its arguments, and what it then puts into the object.

    state: for most classes, a dict of attributes. entries: items that are added, as for an OrderedDict.
    """

    name: str
    args: tuple[Any, ...]
    state: Any = None
    entries: dict[Any, Any] = field(default_factory=dict)


def read_inert(pickled: bytes) -> Any:
    """The content of a pickle: numbers, texts, lists, tuples and dicts, and `Name` and `Call` for everything else.

    Entries of dicts whose keys are neither texts nor integers are left out. pickled: of protocol 3 or newer.
    Raises UserError if it is no pickle, is cut short, is too long, or uses instructions that plain data do not need.
    """
    stack = _Stack()
    try:
        for n, (opcode, arg, _) in enumerate(pickletools.genops(pickled)):
            if n > _MOST_INSTRUCTIONS:
                raise UserError(f"the pickle has more than {_MOST_INSTRUCTIONS:,} instructions")
            if opcode.name == "STOP":
                return stack.pop()
            if opcode.name not in _INSTRUCTIONS:
                raise UserError(f"the pickle uses the instruction {opcode.name}, which plain data do not need")
            _INSTRUCTIONS[opcode.name](stack, arg)
    except UserError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError("the pickle is damaged or cut short") from error
    raise UserError("the pickle is cut short")


_MARK = object()


class _Stack(list[Any]):
    """The values that the instructions of a pickle move."""

    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[int, Any] = {}

    def popped(self) -> tuple[Any, Any]:
        """The last two values, in order."""
        last = self.pop()
        return self.pop(), last

    def from_mark(self) -> list[Any]:
        """The values since the last mark."""
        at = len(self) - 1
        while self[at] is not _MARK:  # IndexError without a mark
            at -= 1
        items = self[at + 1 :]
        del self[at:]
        return items

    def remember(self, index: int | None) -> None:
        self.memo[len(self.memo) if index is None else index] = self[-1]

    def make_tuple(self, n: int) -> None:
        self[-n:] = [tuple(self[-n:])]

    def name(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):  # the text of shared tuples can be endless
            raise TypeError("a name that is no text")
        self.append(Name(f"{module}.{name}"))

    def call(self) -> None:
        called, args = self.popped()
        self.append(Call(called.name, args))

    def build(self) -> None:
        state = self.pop()
        self[-1].state = state

    def set_items(self, items: Sequence[Any]) -> None:
        target = self[-1]
        entries = target.entries if isinstance(target, Call) else target
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key, str | int):  # hashing nested tuples can overflow the stack of the process
                entries[key] = value


_Instruction = Callable[[_Stack, Any], object]


def _all(names: str, instruction: _Instruction) -> dict[str, _Instruction]:
    return dict.fromkeys(names.split(), instruction)


_INSTRUCTIONS: Mapping[str, _Instruction] = {
    **_all("PROTO FRAME", lambda stack, arg: None),
    **_all("INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT", lambda stack, arg: stack.append(arg)),
    **_all("UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8", lambda stack, arg: stack.append(arg)),
    **_all("BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8", lambda stack, arg: stack.append(arg)),
    "NONE": lambda stack, arg: stack.append(None),
    "NEWTRUE": lambda stack, arg: stack.append(True),
    "NEWFALSE": lambda stack, arg: stack.append(False),
    **_all("EMPTY_LIST EMPTY_SET", lambda stack, arg: stack.append([])),  # elements of sets may be unhashable here
    "EMPTY_DICT": lambda stack, arg: stack.append({}),
    "EMPTY_TUPLE": lambda stack, arg: stack.append(()),
    "MARK": lambda stack, arg: stack.append(_MARK),
    "POP": lambda stack, arg: stack.pop(),
    **_all("MEMOIZE PUT BINPUT LONG_BINPUT", lambda stack, arg: stack.remember(arg)),
    **_all("GET BINGET LONG_BINGET", lambda stack, arg: stack.append(stack.memo[arg])),
    "TUPLE1": lambda stack, arg: stack.make_tuple(1),
    "TUPLE2": lambda stack, arg: stack.make_tuple(2),
    "TUPLE3": lambda stack, arg: stack.make_tuple(3),
    **_all("TUPLE FROZENSET", lambda stack, arg: stack.append(tuple(stack.from_mark()))),
    "APPEND": lambda stack, arg: stack[-2].append(stack.pop()),
    **_all("APPENDS ADDITEMS", lambda stack, arg: (items := stack.from_mark(), stack[-1].extend(items))),
    "SETITEM": lambda stack, arg: stack.set_items(stack.popped()),
    "SETITEMS": lambda stack, arg: stack.set_items(stack.from_mark()),
    "GLOBAL": lambda stack, arg: stack.name(*arg.split(" ")),
    "STACK_GLOBAL": lambda stack, arg: stack.name(*stack.popped()),
    **_all("REDUCE NEWOBJ", lambda stack, arg: stack.call()),
    "BUILD": lambda stack, arg: stack.build(),
}


def as_array(value: Any) -> np.ndarray:
    """The array that the value describes; a number becomes an array without dimensions.

    Raises UserError if it describes anything else.
    """
    try:
        return _array(value)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
        raise UserError("the pickle has a damaged array") from error


def as_dtype(value: Any) -> np.dtype[Any]:
    """The dtype of numbers that the value describes. Raises UserError if it describes anything else."""
    order: Any = "="
    if isinstance(value, Name) and value.name.startswith("numpy."):
        code = value.name.removeprefix("numpy.")
    elif isinstance(value, Call) and value.name == "numpy.dtype" and isinstance(value.args[0], str):
        code, order = value.args[0], value.state[1] if value.state else "="
    else:
        raise UserError("the pickle has a damaged dtype")
    try:
        dtype = np.dtype(code)
    except TypeError as error:
        raise UserError(f"the pickle has the unknown dtype {ascii(code)[:100]}") from error
    if dtype.kind not in "biuf":
        raise UserError(f"the pickle has an array of {ascii(code)[:100]}, not of numbers")
    return dtype.newbyteorder(order)


def _array(value: Any) -> np.ndarray:
    if isinstance(value, bool | int | float):
        return np.asarray(value)
    if not isinstance(value, Call) or not value.name.startswith("numpy."):
        raise UserError(f"the pickle has {_what(value)} in the place of an array")
    kind = value.name.rpartition(".")[2]
    order: Any = "C"
    if kind == "_reconstruct":
        _, shape, described, is_fortran, raw = value.state
        order = "F" if is_fortran else "C"
    elif kind == "_frombuffer":
        raw, described, shape, order = value.args
    elif kind == "scalar":
        (described, raw), shape = value.args, ()
    else:
        raise UserError(f"the pickle has {_what(value)} in the place of an array")
    array = np.frombuffer(raw, dtype=as_dtype(described)).reshape(shape, order=order)
    return array.astype(array.dtype.newbyteorder("="))


def _what(value: Any) -> str:
    return ascii(value.name)[1:-1][:100] if isinstance(value, Name | Call) else type(value).__name__
