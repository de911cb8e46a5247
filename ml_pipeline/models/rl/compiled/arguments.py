"""The arguments of compiled functions: named tuples of arrays, which numba unpacks at no cost.

B samples, D observation size, A numbers of an action, E epochs, L layers of a network, P numbers in a padded vector,
C chunks of a minibatch, W the widest layer.
"""

from typing import NamedTuple

from numba.np.unsafe.ndarray import to_fixed_tuple

from ml_pipeline.models.rl.compiled.machine import Array, jit


class Layer(NamedTuple):
    """The place of a layer in a vector of P numbers: weights (inputs, outputs), then the bias; see `layout`."""

    weights: int  # offset
    bias: int  # offset
    inputs: int
    padded_inputs: int
    width: int  # outputs with their padding
    outputs: int


class Networks(NamedTuple):
    """Actor (0) and critic (1), or one network for both, whose last output is the value. layers: int64 (n, L, 6), the
    columns being `Layer`, and 0 after the last layer of a network that has fewer than L. log_std: offset, of a
    Gaussian. activation: of `activations.CODES`. parameters: float32 (P,).
    """

    layers: Array
    log_std: int
    activation: int
    parameters: Array


class Learner(NamedTuple):
    """ends: int64 (3,), where each network's part of the vectors begins and ends. transposed: float32 (P,), transposed
    weights, for the backward pass. means, squares: float32 (P,), Adam's moments. gradients: float32 (C, P).
    """

    networks: Networks
    ends: Array
    transposed: Array
    means: Array
    squares: Array
    gradients: Array


class Activations(NamedTuple):
    """For one tile. x: float32 (TILE * padded inputs,), the observations. outputs: float32 (2, L, TILE * W). sums: of
    the hidden layers, as outputs; empty where acting, and where no slope needs them.
    """

    x: Array
    outputs: Array
    sums: Array


class Workspace(NamedTuple):
    """Memory of one thread. slopes: float32 (TILE * W,). zeros: float32 (W,). row: float64 (W,)."""

    activations: Activations
    slopes: Array
    zeros: Array
    row: Array


class Acting(NamedTuple):
    """The parts of `Networks` and `Workspace` that acting needs: an array argument costs 0.1 us, a nested tuple 0.4."""

    layers: Array
    log_std: int
    activation: int
    parameters: Array
    x: Array
    outputs: Array
    row: Array


class Worker(NamedTuple):
    """One of n_threads; number: from 0."""

    number: int
    n_threads: int
    workspace: Workspace


class Samples(NamedTuple):
    """observations: float32 (B, D). actions: int64 (B,), choices, or float32 (B, A), numbers. inputs: float32 (4, B),
    in the order of `LossInputs`. orders: int64 (E, B), of the samples in each epoch.
    """

    observations: Array
    actions: Array
    inputs: Array
    orders: Array


class Settings(NamedTuple):
    """An infinite limit means no limit. sequence_length: samples in a row that a chunk has all or none of."""

    minibatch_size: int
    sequence_length: int
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


class Results(NamedTuple):
    """rows: float32 (E, 4, B), in the order of `LossRows`. norms: float64 (n_minibatches,). kls: float64 (C, U), by
    unit of work on a chunk. squares: float64 (2,), of the norm, by network. arrivals: int64 (1,), 0 at first.
    """

    rows: Array
    norms: Array
    kls: Array
    squares: Array
    arrivals: Array


@jit
def layer_of(networks: Networks, n: int, i: int) -> Layer:
    """Layer i of network n."""
    return Layer(*to_fixed_tuple(networks.layers[n, i], 6))  # type: ignore[call-arg]  # numba adds the first


@jit
def last_layer(networks: Networks, n: int) -> int:
    """The index of the last layer of network n."""
    last = networks.layers.shape[1] - 1
    while networks.layers[n, last, 5] == 0:
        last -= 1
    return last


@jit
def parts_of(acting: Acting) -> tuple[Networks, Activations]:
    """Its arrays as the two tuples."""
    networks = Networks(acting.layers, acting.log_std, acting.activation, acting.parameters)
    return networks, Activations(acting.x, acting.outputs, acting.outputs[:0])
