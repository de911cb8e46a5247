"""The places of parameters in the padded vectors of `kernel`. D observation size, L layers of each network."""

from typing import NamedTuple

import numpy as np
from torch import nn

from ml_pipeline.models.rl.compiled.arguments import Acting, Activations, Layer, Networks, Workspace
from ml_pipeline.models.rl.compiled.machine import LANES, ROWS, TILE
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic

Array = np.ndarray


class Layout(NamedTuple):
    """layers, log_std, is_tanh: as in `Networks`. ends: as in `Learner`. size: P. places: int64, the place in a padded
    vector of each parameter, in the order of `ActorCritic.parameter_order`.

    The weights of a layer are (inputs, outputs), outputs padded to LANES and the first inputs to ROWS; the bias follows
    them. Padding is 0 and stays 0, since its gradient is 0.
    """

    layers: Array
    log_std: int
    is_tanh: bool
    ends: Array
    size: int
    places: Array

    def layer(self, n: int, i: int) -> Layer:
        """Layer i of network n; a negative i counts from the end."""
        return Layer(*self.layers[n, i].tolist())

    def networks(self, parameters: Array) -> Networks:
        """With these padded parameters, not a copy of them."""
        return Networks(self.layers, self.log_std, self.is_tanh, parameters)


def layout_of(network: ActorCritic) -> Layout:
    """The layout of two perceptrons with at least one hidden layer, and of the deviation if actions are Gaussian."""
    places: dict[int, Array] = {}  # by the identity of the parameter
    rows, ends, end = [], [0], 0
    for mlp in (network.actor, network.critic):
        linears = [layer for layer in mlp if isinstance(layer, nn.Linear)]
        padded_inputs = _up(linears[0].in_features, ROWS)
        for linear in linears:
            inputs, outputs = linear.in_features, linear.out_features
            width = _up(outputs, LANES)
            bias = end + padded_inputs * width
            rows.append(Layer(end, bias, inputs, padded_inputs, width, outputs))
            places[id(linear.weight)] = end + np.arange(outputs)[:, None] + width * np.arange(inputs)
            places[id(linear.bias)] = bias + np.arange(outputs)
            end, padded_inputs = bias + width, width
        if mlp is network.actor:
            log_std = end
            for own in network.distribution.parameters():
                places[id(own)] = end + np.arange(own.numel())
                end += _up(own.numel(), LANES)
        ends.append(end)
    order = [places[id(parameter)].ravel() for parameter in network.parameter_order()]
    layers = np.array(rows, dtype=np.int64).reshape(2, -1, 6)
    is_tanh = any(isinstance(layer, nn.Tanh) for layer in network.actor)
    return Layout(layers, log_std, is_tanh, np.array(ends, dtype=np.int64), end, np.concatenate(order))


def new_workspace(layout: Layout) -> Workspace:
    """For one thread."""
    n_networks, n_layers, _ = layout.layers.shape
    widest = max(layout.layer(n, i).width for n in range(n_networks) for i in range(n_layers))
    x = np.zeros(TILE * layout.layer(0, 0).padded_inputs, np.float32)
    return Workspace(
        Activations(x, np.zeros((n_networks, n_layers, TILE * widest), np.float32)),
        slopes=np.zeros(TILE * widest, np.float32),
        zeros=np.zeros(widest, np.float32),
        row=np.zeros(widest),
    )


def new_acting(layout: Layout, parameters: Array) -> Acting:
    """With these padded parameters, not a copy of them."""
    workspace = new_workspace(layout)
    return Acting(*layout.networks(parameters), *workspace.activations, workspace.row)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
