"""A whole update of two perceptrons, compiled: every minibatch of every epoch, from gathering its rows to Adam's step.
And their outputs, up to actions that are drawn.

Needs numba (extra `fast`); import it from `compiled_steps` alone. Everything lies in one file, since numba compiles
anew, in some ten seconds, when the file of a cached function changes, and only then. The mathematics is that of
`ppo_loss`, `distributions` and `flat_adam`, which the tests hold it against; parameters, gradients and moments are
float32, the loss of a sample is float64. Nothing here assumes finite numbers: a NaN comes out as NaN.

Measured, 20,480 samples of a 64x64 network in minibatches of 256: 18 ms in one thread and 12 ms in two, against 42 ms
in torch; in minibatches of 64, 21 and 17 ms against 92. Half of it are matrix products, at 115 to 145 GFLOP/s a core
of 166.

Samples go through the networks in tiles of TILE rows, small enough for the caches. Each minibatch is cut into as many
chunks as there are gradient buffers, whoever computes them, and buffers are added up in order: the number of threads
changes no bit. K, M and N are the sizes of products (M, K) (K, N); all matrices are rows in flat arrays.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.unsafe.ndarray import to_fixed_tuple

Array = np.ndarray

_FEATURES = binding.get_host_cpu_features()
LANES = 16 if _FEATURES.get("avx512f") else 8 if _FEATURES.get("avx2") else 4
ROWS = 8 if LANES == 16 else 4
"""Sums of ROWS x WIDTH stay in registers: 16 of AVX-512's 32, 8 of the others' 16."""
WIDTH = 2 * LANES
TILE = 32

_jit: Callable[[Any], Any] = njit(error_model="numpy", fastmath={"contract"}, nogil=True)
_jit_sums: Callable[[Any], Any] = njit(error_model="numpy", fastmath={"contract", "reassoc"}, nogil=True)
_jit_inline: Callable[[Any], Any] = njit(error_model="numpy", fastmath={"contract"}, inline="always")
_f32 = np.float32


class Networks(NamedTuple):
    """Actor (0) and critic (1), with L layers each; see `layout`, which says what lies where in vectors of P numbers.

    layers: int64 (2, L, 6), columns being the offset of the weights, that of the bias, inputs, inputs with their
    padding, outputs with theirs, outputs. ends: int64 (3,), where each network's part of the vectors begins and ends.
    transposed: float32 (P,), weights the other way round, for the way back. gradients: float32 (C, P), one a chunk.
    """

    layers: Array
    ends: Array
    log_std: int  # offset, of a Gaussian
    parameters: Array
    transposed: Array
    means: Array
    squares: Array
    gradients: Array


class Acting(NamedTuple):
    """What acting needs of `Networks` and of a `Workspace`: handing over an array takes 0.1 us."""

    layers: Array
    log_std: int
    parameters: Array
    x: Array
    outputs: Array
    row: Array


class Samples(NamedTuple):
    """observations: float32 (B, D). actions: int64 (B,), choices, or float32 (B, A), numbers. inputs: float32 (4, B),
    in the order of `LossInputs`. orders: int64 (E, B), of the samples in each epoch.
    """

    observations: Array
    actions: Array
    inputs: Array
    orders: Array


class Settings(NamedTuple):
    """Infinite limits limit nothing."""

    minibatch_size: int
    is_tanh: bool
    normalizes: bool
    n_steps_before: int
    learning_rate: float
    clip_range: float
    clip_range_vf: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float
    kl_limit: float
    epsilon: float


class Workspace(NamedTuple):
    """One thread's own. x: float32 (TILE * padded inputs,). outputs: float32 (2, L, TILE * W), W the widest layer.
    slopes: float32 (TILE * W,). zeros: float32 (W,). row: float64 (W,).
    """

    x: Array
    outputs: Array
    slopes: Array
    zeros: Array
    row: Array


class Results(NamedTuple):
    """rows: float32 (E, 4, B), in the order of `LossRows`. norms: float64 (n_minibatches,). kls: float64 (C,). squares:
    float64 (2,), of the norm, by network. arrivals: int64 (1,), 0 at first.
    """

    rows: Array
    norms: Array
    kls: Array
    squares: Array
    arrivals: Array


@njit(error_model="numpy", fastmath={"contract"}, nogil=True, cache=True)
def update(thread, n_threads, networks, samples, settings, workspace, results):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Run by each of n_threads at the same time; returns how many minibatches were stepped on.

    It ends early before the step of the first minibatch whose approximate KL is above the limit.
    """
    gradients = networks.gradients
    n_epochs, n_samples = samples.orders.shape
    n_chunks = len(gradients)
    for n in range(thread, 2, n_threads):
        _transpose(n, networks)
    due = n_threads
    _meet(results.arrivals, due)
    done = 0
    for epoch in range(n_epochs):
        order = samples.orders[epoch]
        for first in range(0, n_samples, settings.minibatch_size):
            minibatch = order[first : first + settings.minibatch_size]
            size = len(minibatch)
            mean, scale = _normalization(samples.inputs[1], minibatch) if settings.normalizes else (0.0, 1.0)
            for c in range(thread, n_chunks, n_threads):
                start, stop = c * size // n_chunks, (c + 1) * size // n_chunks
                results.kls[c] = 0.0
                gradients[c] = 0.0
                for tile in range(start, stop, TILE):
                    chosen = minibatch[tile : min(tile + TILE, stop)]
                    rows = results.rows[epoch, :, first + tile :]
                    results.kls[c] += _tile_gradient(
                        chosen, size, mean, scale, networks, samples, settings, gradients[c], workspace, rows
                    )
            due += n_threads
            _meet(results.arrivals, due)
            if results.kls.sum() / size > settings.kl_limit:
                return done
            for n in range(thread, 2, n_threads):
                results.squares[n] = _add_up(gradients, networks.ends[n], networks.ends[n + 1])
            due += n_threads
            _meet(results.arrivals, due)
            norm = math.sqrt(results.squares[0] + results.squares[1])
            results.norms[done] = norm
            done += 1
            for n in range(thread, 2, n_threads):
                _step(n, networks, settings, norm, settings.n_steps_before + done)
                _transpose(n, networks)
            due += n_threads
            _meet(results.arrivals, due)
    return done


