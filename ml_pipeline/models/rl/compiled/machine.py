"""Code for the processor: vector sizes, compiler options, matrix products in registers, and a barrier for threads.

Needs numba (extra `fast`), as all of this folder. Products take half of the time of an update, at 115 to 145 of the 166
GFLOP/s of a core. M, K and N are the sizes of a product (M, K) (K, N).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import extending, njit, types
from numba.core import cgutils

Array = np.ndarray
f32 = np.float32

_FEATURES = binding.get_host_cpu_features()
LANES = 16 if _FEATURES.get("avx512f") else 8 if _FEATURES.get("avx2") else 4
"""Floats in a vector."""
ROWS = 8 if LANES == 16 else 4
"""Sums of ROWS x WIDTH stay in registers: 16 of AVX-512's 32, 8 of the others' 16."""
WIDTH = 2 * LANES
HALF = ROWS // 2
BROAD = 4 * LANES
"""Blocks of fewer rows are wider, so that as many sums are in registers: HALF x BROAD."""
TILE = 32
"""Samples that go through the networks together, few enough for the cache; a multiple of ROWS."""

# Nothing compiled here allocates, and callers hold the arrays, so reference counting is off: counting arrays in tuples
# that are built and unpacked tile by tile took 1.4 us of a tile's 28, and a third of the time of `choose`. The option
# is private to numba; if it changes, importing this module fails, and networks run in torch.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}

# The wrapper that makes a function callable from Python is compiled with it, and again with each caller: a fifth of a
# kernel's compile time.
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

jit_entry: Callable[[Any], Any] = njit(**_OPTIONS, fastmath={"contract"}, nogil=True)
"""For functions that Python calls. A product and a sum may become one instruction. NaN stays NaN."""
jit: Callable[[Any], Any] = njit(**_INNER, fastmath={"contract"}, nogil=True)
"""As `jit_entry`, for functions that only compiled ones call."""
jit_sums: Callable[[Any], Any] = njit(**_INNER, fastmath={"contract", "reassoc"}, nogil=True)
"""As `jit`, but sums may be computed in another order, that of the lanes."""
jit_inline: Callable[[Any], Any] = njit(**_OPTIONS, fastmath={"contract"}, inline="always")
intrinsic: Callable[[Any], Any] = extending.intrinsic
"""numba passes the first argument; callers leave it out."""


class Matrix(NamedTuple):
    """A part of a flat array: its start, and the strides of rows and columns."""

    data: Array
    start: int
    row: int
    column: int


def _block(n_rows: int, n_columns: int) -> Any:
    """A function of (c, z, a, b, i, j, k) that computes n_rows x n_columns numbers of C, from row i and column j on.

    It uses LLVM's vector types, since the compiler keeps the sums of plain loops in memory. Measured, 64 x 64 x 64: 145
    GFLOP/s; the best plain loops reached a third.
    """
    n_vectors = n_columns // LANES

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(context.get_data_type(types.float32), LANES)
        *matrices, i, j, n_k = arguments
        size = n_k.type

        def opened(kind: Any, matrix: Any) -> tuple[Any, ...]:
            array, *places = cgutils.unpack_tuple(builder, matrix)
            return context.make_array(kind[0])(context, builder, array).data, *places

        def at(start: Any, n: Any, step: Any) -> Any:
            return builder.add(start, builder.mul(n, step))

        def vectors_of(base: Any, start: Any) -> list[Any]:
            offsets = [builder.add(start, size(v * LANES)) for v in range(n_vectors)]
            return [builder.bitcast(builder.gep(base, [offset]), vector.as_pointer()) for offset in offsets]

        def rows_of(base: Any, start: Any, row: Any, _: Any) -> list[list[Any]]:
            first = builder.add(at(start, i, row), j)
            return [vectors_of(base, at(first, row, size(r))) for r in range(n_rows)]

        def everywhere(value: Any) -> Any:
            nothing = ir.Constant(vector, ir.Undefined)
            one = builder.insert_element(nothing, value, ir.IntType(32)(0))
            return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))

        fused = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        c, z, a, b = map(opened, signature.args, matrices)
        a_data, a_start, a_row, a_column = a
        b_data, b_start, b_row, _ = b
        a_first, b_first = at(a_start, i, a_row), builder.add(b_start, j)
        begun = [[builder.load(place, align=4) for place in row] for row in rows_of(*z)]
        before, loop = builder.block, builder.append_basic_block("k")
        builder.branch(loop)
        builder.position_at_end(loop)
        at_k = builder.phi(size)
        sums = [[builder.phi(vector) for _ in row] for row in begun]
        factors = [builder.load(place, align=4) for place in vectors_of(b_data, at(b_first, at_k, b_row))]
        at_column = at(a_first, at_k, a_column)
        for r, row in enumerate(sums):
            value = builder.load(builder.gep(a_data, [at(at_column, a_row, size(r))]))
            added = [builder.call(fused, [everywhere(value), *pair]) for pair in zip(factors, row, strict=True)]
            for sum_, first, following in zip(row, begun[r], added, strict=True):
                sum_.add_incoming(first, before)
                sum_.add_incoming(following, loop)
            begun[r] = added
        next_k = builder.add(at_k, size(1))
        at_k.add_incoming(size(0), before)
        at_k.add_incoming(next_k, loop)
        builder.cbranch(builder.icmp_signed("<", next_k, n_k), loop, done := builder.append_basic_block("done"))
        builder.position_at_end(done)
        for places, totals in zip(rows_of(*c), begun, strict=True):
            for place, total in zip(places, totals, strict=True):
                builder.store(total, place, align=4)
        return context.get_dummy_value()

    @intrinsic
    def block(typingctx: Any, c: Any, z: Any, a: Any, b: Any, i: Any, j: Any, k: Any) -> Any:  # noqa: PLR0917
        return types.void(c, z, a, b, types.intp, types.intp, types.intp), generate

    return block


_wide_block, _narrow_block = _block(ROWS, WIDTH), _block(ROWS, LANES)
_half_broad_block, _half_narrow_block = _block(HALF, BROAD), _block(HALF, LANES)
_broad_row, _narrow_row = _block(1, BROAD), _block(1, LANES)


@jit
def product(c: Matrix, z: Matrix, a: Matrix, b: Matrix, sizes: tuple[int, int, int]) -> None:
    """C = Z + A B of these sizes (M, N, K), M a multiple of ROWS, N one of LANES, K > 0; Z may be C.

    The columns of C, Z and B are adjacent.
    """
    m, n, k = sizes
    for j in range(0, n, WIDTH):
        for i in range(0, m, ROWS):
            if j + WIDTH <= n:
                _wide_block(c, z, a, b, i, j, k)
            else:
                _narrow_block(c, z, a, b, i, j, k)


@jit
def product_of_any(c: Matrix, z: Matrix, a: Matrix, b: Matrix, sizes: tuple[int, int, int]) -> None:
    """As `product`, for any M. The bits of a row do not depend on M, nor on which row it is."""
    m, n, k = sizes
    whole = m // ROWS * ROWS
    if whole:
        product(c, z, a, b, (whole, n, k))
    i = whole
    while i < m:
        half = i + HALF <= m
        for j in range(0, n, BROAD):
            if j + BROAD <= n:
                if half:
                    _half_broad_block(c, z, a, b, i, j, k)
                else:
                    _broad_row(c, z, a, b, i, j, k)
            else:
                for narrow in range(j, n, LANES):
                    if half:
                        _half_narrow_block(c, z, a, b, i, narrow, k)
                    else:
                        _narrow_row(c, z, a, b, i, narrow, k)
        i += HALF if half else 1


_yield_processor = types.ExternalFunction("sched_yield", types.int32())


@jit
def meet(arrivals: Array, due: int) -> int:
    """A barrier: waits until there are `due` arrivals, including this one; returns `due`.

    arrivals: int64 (1,). Afterwards, each thread sees all earlier writes of the others.
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
