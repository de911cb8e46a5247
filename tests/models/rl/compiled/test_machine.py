"""Products of any number of rows against NumPy's; the bits of a row are its own."""

import numpy as np
import pytest

from ml_pipeline.models.rl.compiled.machine import LANES, Matrix, jit_entry, product_of_any

MOST_ROWS = 21


@jit_entry
def multiply(a, b, z, c):
    rows, sums = a.shape
    columns = b.shape[1]
    product_of_any(
        Matrix(c.reshape(-1), 0, columns, 1),
        Matrix(z, 0, 0, 1),
        Matrix(a.reshape(-1), 0, sums, 1),
        Matrix(b.reshape(-1), 0, columns, 1),
        (rows, columns, sums),
    )


def product(a, b, z):
    c = np.full((len(a), b.shape[1]), np.nan, np.float32)
    multiply(a, b, z, c)
    return c


@pytest.mark.parametrize("n_vectors", [1, 3, 4, 6, 12])
def test_any_number_of_rows_is_multiplied_with_the_same_bits(n_vectors):
    generator = np.random.default_rng(n_vectors)
    a, b, z = (
        generator.normal(size=shape).astype(np.float32)
        for shape in ((MOST_ROWS, 37), (37, n_vectors * LANES), n_vectors * LANES)
    )
    whole = product(a, b, z)
    np.testing.assert_allclose(whole, a.astype(np.float64) @ b + z, rtol=1e-5, atol=1e-5)
    for n_rows in range(1, MOST_ROWS):
        np.testing.assert_array_equal(product(a[-n_rows:], b, z), whole[-n_rows:])
