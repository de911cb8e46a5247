"""Where a network's parameters lie in the padded vectors of `kernel`. D observation size, L layers of each network."""

from typing import NamedTuple

import numpy as np
from torch import nn

from ml_pipeline.models.rl.compiled.kernel import LANES, ROWS, TILE, Acting, Workspace
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic

Array = np.ndarray


class Layout(NamedTuple):
    """layers, ends, log_std: as in `kernel.Networks`. size: P. places: int64, where in such a vector each parameter of
    the flat vector lies, in the order of `ActorCritic.parameter_order`.

    The weights of a layer stand there as (inputs, outputs), outputs padded to LANES and the first inputs to ROWS; then
    its bias. What fills up is 0 and stays 0: its gradient is 0.
    """

    layers: Array
    ends: Array
    log_std: int
    size: int
    places: Array


def layout_of(network: ActorCritic) -> Layout:
    """The layout of two perceptrons, with at least one hidden layer, and the deviation of their Gaussian if any."""
    places: dict[int, Array] = {}  # by the identity of the parameter
    rows, ends, end = [], [0], 0
    for mlp in (network.actor, network.critic):
        linears = [layer for layer in mlp if isinstance(layer, nn.Linear)]
        stride = _up(linears[0].in_features, ROWS)
        for linear in linears:
            inputs, outputs = linear.in_features, linear.out_features
            width = _up(outputs, LANES)
            bias = end + stride * width
            rows.append((end, bias, inputs, stride, width, outputs))
            places[id(linear.weight)] = end + np.arange(outputs)[:, None] + width * np.arange(inputs)
            places[id(linear.bias)] = bias + np.arange(outputs)
            end, stride = bias + width, width
        if mlp is network.actor:
            log_std = end
            for own in network.distribution.parameters():
                places[id(own)] = end + np.arange(own.numel())
                end += _up(own.numel(), LANES)
        ends.append(end)
    order = [places[id(parameter)].ravel() for parameter in network.parameter_order()]
    layers = np.array(rows, dtype=np.int64).reshape(2, -1, 6)
    return Layout(layers, np.array(ends, dtype=np.int64), log_std, end, np.concatenate(order))


def is_tanh(network: ActorCritic) -> bool:
    """Whether tanh follows each hidden layer; else it is the rectifier."""
    return any(isinstance(layer, nn.Tanh) for layer in network.actor)


def new_workspace(layout: Layout) -> Workspace:
    """For one thread."""
    widest = int(layout.layers[:, :, 4].max())
    return Workspace(
        x=np.zeros(TILE * layout.layers[0, 0, 3], np.float32),
        outputs=np.zeros((*layout.layers.shape[:2], TILE * widest), np.float32),
        slopes=np.zeros(TILE * widest, np.float32),
        zeros=np.zeros(widest, np.float32),
        row=np.zeros(widest),
    )


def new_acting(layout: Layout, parameters: Array) -> Acting:
    """On padded parameters, which stay the caller's to change."""
    workspace = new_workspace(layout)
    return Acting(layout.layers, layout.log_std, parameters, workspace.x, workspace.outputs, workspace.row)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
