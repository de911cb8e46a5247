"""The processor's vectors, and how functions are compiled for it. Needs numba (extra `fast`), as all of this folder."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding
from numba import extending, njit

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
"""Fewer rows have as many sums in registers by being broader: HALF x BROAD."""
TILE = 32
"""Samples that go through the networks together, few enough for the cache; a multiple of ROWS."""

# Nothing compiled here allocates, and whoever calls holds the arrays, so that none is counted: counting them, in tuples
# made and taken apart tile by tile, took 1.4 us of a tile's 28, and a third of choosing once. numba's name for it is
# its own; were it to change, importing this fails, and networks go on in torch.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}

# What makes a function callable from Python is compiled with it, and again with each function that calls it: a fifth of
# the seconds that a kernel takes.
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

jit_entry: Callable[[Any], Any] = njit(**_OPTIONS, fastmath={"contract"}, nogil=True)
"""For functions that Python calls. A product and a sum may be one instruction. A NaN comes out as NaN."""
jit: Callable[[Any], Any] = njit(**_INNER, fastmath={"contract"}, nogil=True)
"""As `jit_entry`, for functions that only compiled ones call."""
jit_sums: Callable[[Any], Any] = njit(**_INNER, fastmath={"contract", "reassoc"}, nogil=True)
"""As `jit`, and sums may be taken in another order, that of the lanes."""
jit_inline: Callable[[Any], Any] = njit(**_OPTIONS, fastmath={"contract"}, inline="always")
intrinsic: Callable[[Any], Any] = extending.intrinsic
"""numba passes the first argument; callers leave it out."""
