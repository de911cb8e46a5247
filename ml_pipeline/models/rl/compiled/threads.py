"""How threads wait for each other: by a count of arrivals that all of them read."""

from typing import Any

from llvmlite import ir
from numba import types

from ml_pipeline.models.rl.compiled.machine import Array, intrinsic, jit

_yield_processor = types.ExternalFunction("sched_yield", types.int32())


@jit
def meet(arrivals: Array, due: int) -> int:
    """Waits until `due` arrivals, with this one, and returns `due`.

    arrivals: int64 (1,). After it, all threads see what any of them wrote before.
    """
    _arrive(arrivals)
    n_looks = 0
    while _arrived(arrivals) < due:
        n_looks += 1
        if n_looks > 2000:  # some 20 us: the other may be waiting for this very core
            _yield_processor()
    return due


@intrinsic
def _arrive(typingctx: Any, arrivals: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        builder.atomic_rmw("add", place, ir.IntType(64)(1), "seq_cst")
        return context.get_dummy_value()

    return types.void(arrivals), generate


@intrinsic
def _arrived(typingctx: Any, arrivals: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(arrivals), generate
