"""A row's numbers depend on its own seed and on how many it drew, and are spread evenly."""

import importlib.util

import numpy as np
import pytest

from ml_pipeline.runtime.seeding import advanced, below, mixed, row_generators, within

N = 4096


def numbers(seed, n_rows, n_numbers):
    """(n_rows, n_numbers), each row's one after another."""
    states = row_generators(seed, n_rows)
    return np.stack([mixed(advanced(states, k)) for k in range(1, n_numbers + 1)], axis=1)


def test_the_numbers_are_those_of_splitmix64():
    """The first five of the state 1234567, as the reference implementation in C prints them."""
    states = np.array([1234567])
    drawn = [int(mixed(advanced(states, k))[0]) % 2**64 for k in range(1, 6)]
    assert drawn == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    np.testing.assert_array_equal(mixed(advanced(advanced(states, 3), 2)), mixed(advanced(states, 5)))


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 2, 2**64 - 3, 10**40])
def test_a_row_is_seeded_by_the_seed_plus_its_index(seed):
    whole = row_generators(seed, 9)
    assert whole.dtype == np.int64
    np.testing.assert_array_equal(row_generators(seed + 4, 5), whole[4:])
    assert len({*whole.tolist(), *row_generators(seed + 9, 9).tolist()}) == 18


def test_tensors_and_machine_code_draw_the_same_bits():
    import torch

    states = row_generators(5, N)
    expected = mixed(advanced(states, 3))
    tensors = torch.from_numpy(states)
    drawn = mixed(advanced(tensors, 3))
    np.testing.assert_array_equal(drawn.numpy(), expected)
    np.testing.assert_array_equal(below(500, drawn).numpy(), below(500, expected))
    np.testing.assert_array_equal(states, row_generators(5, N))  # nothing handed in is changed
    if importlib.util.find_spec("numba") is not None:
        from ml_pipeline.trading.accounts.compiled_kernel import compiled_mixed

        np.testing.assert_array_equal(compiled_mixed()(advanced(states, 3)), expected)


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return ((counts - expected) ** 2 / expected).sum()


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_numbers_are_even_over_rows_and_over_draws(seed):
    """Chi-square with 99 degrees of freedom lies between 50 and 170 but for one in 10,000 times."""
    drawn = below(100, numbers(seed, 2000, 50))
    for part in (drawn[:, 0], drawn[:, 49], drawn[:40], drawn[-40:], drawn):
        counts = np.bincount(part.ravel(), minlength=100)
        assert len(counts) == 100
        assert 50 < chi_square(counts) < 170


def test_neighbouring_rows_draws_and_seeds_are_independent():
    drawn = numbers(3, 2000, 50) * 2.0**-64
    others = numbers(2003, 2000, 50) * 2.0**-64
    pairs = {
        "rows": (drawn[1:], drawn[:-1]),
        "draws": (drawn[:, 1:], drawn[:, :-1]),
        "episodes": (drawn[:, 4:], drawn[:, :-4]),
        "seeds": (drawn, others),
    }
    for name, (one, other) in pairs.items():
        correlation = np.corrcoef(one.ravel(), other.ravel())[0, 1]
        assert abs(correlation) < 5 / np.sqrt(one.size), name


def test_each_bit_is_set_half_of_the_time():
    drawn = numbers(1, 1000, 10).ravel().view(np.uint64)
    shares = [((drawn >> np.uint64(bit)) & np.uint64(1)).mean() for bit in range(64)]
    np.testing.assert_allclose(shares, 0.5, atol=5 * 0.5 / np.sqrt(len(drawn)))


def test_limits_are_reached_and_not_passed():
    drawn = numbers(2, 1000, 10)
    limits = np.array([1, 2, 7, 2**31])[:, None, None]
    found = below(limits, drawn)
    assert (found >= 0).all()
    assert (found < limits).all()
    assert [len(np.unique(each)) for each in found[:3]] == [1, 2, 7]
    assert found[3].max() > 0.999 * 2**31
    assert below(5, np.array([-1, 0])).tolist() == [4, 0]  # of all bits set, and of none
    floats = within(2.0, 10.0, drawn.astype(float))
    assert 2.0 <= floats.min() < 2.01
    assert 9.99 < floats.max() <= 10.0
    assert within(0.0, 3.0, np.array([-(2.0**63), 0.0, 2.0**63])).tolist() == [0.0, 1.5, 3.0]
