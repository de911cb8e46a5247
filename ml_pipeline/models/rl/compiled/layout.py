"""The arguments of compiled functions, named tuples that numba unpacks at no cost, and the layout of parameters.

B samples, D observation size, A numbers of an action, E epochs, L layers of a network, P numbers in a padded vector,
C chunks of a minibatch, W the widest layer.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple
from torch import Tensor, nn

from ml_pipeline.models.rl.compiled.machine import LANES, ROWS, TILE, Array, jit
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.mlp import activation_in

TANH, RELU, ELU, GELU, SILU, LEAKY_RELU = range(6)
CODES = {"tanh": TANH, "relu": RELU, "elu": ELU, "gelu": GELU, "silu": SILU, "leaky_relu": LEAKY_RELU}
"""The kernel's codes for the activations of `PPOConfig`."""
FROM_SUMS = frozenset({GELU, SILU})
"""Activations that are not monotonic: their slope needs the input, a layer's sum, not the output."""


class Layer(NamedTuple):
    """The offsets of a layer in a vector of P numbers: weights (inputs, outputs), then the bias; see `Layout`."""

    weights: int  # offset
    bias: int  # offset
    inputs: int
    padded_inputs: int
    width: int  # outputs with their padding
    outputs: int


class Networks(NamedTuple):
    """Actor (0) and critic (1), or one network for both, whose last output is the value. layers: int64 (n, L, 6), the
    columns being `Layer`, and 0 after the last layer of a network that has fewer than L. log_std: offset, for a
    Gaussian. activation: one of `CODES`. parameters: float32 (P,).
    """

    layers: Array
    log_std: int
    activation: int
    parameters: Array


class Learner(NamedTuple):
    """ends: int64 (3,), the begin and end of each network's part of the vectors. transposed: float32 (P,), transposed
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
    the hidden layers, as outputs; empty for acting, and if no slope needs them.
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
    """The parts of `Networks` and `Workspace` for acting: passing an array costs 0.1 us, a nested tuple 0.4."""

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
    """observations: float32 (B, D). actions: int64 (B,) if discrete, else float32 (B, A). inputs: float32 (4, B),
    in the order of `LossInputs`. orders: int64 (E, B), the order of the samples in each epoch.
    """

    observations: Array
    actions: Array
    inputs: Array
    orders: Array


class Settings(NamedTuple):
    """An infinite limit means no limit. sequence_length: samples per sequence; chunks contain only whole sequences."""

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
    """rows: float32 (E, 4, B), in the order of `LossRows`. norms: float64 (n_minibatches,). kls: float64 (C, U), per
    unit of work on a chunk. squares: float64 (2,), squared norm per network. arrivals: int64 (1,), initially 0.
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
    """The arrays of `acting` as two tuples."""
    networks = Networks(acting.layers, acting.log_std, acting.activation, acting.parameters)
    return networks, Activations(acting.x, acting.outputs, acting.outputs[:0])


class Layout(NamedTuple):
    """layers, log_std, activation: as in `Networks`. ends: as in `Learner`. size: P. places: int64, the index of each
    parameter in a padded vector, in the order of `ActorCritic.parameter_order`.

    The weights of a layer are (inputs, outputs), outputs padded to LANES and the first inputs to ROWS; the bias follows
    them. Padding is 0 and stays 0, since its gradient is 0.
    """

    layers: Array
    log_std: int
    activation: int
    ends: Array
    size: int
    places: Array

    def layer(self, n: int, i: int) -> Layer:
        """Layer i of network n; a negative i counts from the end."""
        rows = self.layers[n]
        return Layer(*rows[rows.any(axis=1)][i].tolist())

    def networks(self, parameters: Array) -> Networks:
        """Made with these padded parameters, not a copy of them."""
        return Networks(self.layers, self.log_std, self.activation, parameters)


def layout_of(network: ActorCritic) -> Layout:
    """The layout of two perceptrons with at least one hidden layer, and of log_std if actions are Gaussian."""
    placed = Placing()
    ends = [0]
    for mlp in (network.actor, network.critic):
        linears = [layer for layer in mlp if isinstance(layer, nn.Linear)]
        placed.layers([[linear] for linear in linears], padded_inputs=up(linears[0].in_features, ROWS))
        if mlp is network.actor:
            log_std = placed.vectors(network.distribution.parameters())
        ends.append(placed.end)
    code = CODES[activation_in(network.actor)]
    return Layout(placed.rows(), log_std, code, np.array(ends), placed.end, placed.of(network.parameter_order()))


class Placing:
    """Places parameters in a padded vector, one after another; end: the index after the last of them."""

    def __init__(self) -> None:
        self.end = 0
        self._networks: list[list[Layer]] = []
        self._places: dict[int, Array] = {}  # by id() of the parameter

    def layers(self, layers: Sequence[Sequence[nn.Linear]], *, padded_inputs: int) -> None:
        """Places the layers of the next network; each is one linear layer, or several side by side."""
        self._networks.append([])
        for side_by_side in layers:
            inputs = side_by_side[0].in_features
            outputs = sum(linear.out_features for linear in side_by_side)
            width = up(outputs, LANES)
            bias, column = self.end + padded_inputs * width, 0
            self._networks[-1].append(Layer(self.end, bias, inputs, padded_inputs, width, outputs))
            for linear in side_by_side:
                columns = column + np.arange(linear.out_features)
                self.put(linear.weight, self.end + columns[:, None] + width * np.arange(inputs))
                self.put(linear.bias, bias + columns)
                column += linear.out_features
            self.end, padded_inputs = bias + width, width

    def vectors(self, parameters: Iterable[Tensor]) -> int:
        """Places the parameters of a distribution; returns the index of the first."""
        begin = self.end
        for own in parameters:
            self.put(own, self.end + np.arange(own.numel()))
            self.end += up(own.numel(), LANES)
        return begin

    def put(self, parameter: Tensor, places: Array) -> None:
        self._places[id(parameter)] = places.ravel()

    def rows(self) -> Array:
        """The layers of all networks, as in `Networks`."""
        rows = np.zeros((len(self._networks), max(map(len, self._networks)), len(Layer._fields)), np.int64)
        for own, layers in zip(rows, self._networks, strict=True):
            own[: len(layers)] = layers
        return rows

    def of(self, parameters: Iterable[Tensor]) -> Array:
        """The indices of these parameters, in this order."""
        return np.concatenate([self._places[id(parameter)] for parameter in parameters])


def new_workspace(layout: Layout) -> Workspace:
    """The workspace of one thread."""
    n_networks, n_layers, _ = layout.layers.shape
    widest = max(Layer(*row).width for row in layout.layers.reshape(-1, len(Layer._fields)).tolist())
    x = np.zeros(TILE * layout.layer(0, 0).padded_inputs, np.float32)
    outputs = np.zeros((n_networks, n_layers, TILE * widest), np.float32)
    sums = np.zeros_like(outputs) if layout.activation in FROM_SUMS else outputs[:0].copy()
    return Workspace(
        Activations(x, outputs, sums),
        slopes=np.zeros(TILE * widest, np.float32),
        zeros=np.zeros(widest, np.float32),
        row=np.zeros(widest),
    )


def new_acting(layout: Layout, parameters: Array) -> Acting:
    """Made with these padded parameters, not a copy of them."""
    workspace = new_workspace(layout)
    x, outputs, _ = workspace.activations
    return Acting(*layout.networks(parameters), x, outputs, workspace.row)


def up(n: int, multiple: int) -> int:
    """n rounded up to a multiple."""
    return -(-n // multiple) * multiple
