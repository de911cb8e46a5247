"""Activations of hidden layers, forward and backward, by the definitions of torch.

All are without branches, so that LANES are computed at once.
"""

import numpy as np

from ml_pipeline.models.rl.compiled.machine import Array, f32, jit, jit_inline

TANH, RELU, ELU, GELU, SILU, LEAKY_RELU = range(6)
CODES = {"tanh": TANH, "relu": RELU, "elu": ELU, "gelu": GELU, "silu": SILU, "leaky_relu": LEAKY_RELU}
"""How the kernel calls the activations of `PPOConfig`."""
FROM_SUMS = frozenset({GELU, SILU})
"""Those that fall and rise: their slope follows from the input, a layer's sum, and not from the output."""
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
    """float32, with a relative error of 1.6e-7, in 0.5 ns: tanh |x| = e / (e + 2) where e = exp(2 |x|) - 1."""
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
    """float32, 1 / (1 + exp(-x)), with a relative error of 3e-7 where |x| <= 87."""
    y = f32(87.0) if x < f32(-87.0) else -x
    y = f32(-87.0) if y < f32(-87.0) else y
    power, series = _exp(y)
    return f32(1.0) / (f32(1.0) + (power + power * series))


@jit_inline
def normal(x: np.float32) -> tuple[np.float32, np.float32]:
    """The distribution function of the standard normal, (1 + erf(x / sqrt(2))) / 2, and its density; float32.

    The errors are 1.5e-7 at most. Source: Abramowitz and Stegun 1964, Handbook of Mathematical Functions, 7.1.26, by
    which torch computes erf, too.
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
    """power and series of exp(y) = power + power * series, float32, where |y| <= 87.

    exp(y) = 2^n + 2^n (exp(r) - 1) where y = n log 2 + r and |r| <= log(2) / 2: there seven terms of the series are
    exact to rounding.
    """
    # Added to 1.5 * 2^23, a float has its whole part in the lowest bits.
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
