"""Pickles by value the objects that only this process can import, and keeps the file names of their code.

cloudpickle omits file names since 3.1.3, so that tracebacks show neither the file nor its lines.
"""

import io
from collections.abc import Callable
from types import CodeType
from typing import Any, ClassVar

import cloudpickle


def dumps(value: Any) -> bytes:
    """`cloudpickle.dumps` with `ByValuePickler`."""
    sink = io.BytesIO()
    ByValuePickler(sink).dump(value)
    return sink.getvalue()


def _reduce_code(code: CodeType) -> tuple[Callable[..., CodeType], tuple[Any, ...]]:
    make, arguments = cloudpickle.Pickler.dispatch_table[CodeType](code)
    if code.co_filename in arguments:
        return make, arguments
    return _with_file_name, (make, arguments, code.co_filename)


def _with_file_name(make: Callable[..., CodeType], arguments: tuple[Any, ...], file_name: str) -> CodeType:
    return make(*arguments).replace(co_filename=file_name)


class ByValuePickler(cloudpickle.Pickler):
    """cloudpickle's pickler with protocol 5."""

    dispatch_table: ClassVar[Any] = cloudpickle.Pickler.dispatch_table.new_child({CodeType: _reduce_code})

    def __init__(self, sink: io.BytesIO) -> None:
        super().__init__(sink, protocol=5)
