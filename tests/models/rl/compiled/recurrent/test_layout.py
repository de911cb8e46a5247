"""SequenceArrays cut into segments: every sample has a row, after that of the step before it."""

import numpy as np
import pytest

from ml_pipeline.models.rl.compiled.machine import jit_entry
from ml_pipeline.models.rl.compiled.recurrent.layout import GROUP, Packing, SequenceArrays, pack, sequences_of_group

pack_from_python = jit_entry(pack.py_func)


def packed(starts, chosen):
    """The packing of these sequences of starts, bool (T, M), and the length of the longest segment."""
    length, n_sequences = starts.shape
    order = (np.arange(length) * n_sequences + np.array(chosen)[:, None]).ravel()
    packing = Packing(*(np.full(length * len(chosen) + 1, -7, np.int64) for _ in Packing._fields))
    packing = packing._replace(first=packing.first[: length + 1], places=packing.places[: length + 1].copy())
    sequences = SequenceArrays(
        length, np.zeros((starts.size, 1), np.float32), starts.ravel(), np.zeros((n_sequences, 1))
    )
    return packing, pack_from_python(order, sequences, packing)


def test_the_longest_segment_comes_first():
    # Of three sequences of four steps, 2 and 0 are chosen; an episode starts in step 3 of 2, and in steps 0 and 1 of 0.
    starts = np.zeros((4, 3), bool)
    starts[3, 2] = starts[0, 0] = starts[1, 0] = True
    packing, longest = packed(starts, [2, 0])
    assert longest == 3
    assert packing.first[: longest + 1].tolist() == [0, 4, 6, 8]
    # Step t of sequence m is sample 3 t + m. Segments: 2, 5, 8 and 3, 6, 9, then those of one step, 11 and 0.
    assert packing.samples[:8].tolist() == [2, 3, 11, 0, 5, 6, 8, 9]
    # The first segment goes on from sequence 2's state; 3 follows the start of an episode, and so do 11 and 0.
    assert packing.origins[:4].tolist() == [2, -1, -1, -1]


@pytest.mark.parametrize("seed", range(30))
def test_every_row_follows_that_of_the_step_before(seed):
    generator = np.random.default_rng(seed)
    length, n_sequences = generator.integers(1, 20, 2)
    starts = generator.random((length, n_sequences)) < generator.choice([0.0, 0.1, 0.5, 1.0])
    chosen = generator.permutation(n_sequences)[: generator.integers(1, n_sequences + 1)]
    packing, longest = packed(starts, chosen)
    n_rows, first = length * len(chosen), packing.first[: longest + 1]
    assert first[-1] == n_rows
    samples = packing.samples[:n_rows]
    assert sorted(samples) == sorted((np.arange(length)[:, None] * n_sequences + chosen).ravel())
    counts = np.diff(first)
    assert (np.diff(counts) <= 0).all()
    for t, (begin, count) in enumerate(zip(first, counts, strict=False)):
        own = samples[begin : begin + count]
        if t:
            before = samples[first[t - 1] : first[t - 1] + count]
            assert (own == before + n_sequences).all()
            assert not starts.ravel()[own].any()
        else:
            begins = (own < n_sequences) & ~starts.ravel()[own]
            assert (packing.origins[:count] == np.where(begins, own, -1)).all()
            assert (begins | starts.ravel()[own]).all()


def test_a_group_is_of_few_rows_but_of_four_sequences():
    assert [sequences_of_group(length, 100) for length in (16, 128, 4096)] == [GROUP // 16, GROUP // 128, 4]
    assert sequences_of_group(16, 3) == 3
