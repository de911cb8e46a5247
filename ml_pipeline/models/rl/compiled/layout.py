"""The places of parameters in the padded vectors of `kernel`. D observation size, L layers of a network."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from ml_pipeline.models.rl.compiled.activations import CODES, FROM_SUMS
from ml_pipeline.models.rl.compiled.arguments import Acting, Activations, Layer, Networks, Workspace
from ml_pipeline.models.rl.compiled.machine import LANES, ROWS, TILE
from ml_pipeline.models.rl.networks.activations import activation_in
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic

Array = np.ndarray


class Layout(NamedTuple):
    """layers, log_std, activation: as in `Networks`. ends: as in `Learner`. size: P. places: int64, the place in a
    padded vector of each parameter, in the order of `ActorCritic.parameter_order`.

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
        """With these padded parameters, not a copy of them."""
        return Networks(self.layers, self.log_std, self.activation, parameters)


def layout_of(network: ActorCritic) -> Layout:
    """The layout of two perceptrons with at least one hidden layer, and of the deviation if actions are Gaussian."""
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
    """Gives parameters places in a padded vector, one after another; end: after the last of them."""

    def __init__(self) -> None:
        self.end = 0
        self._networks: list[list[Layer]] = []
        self._places: dict[int, Array] = {}  # by the identity of the parameter

    def layers(self, layers: Sequence[Sequence[nn.Linear]], *, padded_inputs: int) -> None:
        """Of the next network: each of its layers is one linear layer, or several side by side."""
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
        """Of a distribution; returns where they begin."""
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
        """The places of these, in this order."""
        return np.concatenate([self._places[id(parameter)] for parameter in parameters])


def new_workspace(layout: Layout) -> Workspace:
    """For one thread."""
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
    """With these padded parameters, not a copy of them."""
    workspace = new_workspace(layout)
    x, outputs, _ = workspace.activations
    return Acting(*layout.networks(parameters), x, outputs, workspace.row)


def up(n: int, multiple: int) -> int:
    """The next multiple from n on."""
    return -(-n // multiple) * multiple
