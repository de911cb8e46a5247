"""The arguments of the compiled functions of recurrent networks, besides those of `compiled.arguments`.

T steps, M sequences, B = T * M samples, D observation size, S state size, H units of the memory, padded to LANES,
R rows of a group of sequences, P numbers in a padded vector, C chunks of a minibatch.
"""

from typing import NamedTuple

from numba.np.unsafe.ndarray import to_fixed_tuple

from ml_pipeline.models.rl.compiled.arguments import Networks, Workspace
from ml_pipeline.models.rl.compiled.machine import Array, jit


class Cell(NamedTuple):
    """The places of a cell's parameters in a vector of P numbers, as offsets: weights of inputs, (D, G), and of the
    state, (H, G), then a bias of each, (G,); see `layout`.
    """

    of_inputs: int
    of_state: int
    input_bias: int
    state_bias: int


class Cells(NamedTuple):
    """One cell for each network. places: int64 (n, 4), the columns being `Cell`.

    A step computes 4 H sums, in slots of H. LSTM: i, f, o, g. GRU: n's of the input, r, z, n's of the state. Inputs
    reach the first n_sums, G = 4 H or 3 H of them, the state the last. units: H without padding. inputs: D.
    biases: float32 (n, 4 H), the sums of both.
    """

    is_lstm: bool
    units: int
    padded_units: int
    inputs: int
    padded_inputs: int
    n_sums: int
    places: Array
    biases: Array


class Recurrent(NamedTuple):
    """networks: of perceptrons, whose inputs are the hidden states of the cells."""

    networks: Networks
    cells: Cells


class Learner(NamedTuple):
    """As in `compiled.arguments`, and the cells below the networks."""

    networks: Networks
    ends: Array
    transposed: Array
    means: Array
    squares: Array
    gradients: Array
    cells: Cells


class Sequences(NamedTuple):
    """length: T. observations: float32 (B, D), one step of all sequences after another. starts: bool (B,), where an
    episode starts. state: float32 (M, S), before the first step: of each network its hidden state, of an LSTM followed
    by what its cell carries.
    """

    length: int
    observations: Array
    starts: Array
    state: Array


class Samples(NamedTuple):
    """As in `compiled.arguments`. In each of the orders the samples of a sequence follow each other."""

    actions: Array
    inputs: Array
    orders: Array
    sequences: Sequences


class Packing(NamedTuple):
    """A group of sequences, cut where episodes start into segments, the longest first; then rows, step by step.

    Rows first[t] to first[t + 1] are step t of all segments longer than t, in their order: the row of a segment's step
    before is at the same place of the step before. samples: int64 (R,), of each row. first: int64 (T + 1,). origins:
    int64 (R,), of each segment, the sequence whose state it begins with, -1 for none. For sorting: places, int64
    (T + 1,), of segments by length, and of each segment as it was found its begin and length, int64 (R,).
    """

    samples: Array
    first: Array
    origins: Array
    places: Array
    begins: Array
    lengths: Array


class History(NamedTuple):
    """What a cell did in each row. x: float32 (R * padded D,). sums: float32 (R * 4 H,), then activations, then slopes
    by the sums. All others are float32 (R * H,): the hidden state before, and what the cell carried before; what it
    carries then, and tanh of that; its hidden state; slopes by this; and slopes of the carried part, by segment.
    """

    x: Array
    sums: Array
    before: Array
    carried_before: Array
    carried: Array
    squashed: Array
    hidden: Array
    slopes: Array
    back: Array


class Rows(NamedTuple):
    """The group of sequences that goes through the networks together. longest: steps of its longest segment."""

    sequences: Sequences
    packing: Packing
    history: History
    longest: int


class Outputs(NamedTuple):
    """parameters: float32 (B, A), of the distribution. values: float32 (B,), or none at all. states: float32 (B, S),
    after each step.
    """

    parameters: Array
    values: Array
    states: Array


class RecurrentWorkspace(NamedTuple):
    """Memory of one thread, for a group. bias_slopes: float32 (4 H,)."""

    heads: Workspace
    packing: Packing
    history: History
    bias_slopes: Array


@jit
def cell_of(cells: Cells, n: int) -> Cell:
    """The cell of network n."""
    return Cell(*to_fixed_tuple(cells.places[n], 4))  # type: ignore[call-arg]  # numba adds the first