@njit(error_model="numpy", fastmath={"contract"}, nogil=True, cache=True)
def choose(acting, is_tanh, observations, noise, actions):  # type: ignore[no-untyped-def]
    """Fills actions with what the actor chooses for observations, float32 (N, D), and noise.

    These are int64 and float32 (N,) of a `Categorical`, both float32 (N, A) of a `DiagonalGaussian`.
    """
    last = acting.layers.shape[1] - 1
    width, n_parameters = acting.layers[0, last, 4], acting.layers[0, last, 5]
    for tile in range(0, len(observations), TILE):
        n = min(TILE, len(observations) - tile)
        _forward_some(0, observations[tile : tile + n], acting, is_tanh, acting)
        outputs = acting.outputs[0, last].reshape(-1, width)
        for s in range(n):
            if actions.ndim == 1:
                actions[tile + s] = _draw(outputs[s, :n_parameters], noise[tile + s], acting.row)
            else:
                for a in range(n_parameters):
                    deviation = math.exp(acting.parameters[acting.log_std + a])
                    actions[tile + s, a] = outputs[s, a] + deviation * noise[tile + s, a]


@njit(error_model="numpy", fastmath={"contract"}, nogil=True, cache=True)
def evaluate(n, acting, is_tanh, observations, outputs):  # type: ignore[no-untyped-def]
    """Fills outputs, float32 (N, O), with what network n gives for observations, float32 (N, D)."""
    last = acting.layers.shape[1] - 1
    width = acting.layers[n, last, 4]
    for tile in range(0, len(observations), TILE):
        some = observations[tile : tile + TILE]
        _forward_some(n, some, acting, is_tanh, acting)
        outputs[tile : tile + len(some)] = acting.outputs[n, last].reshape(-1, width)[: len(some), : outputs.shape[1]]


