"""Sequences cut where episodes start, and their steps side by side: the longer the more rows a product has."""

from ml_pipeline.models.rl.compiled.machine import Array, jit
from ml_pipeline.models.rl.compiled.recurrent.arguments import Packing, Sequences

GROUP = 1024
"""Rows that go through the networks together, few enough for a core's cache; see `sequences_of_group`."""


def sequences_of_group(length: int, n_sequences: int) -> int:
    """How many sequences go together, of n_sequences of this length: at least four, since one alone is slow."""
    return min(max(GROUP // length, 4), n_sequences)


@jit
def pack(chosen: Array, sequences: Sequences, packing: Packing) -> int:
    """Fills packing for these samples, int64 (R,), sequence by sequence; returns the length of the longest segment."""
    length, starts = sequences.length, sequences.starts
    first, places, begins, lengths = packing.first, packing.places, packing.begins, packing.lengths
    n_segments = 0
    places[:] = 0
    for k in range(len(chosen)):
        if k % length == 0 or starts[chosen[k]]:
            begins[n_segments], lengths[n_segments] = k, 0
            n_segments += 1
        lengths[n_segments - 1] += 1
    for s in range(n_segments):
        places[lengths[s]] += 1
    # From how many segments have a length to how many are longer: the place of the first that has it.
    longer = 0
    for t in range(length, -1, -1):
        longer, places[t] = longer + places[t], longer
    first[0] = longest = 0
    while longest < length and places[longest]:
        first[longest + 1] = first[longest] + places[longest]
        longest += 1
    for s in range(n_segments):
        place, begin = places[lengths[s]], begins[s]
        places[lengths[s]] += 1
        # The first sample of a sequence has the sequence's number.
        packing.origins[place] = chosen[begin] if begin % length == 0 and not starts[chosen[begin]] else -1
        for t in range(lengths[s]):
            packing.samples[first[t] + place] = chosen[begin + t]
    return longest
