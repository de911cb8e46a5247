"""The two perceptrons on a tile of samples: forward, and backward from slopes by the outputs to the gradient.

Activations follow torch's definitions. They have no branches, so that LANES numbers are computed at once.
"""

import numpy as np

from ml_pipeline.models.rl.compiled.layout import (
    ELU,
    GELU,
    RELU,
    SILU,
    TANH,
    Activations,
    Learner,
    Networks,
    Workspace,
    last_layer,
    layer_of,
)
from ml_pipeline.models.rl.compiled.machine import LANES, ROWS, TILE, Array, Matrix, f32, jit, jit_inline, product


@jit
def forward_some(n: int, observations: Array, networks: Networks, activations: Activations) -> None:
    """The outputs of network n for at most TILE observations, float32 (N, D)."""
    x = activations.x.reshape(TILE, -1)
    for s in range(len(observations)):
        for k in range(observations.shape[1]):
            x[s, k] = observations[s, k]
    forward(n, whole_blocks(len(observations)), networks, activations)


@jit
def whole_blocks(n: int) -> int:
    """n rounded up to a multiple of ROWS."""
    return -(-n // ROWS) * ROWS


@jit
def forward(n: int, n_rows: int, networks: Networks, activations: Activations) -> None:
    """Fills activations.outputs[n] for the first n_rows observations in activations.x."""
    parameters, last = networks.parameters, last_layer(networks, n)
    below = activations.x
    for i in range(last + 1):
        layer = layer_of(networks, n, i)
        above = activations.outputs[n, i]
        product(
            Matrix(above, 0, layer.width, 1),
            Matrix(parameters, layer.bias, 0, 1),
            Matrix(below, 0, layer.padded_inputs, 1),
            Matrix(parameters, layer.weights, layer.width, 1),
            (n_rows, layer.width, layer.inputs),
        )
        if i < last:
            n_numbers = n_rows * layer.width
            if len(activations.sums):
                copy(above[:n_numbers], activations.sums[n, i])
            activate(above[:n_numbers], networks.activation)
        below = above


@jit
def backward(n: int, n_rows: int, learner: Learner, gradient: Array, workspace: Workspace) -> None:
    """Adds to gradient, float32 (P,). Before the call, the outputs of network n must be replaced by their slopes.

    Overwrites activations.outputs[n].
    """
    networks, activations = learner.networks, workspace.activations
    last = last_layer(networks, n)
    slopes, spare = activations.outputs[n, last], workspace.slopes
    for i in range(last, -1, -1):
        layer = layer_of(networks, n, i)
        width, inputs = layer.width, layer.padded_inputs
        for s in range(n_rows):
            add(gradient[layer.bias : layer.bias + width], slopes[s * width : (s + 1) * width])
        below = activations.outputs[n, i - 1] if i else activations.x
        by_weights = Matrix(gradient, layer.weights, width, 1)
        above = Matrix(slopes, 0, width, 1)
        product(by_weights, by_weights, Matrix(below, 0, 1, inputs), above, (inputs, width, n_rows))
        if i:
            product(
                Matrix(spare, 0, inputs, 1),
                Matrix(workspace.zeros, 0, 0, 1),
                above,
                Matrix(learner.transposed, layer.weights, inputs, 1),
                (n_rows, inputs, layer.outputs),
            )
            kept = activations.sums[n, i - 1] if len(activations.sums) else below
            through_activation(spare[: n_rows * inputs], kept[: n_rows * inputs], networks.activation)
            slopes, spare = spare, activations.outputs[n, i]


@jit
def backward_to_inputs(n: int, n_rows: int, learner: Learner, workspace: Workspace, by_inputs: Matrix) -> None:
    """Fills by_inputs, (n_rows, padded inputs), with the slopes by the inputs; after `backward`."""
    layer = layer_of(learner.networks, n, 0)
    # `backward` leaves the slopes by the first layer's sums in one of these.
    has_more = last_layer(learner.networks, n) > 1
    slopes = workspace.activations.outputs[n, 2] if has_more else workspace.slopes
    product(
        by_inputs,
        Matrix(workspace.zeros, 0, 0, 1),
        Matrix(slopes, 0, layer.width, 1),
        Matrix(learner.transposed, layer.weights, layer.padded_inputs, 1),
        (n_rows, layer.padded_inputs, layer.outputs),
    )


@jit
def transpose(n: int, learner: Learner) -> None:
    """Fills learner.transposed for network n, without its first layer, which the backward pass does not need."""
    transpose_from(1, n, learner)


@jit
def transpose_from(first: int, n: int, learner: Learner) -> None:
    """Fills learner.transposed for network n, from its layer `first` on."""
    for i in range(first, last_layer(learner.networks, n) + 1):
        layer = layer_of(learner.networks, n, i)
        transpose_part(layer.weights, layer.padded_inputs, layer.width, learner)


@jit
def transpose_part(start: int, n_rows: int, n_columns: int, learner: Learner) -> None:
    """Fills learner.transposed for the weights, float32 (n_rows, n_columns), that begin at `start`.

    n_rows is a multiple of ROWS, n_columns one of LANES.
    """
    part = slice(start, start + n_rows * n_columns)
    weights = learner.networks.parameters[part].reshape(n_rows, n_columns)
    other = learner.transposed[part].reshape(n_columns, n_rows)
    # In blocks: rows whose length is a power of two share few lines of the L1 cache.
    for first_j in range(0, n_columns, LANES):
        for first_k in range(0, n_rows, ROWS):
            for j in range(first_j, first_j + LANES):
                for k in range(first_k, first_k + ROWS):
                    other[j, k] = weights[k, j]


@jit
def copy(numbers: Array, to: Array) -> None:
    """numbers: float32 (n,). to: float32, n or more."""
    for i in range(len(numbers)):
        to[i] = numbers[i]


@jit
def add(total: Array, part: Array) -> None:
    """In place; both float32 (n,)."""
    for i in range(len(total)):
        total[i] += part[i]


_LEAK = 0.01


@jit
def activate(x: Array, activation: int) -> None:
    """In place; float32 (n,)."""
    if activation == TANH:
        for i in range(len(x)):
            x[i] = tanh(x[i])
    elif activation == RELU:
        for i in range(len(x)):
            x[i] = f32(0.0) if x[i] < f32(0.0) else x[i]
    elif activation == ELU:
        for i in range(len(x)):
            x[i] = elu(x[i])
    elif activation == GELU:
        for i in range(len(x)):
            x[i] *= normal(x[i])[0]
    elif activation == SILU:
        for i in range(len(x)):
            x[i] *= sigmoid(x[i])
    else:
        for i in range(len(x)):
            x[i] = x[i] if x[i] > f32(0.0) else x[i] * f32(_LEAK)


@jit
def through_activation(slopes: Array, kept: Array, activation: int) -> None:
    """From slopes by the outputs to slopes by the inputs, in place; both float32 (n,).

    kept: the inputs of an activation in `FROM_SUMS`, the outputs of any other.
    """
    if activation == TANH:
        for i in range(len(slopes)):
            slopes[i] *= f32(1.0) - kept[i] * kept[i]
    elif activation == RELU:
        for i in range(len(slopes)):
            slopes[i] = f32(0.0) if kept[i] <= f32(0.0) else slopes[i]
    elif activation == ELU:
        for i in range(len(slopes)):
            slopes[i] = slopes[i] if kept[i] > f32(0.0) else slopes[i] * (kept[i] + f32(1.0))
    elif activation == GELU:
        for i in range(len(slopes)):
            share, density = normal(kept[i])
            slopes[i] *= share + kept[i] * density
    elif activation == SILU:
        for i in range(len(slopes)):
            share = sigmoid(kept[i])
            slopes[i] *= share * (f32(1.0) + kept[i] * (f32(1.0) - share))
    else:
        for i in range(len(slopes)):
            slopes[i] = slopes[i] if kept[i] > f32(0.0) else slopes[i] * f32(_LEAK)


@jit_inline
def tanh(x: np.float32) -> np.float32:
    """float32, with a relative error of 1.6e-7, in 0.5 ns: tanh |x| = e / (e + 2) with e = exp(2 |x|) - 1."""
    y = abs(x)
    y = f32(9.5) if y > f32(9.5) else y
    power, series = _exp(y + y)
    e = power * series + (power - f32(1.0))
    t = e / (e + f32(2.0))
    return -t if x < f32(0.0) else t


@jit_inline
def elu(x: np.float32) -> np.float32:
    """float32, with a relative error of 2e-7."""
    y = f32(0.0) if x > f32(0.0) else x
    y = f32(-20.0) if y < f32(-20.0) else y
    power, series = _exp(y)
    e = power * series + (power - f32(1.0))
    return x if x > f32(0.0) else e


@jit_inline
def sigmoid(x: np.float32) -> np.float32:
    """float32, 1 / (1 + exp(-x)), with a relative error of 3e-7 if |x| <= 87."""
    y = f32(87.0) if x < f32(-87.0) else -x
    y = f32(-87.0) if y < f32(-87.0) else y
    power, series = _exp(y)
    return f32(1.0) / (f32(1.0) + (power + power * series))


@jit_inline
def normal(x: np.float32) -> tuple[np.float32, np.float32]:
    """The distribution function of the standard normal, (1 + erf(x / sqrt(2))) / 2, and its density; float32.

    The errors are 1.5e-7 at most. Source: Abramowitz and Stegun 1964, Handbook of Mathematical Functions, 7.1.26, the
    formula that torch uses for erf.
    """
    z = abs(x) * f32(0.7071067811865476)
    y = -z * z
    y = f32(-87.0) if y < f32(-87.0) else y
    power, series = _exp(y)
    e = power + power * series
    t = f32(1.0) / (f32(1.0) + f32(0.3275911) * z)
    tail = f32(1.061405429)
    tail = tail * t + f32(-1.453152027)
    tail = tail * t + f32(1.421413741)
    tail = tail * t + f32(-0.284496736)
    tail = tail * t + f32(0.254829592)
    tail = f32(0.5) * tail * t * e
    return (tail if x < f32(0.0) else f32(1.0) - tail), f32(0.3989422804014327) * e


@jit_inline
def _exp(y: np.float32) -> tuple[np.float32, np.float32]:
    """power and series of exp(y) = power + power * series, float32, if |y| <= 87.

    exp(y) = 2^n + 2^n (exp(r) - 1) with y = n log 2 + r and |r| <= log(2) / 2; for such r, seven terms of the series
    are exact up to rounding.
    """
    # After adding 1.5 * 2^23, the lowest bits of a float are its integer part.
    shifted = y * f32(1.4426950408889634) + f32(12582912.0)
    n = shifted - f32(12582912.0)
    r = (y - n * f32(0.693145751953125)) - n * f32(1.428606765330187e-06)  # log 2 in two parts
    series = f32(1.0 / 5040.0)
    series = series * r + f32(1.0 / 720.0)
    series = series * r + f32(1.0 / 120.0)
    series = series * r + f32(1.0 / 24.0)
    series = series * r + f32(1.0 / 6.0)
    series = series * r + f32(0.5)
    series = series * r * r + r
    whole = f32(shifted).view(np.int32) - np.int32(0x4B400000 - 127)
    return np.int32(whole << np.int32(23)).view(f32), series
