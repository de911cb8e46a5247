"""One step of a GRU or LSTM cell for one row, forward and backward; the same as torch's cells.

H units, padded. Every argument is a float32 (H,) of its own but `sums`, (4 H,). Loops touch few arrays each: only then
does the compiler check whether they are apart, and use vectors.
Source: Hochreiter and Schmidhuber 1997, Long Short-Term Memory, with forget gates; Cho et al. 2014, arXiv:1406.1078.
"""

from ml_pipeline.models.rl.compiled.activations import TANH, activate, sigmoid, tanh
from ml_pipeline.models.rl.compiled.machine import Array, f32, jit


@jit
def lstm(sums: Array, carried_before: Array, carried: Array, squashed: Array, hidden: Array) -> None:
    """From sums of i, f, o and g to activations in their place, and to all but carried_before."""
    h = len(hidden)
    i, f, o, g = sums[:h], sums[h : 2 * h], sums[2 * h : 3 * h], sums[3 * h :]
    _sigmoids(sums[: 3 * h])
    activate(g, TANH)
    for j in range(h):
        carried[j] = f[j] * carried_before[j] + i[j] * g[j]
    for j in range(h):
        squashed[j] = tanh(carried[j])
    for j in range(h):
        hidden[j] = o[j] * squashed[j]


@jit
def lstm_backward(sums: Array, carried_before: Array, squashed: Array, slopes: Array, back: Array) -> None:
    """From slopes by the hidden state, and back, those by what is carried, to slopes by the sums, in place of the
    activations, and to those by carried_before, in place of back.
    """
    h = len(slopes)
    i, f, o, g = sums[:h], sums[h : 2 * h], sums[2 * h : 3 * h], sums[3 * h :]
    for j in range(h):
        back[j] += slopes[j] * o[j] * (f32(1.0) - squashed[j] * squashed[j])
    for j in range(h):
        o[j] = slopes[j] * squashed[j] * o[j] * (f32(1.0) - o[j])
    for j in range(h):
        was = i[j]
        i[j] = back[j] * g[j] * was * (f32(1.0) - was)
        g[j] = back[j] * was * (f32(1.0) - g[j] * g[j])
    for j in range(h):
        was = f[j]
        f[j] = back[j] * carried_before[j] * was * (f32(1.0) - was)
        back[j] *= was


@jit
def gru(sums: Array, before: Array, hidden: Array) -> None:
    """From sums of n's input part, r, z and n's state part to activations in place of the first three, and hidden."""
    h = len(hidden)
    n, r, z, of_state = sums[:h], sums[h : 2 * h], sums[2 * h : 3 * h], sums[3 * h :]
    _sigmoids(sums[h : 3 * h])
    for j in range(h):
        n[j] += r[j] * of_state[j]
    activate(n, TANH)
    for j in range(h):
        hidden[j] = n[j] + z[j] * (before[j] - n[j])


@jit
def gru_backward(sums: Array, before: Array, slopes: Array, back: Array) -> None:
    """From slopes by the hidden state, of which back is a part, to slopes by the sums, in place of the activations, and
    to the part of those by `before` that does not go through the sums, in place of back.
    """
    h = len(slopes)
    n, r, z, of_state = sums[:h], sums[h : 2 * h], sums[2 * h : 3 * h], sums[3 * h :]
    for j in range(h):
        slopes[j] += back[j]
    for j in range(h):
        back[j] = slopes[j] * z[j]
    for j in range(h):
        was = z[j]
        z[j] = slopes[j] * (before[j] - n[j]) * was * (f32(1.0) - was)
        n[j] = slopes[j] * (f32(1.0) - was) * (f32(1.0) - n[j] * n[j])
    for j in range(h):
        was = r[j]
        r[j] = n[j] * of_state[j] * was * (f32(1.0) - was)
        of_state[j] = n[j] * was


@jit
def _sigmoids(x: Array) -> None:
    """In place; float32 (n,)."""
    for i in range(len(x)):
        x[i] = sigmoid(x[i])