@_jit
def _forward_some(n, observations, networks, is_tanh, workspace):  # type: ignore[no-untyped-def]
    """A network's outputs for at most TILE observations."""
    x = workspace.x.reshape(TILE, -1)
    for s in range(len(observations)):
        for k in range(observations.shape[1]):
            x[s, k] = observations[s, k]
    _forward(n, -(-len(observations) // ROWS) * ROWS, networks, is_tanh, workspace)


@_jit
def _draw(logits, noise, cumulative):  # type: ignore[no-untyped-def]
    largest = logits.max()
    total = 0.0
    for a in range(len(logits)):
        total += math.exp(float(logits[a] - largest))
        cumulative[a] = total
    chosen = 0
    for a in range(len(logits)):
        chosen += 1 if cumulative[a] <= noise * total else 0
    return chosen


@_jit
def _normalization(advantages, minibatch):  # type: ignore[no-untyped-def]
    """What to subtract, and to multiply with; a minibatch of one is left alone."""
    size = len(minibatch)
    if size < 2:
        return 0.0, 1.0
    mean = 0.0
    for i in minibatch:
        mean += advantages[i]
    mean /= size
    variance = 0.0
    for i in minibatch:
        variance += (advantages[i] - mean) ** 2
    return mean, 1.0 / (math.sqrt(variance / (size - 1)) + 1e-8)


@_jit
def _tile_gradient(chosen, size, mean, scale, networks, samples, settings, gradient, workspace, rows):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Adds the gradient of these samples, fills their columns of `rows` and returns the sum of their KL."""
    n, n_inputs = len(chosen), samples.observations.shape[1]
    n_rows = -(-n // ROWS) * ROWS
    x = workspace.x.reshape(TILE, -1)
    for s in range(n):
        for k in range(n_inputs):
            x[s, k] = samples.observations[chosen[s], k]
    x[n:n_rows] = 0.0
    _forward(0, n_rows, networks, settings.is_tanh, workspace)
    _forward(1, n_rows, networks, settings.is_tanh, workspace)
    kl = _loss_slopes(
        chosen, samples.actions, samples.inputs, size, mean, scale, networks, settings, gradient, workspace, rows
    )
    _backward(0, n_rows, networks, settings.is_tanh, gradient, workspace)
    _backward(1, n_rows, networks, settings.is_tanh, gradient, workspace)
    return kl


@_jit
def _forward(n, n_rows, networks, is_tanh, workspace):  # type: ignore[no-untyped-def]
    weights, last = networks.parameters, networks.layers.shape[1] - 1
    below = workspace.x
    for layer in range(last + 1):
        w, b, inputs, stride, width, _ = to_fixed_tuple(networks.layers[n, layer], 6)
        above = workspace.outputs[n, layer]
        _product(above, 0, width, weights, b, 0, below, 0, stride, 1, weights, w, width, n_rows, width, inputs)
        if layer < last:
            _activate(above[: n_rows * width], is_tanh)
        below = above


@_jit
def _backward(n, n_rows, networks, is_tanh, gradient, workspace):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """From the slopes of the loss by a network's outputs, which stand in their place, to those by its parameters."""
    last = networks.layers.shape[1] - 1
    slopes, spare = workspace.outputs[n, last], workspace.slopes
    for layer in range(last, -1, -1):
        w, b, _, stride, width, outputs = to_fixed_tuple(networks.layers[n, layer], 6)
        for s in range(n_rows):
            _add(gradient[b : b + width], slopes[s * width : (s + 1) * width])
        below = workspace.outputs[n, layer - 1] if layer else workspace.x
        _product(gradient, w, width, gradient, w, width, below, 0, 1, stride, slopes, 0, width, stride, width, n_rows)
        if layer:
            _product(
                spare, 0, stride, workspace.zeros, 0, 0,
                slopes, 0, width, 1, networks.transposed, w, stride, n_rows, stride, outputs,
            )  # fmt: skip
            _through_activation(spare[: n_rows * stride], below[: n_rows * stride], is_tanh)
            slopes, spare = spare, workspace.outputs[n, layer]


@_jit
def _loss_slopes(chosen, actions, inputs, size, mean, scale, networks, settings, gradient, workspace, rows):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Puts the slopes of the loss by the networks' outputs in the place of these; see `ppo_loss_gradients`."""
    last, share, kl = networks.layers.shape[1] - 1, 1.0 / size, 0.0
    actor = workspace.outputs[0, last].reshape(-1, networks.layers[0, last, 4])[:TILE]
    critic = workspace.outputs[1, last].reshape(-1, networks.layers[1, last, 4])[:TILE]
    n_parameters = networks.layers[0, last, 5]
    log_std = networks.parameters[networks.log_std : networks.log_std + n_parameters]
    d_log_std = gradient[networks.log_std : networks.log_std + n_parameters]
    low, high, bound = 1.0 - settings.clip_range, 1.0 + settings.clip_range, settings.clip_range_vf
    d_entropy = -settings.ent_coef * share
    for s in range(len(chosen)):
        i = chosen[s]
        outputs, row = actor[s, :n_parameters], workspace.row[:n_parameters]
        if actions.ndim == 1:
            log_prob, entropy, log_total = _softmax(outputs, actions[i], row)
        else:
            log_prob, entropy = _standardize(outputs, actions[i], log_std, row)
        log_ratio = log_prob - inputs[0, i]
        ratio = math.exp(log_ratio)
        kl += ratio - 1.0 - log_ratio
        advantage = (inputs[1, i] - mean) * scale
        surrogate, clipped = advantage * ratio, advantage * min(max(ratio, low), high)
        d_log_prob = -share * surrogate * (1.0 if surrogate <= clipped else 0.0)
        if actions.ndim == 1:
            _categorical_slopes(d_log_prob, d_entropy, entropy, log_total, row, actions[i], outputs)
        else:
            _gaussian_slopes(d_log_prob, d_entropy, row, log_std, outputs, d_log_std)

        value = float(critic[s, 0])
        residual, moved = value - inputs[2, i], value - inputs[3, i]
        near = residual - moved + min(max(moved, -bound), bound) if abs(moved) > bound else residual
        error, near_error = residual * residual, near * near
        inside = not abs(moved) > bound or error > near_error
        critic[s] = 0.0
        critic[s, 0] = 2.0 * settings.vf_coef * share * residual * (1.0 if inside else 0.0)
        actor[s, n_parameters:] = 0.0

        rows[0, s] = surrogate if surrogate <= clipped else clipped
        rows[1, s] = near_error if near_error > error else error
        rows[2, s] = entropy
        rows[3, s] = log_ratio
    actor[len(chosen) :] = 0.0  # rows that fill up the tile
    critic[len(chosen) :] = 0.0
    return kl


@_jit
def _softmax(logits, action, p):  # type: ignore[no-untyped-def]
    """Fills p; returns the log-probability of the action, the entropy, and what to subtract for log p."""
    largest = float(logits[0])
    for a in range(1, len(logits)):
        largest = max(largest, float(logits[a]))
    total = 0.0
    for a in range(len(logits)):
        p[a] = math.exp(logits[a] - largest)
        total += p[a]
    log_total = math.log(total) + largest
    entropy = 0.0
    for a in range(len(logits)):
        p[a] /= total
        entropy -= p[a] * (logits[a] - log_total)
    return logits[action] - log_total, entropy, log_total


@_jit
def _categorical_slopes(d_log_prob, d_entropy, entropy, log_total, p, action, logits):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    # d log p[a] / d logits = onehot(a) - p;  d H / d logits = -p (log p + H)
    for a in range(len(logits)):
        by_entropy = -p[a] * (logits[a] - log_total + entropy)
        logits[a] = d_log_prob * ((1.0 if a == action else 0.0) - p[a]) + d_entropy * by_entropy


@_jit
def _standardize(means, action, log_std, z):  # type: ignore[no-untyped-def]
    """Fills `z`; returns the log-probability of the action, and the entropy."""
    log_prob = entropy = 0.0
    half_log_two_pi = 0.5 * math.log(2.0 * math.pi)
    for a in range(len(means)):
        z[a] = (float(action[a]) - means[a]) * math.exp(-float(log_std[a]))
        log_prob -= 0.5 * z[a] * z[a] + log_std[a] + half_log_two_pi
        entropy += log_std[a] + 0.5 + half_log_two_pi
    return log_prob, entropy


@_jit
def _gaussian_slopes(d_log_prob, d_entropy, z, log_std, slopes, d_log_std):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    # d log p / d mean = z / std;  d log p / d log_std = z^2 - 1;  d H / d log_std = 1
    for a in range(len(slopes)):
        slopes[a] = d_log_prob * z[a] * math.exp(-float(log_std[a]))
        d_log_std[a] += d_log_prob * (z[a] * z[a] - 1.0) + d_entropy


@_jit
def _step(n, networks, settings, norm, n_steps):  # type: ignore[no-untyped-def]
    """Clips the gradient and steps; see `FlatAdam`, whose single division is this one."""
    ratio = settings.max_grad_norm / (norm + 1e-6)
    correction = math.sqrt(1.0 - 0.999**n_steps)
    part = slice(networks.ends[n], networks.ends[n + 1])
    _adam(
        networks.parameters[part],
        networks.gradients[0, part],
        networks.means[part],
        networks.squares[part],
        _f32(1.0 if ratio > 1.0 else ratio),
        _f32(settings.learning_rate * correction / (1.0 - 0.9**n_steps)),
        _f32(settings.epsilon * correction),
    )


@_jit
def _adam(parameters, gradient, means, squares, scale, size, epsilon):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    for i in range(len(parameters)):
        slope = gradient[i] = gradient[i] * scale
        means[i] += (slope - means[i]) * _f32(0.1)
        squares[i] = squares[i] * _f32(0.999) + slope * slope * _f32(0.001)
        parameters[i] -= size * (means[i] / (math.sqrt(squares[i]) + epsilon))


@_jit
def _add_up(gradients, start, stop):  # type: ignore[no-untyped-def]
    """Adds this part of all to that of the first, in order, and returns the sum of its squares."""
    first = gradients[0, start:stop]
    for c in range(1, len(gradients)):
        _add(first, gradients[c, start:stop])
    return _sum_of_squares(first)


@_jit_sums
def _sum_of_squares(x):  # type: ignore[no-untyped-def]
    total = _f32(0.0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return float(total)


@_jit
def _transpose(n, networks):  # type: ignore[no-untyped-def]
    for layer in range(1, networks.layers.shape[1]):
        w, _, _, stride, width, _ = to_fixed_tuple(networks.layers[n, layer], 6)
        weights = networks.parameters[w : w + stride * width].reshape(stride, width)
        other = networks.transposed[w : w + stride * width].reshape(width, stride)
        for j in range(width):
            for k in range(stride):
                other[j, k] = weights[k, j]


@_jit
def _add(total, part):  # type: ignore[no-untyped-def]
    for i in range(len(total)):
        total[i] += part[i]


@_jit
def _activate(x, is_tanh):  # type: ignore[no-untyped-def]
    if is_tanh:
        for i in range(len(x)):
            x[i] = tanh(x[i])
    else:
        for i in range(len(x)):
            x[i] = _f32(0.0) if x[i] < _f32(0.0) else x[i]


@_jit
def _through_activation(slopes, outputs, is_tanh):  # type: ignore[no-untyped-def]
    if is_tanh:
        for i in range(len(slopes)):
            slopes[i] *= _f32(1.0) - outputs[i] * outputs[i]
    else:
        for i in range(len(slopes)):
            slopes[i] = _f32(0.0) if outputs[i] <= _f32(0.0) else slopes[i]


@_jit_inline
def tanh(x):  # type: ignore[no-untyped-def]
    """float32, to 1.6e-7 of itself, and without a branch, so that it is computed LANES at a time; 0.5 ns each.

    tanh |x| = e / (e + 2) where e = exp(2 |x|) - 1, and exp(y) - 1 = 2^n (exp(r) - 1) + 2^n - 1 where y = n log 2 + r
    and |r| <= log(2) / 2: there seven terms of the series are exact to rounding.
    """
    y = abs(x)
    y = _f32(9.5) if y > _f32(9.5) else y
    y = y + y
    # Added to 1.5 * 2^23, a float has its whole part in the lowest bits.
    shifted = y * _f32(1.4426950408889634) + _f32(12582912.0)
    n = shifted - _f32(12582912.0)
    r = (y - n * _f32(0.693145751953125)) - n * _f32(1.428606765330187e-06)  # log 2 in two parts
    series = _f32(1.0 / 5040.0)
    series = series * r + _f32(1.0 / 720.0)
    series = series * r + _f32(1.0 / 120.0)
    series = series * r + _f32(1.0 / 24.0)
    series = series * r + _f32(1.0 / 6.0)
    series = series * r + _f32(0.5)
    series = series * r * r + r
    whole = _f32(shifted).view(np.int32) - np.int32(0x4B400000 - 127)
    power = np.int32(whole << np.int32(23)).view(_f32)
    e = power * series + (power - _f32(1.0))
    t = e / (e + _f32(2.0))
    return -t if x < _f32(0.0) else t


@_jit
def _product(c, c0, c_row, z, z0, z_row, a, a0, a_row, a_k, b, b0, b_k, m, n, k):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """C = Z + A B; of each a flat array, where it begins, and how far apart rows are and, of A, columns.

    M is a multiple of ROWS, N one of LANES; Z may be C.
    """
    for j in range(0, n, WIDTH):
        for i in range(0, m, ROWS):
            ci, zi, ai = c0 + i * c_row + j, z0 + i * z_row + j, a0 + i * a_row
            if j + WIDTH <= n:
                _wide_product(c, ci, c_row, z, zi, z_row, a, ai, a_row, a_k, b, b0 + j, b_k, k)
            else:
                _narrow_product(c, ci, c_row, z, zi, z_row, a, ai, a_row, a_k, b, b0 + j, b_k, k)


@intrinsic
def _wide_product(typingctx, c, c0, c_row, z, z0, z_row, a, a0, a_row, a_k, b, b0, b_k, k):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """The same for M = ROWS and N = WIDTH, K > 0."""
    return _tile_product(WIDTH // LANES, c, z, a, b)


@intrinsic
def _narrow_product(typingctx, c, c0, c_row, z, z0, z_row, a, a0, a_row, a_k, b, b0, b_k, k):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """The same for M = ROWS and N = LANES, K > 0."""
    return _tile_product(1, c, z, a, b)


def _tile_product(n_vectors: int, c: Any, z: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """Its signature, for these types of arrays, and code in LLVM's vectors: left to itself the compiler keeps sums in
    memory.

    Measured, 64 x 64 x 64: 145 GFLOP/s; the best of plain loops came to a third.
    """
    intp = types.intp
    signature = types.void(c, intp, intp, z, intp, intp, a, intp, intp, intp, b, intp, intp, intp)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        number = context.get_data_type(types.float32)
        vector = ir.VectorType(number, LANES)
        arrays = [i for i, kind in enumerate(signature.args) if isinstance(kind, types.Array)]
        c, z, a, b = (context.make_array(signature.args[i])(context, builder, arguments[i]).data for i in arrays)
        _, c0, c_row, _, z0, z_row, _, a0, a_row, a_k, _, b0, b_k, n_k = arguments
        size = n_k.type

        def vectors_of(base, start):  # type: ignore[no-untyped-def]
            offsets = [builder.add(start, size(v * LANES)) for v in range(n_vectors)]
            return [builder.bitcast(builder.gep(base, [offset]), vector.as_pointer()) for offset in offsets]

        def rows_of(base, start, row):  # type: ignore[no-untyped-def]
            return [vectors_of(base, builder.add(start, builder.mul(row, size(r)))) for r in range(ROWS)]

        def everywhere(value):  # type: ignore[no-untyped-def]
            nothing = ir.Constant(vector, ir.Undefined)
            one = builder.insert_element(nothing, value, ir.IntType(32)(0))
            return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), None))

        fused = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32"
        )
        begun = [[builder.load(place, align=4) for place in row] for row in rows_of(z, z0, z_row)]
        before, loop = builder.block, builder.append_basic_block("k")
        builder.branch(loop)
        builder.position_at_end(loop)
        at_k = builder.phi(size)
        sums = [[builder.phi(vector) for _ in row] for row in begun]
        b_row = [builder.load(p, align=4) for p in vectors_of(b, builder.add(b0, builder.mul(at_k, b_k)))]
        a_column = builder.add(a0, builder.mul(at_k, a_k))
        for r, row in enumerate(sums):
            value = builder.load(builder.gep(a, [builder.add(a_column, builder.mul(a_row, size(r)))]))
            added = [builder.call(fused, [everywhere(value), *pair]) for pair in zip(b_row, row, strict=True)]
            for sum_, first, following in zip(row, begun[r], added, strict=True):
                sum_.add_incoming(first, before)
                sum_.add_incoming(following, loop)
            begun[r] = added
        next_k = builder.add(at_k, size(1))
        at_k.add_incoming(size(0), before)
        at_k.add_incoming(next_k, loop)
        builder.cbranch(builder.icmp_signed("<", next_k, n_k), loop, done := builder.append_basic_block("done"))
        builder.position_at_end(done)
        for places, totals in zip(rows_of(c, c0, c_row), begun, strict=True):
            for place, total in zip(places, totals, strict=True):
                builder.store(total, place, align=4)
        return context.get_dummy_value()

    return signature, generate


_yield_processor = types.ExternalFunction("sched_yield", types.int32())


@_jit
def _meet(arrivals, due):  # type: ignore[no-untyped-def]
    """Waits until this many have arrived in all, this one included. What was written before is then seen by all."""
    _arrive(arrivals)
    n_looks = 0
    while _arrived(arrivals) < due:
        n_looks += 1
        if n_looks > 2000:  # some 20 us: the other may be waiting for this very core
            _yield_processor()


@intrinsic
def _arrive(typingctx, arrivals):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        builder.atomic_rmw("add", place, ir.IntType(64)(1), "seq_cst")
        return context.get_dummy_value()

    return types.void(arrivals), generate


@intrinsic
def _arrived(typingctx, arrivals):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        place = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(place, "seq_cst", 8)

    return types.int64(arrivals), generate
