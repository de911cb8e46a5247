"""The two perceptrons on a tile of samples: forward, and backward from slopes by the outputs to the gradient."""

from ml_pipeline.models.rl.compiled.activations import activate, through_activation
from ml_pipeline.models.rl.compiled.arguments import Activations, Learner, Networks, Workspace, layer_of
from ml_pipeline.models.rl.compiled.machine import ROWS, TILE, Array, jit
from ml_pipeline.models.rl.compiled.products import Matrix, product


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
    parameters, last = networks.parameters, networks.layers.shape[1] - 1
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
            activate(above[: n_rows * layer.width], networks.is_tanh)
        below = above


@jit
def backward(n: int, n_rows: int, learner: Learner, gradient: Array, workspace: Workspace) -> None:
    """Adds to gradient, float32 (P,); the outputs of network n must have been replaced by the slopes by them.

    Overwrites activations.outputs[n].
    """
    networks, activations = learner.networks, workspace.activations
    last = networks.layers.shape[1] - 1
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
            through_activation(spare[: n_rows * inputs], below[: n_rows * inputs], networks.is_tanh)
            slopes, spare = spare, activations.outputs[n, i]


@jit
def transpose(n: int, learner: Learner) -> None:
    """Fills learner.transposed for network n, without its first layer, which the backward pass does not need."""
    networks = learner.networks
    for i in range(1, networks.layers.shape[1]):
        layer = layer_of(networks, n, i)
        part = slice(layer.weights, layer.weights + layer.padded_inputs * layer.width)
        weights = networks.parameters[part].reshape(layer.padded_inputs, layer.width)
        other = learner.transposed[part].reshape(layer.width, layer.padded_inputs)
        for j in range(layer.width):
            for k in range(layer.padded_inputs):
                other[j, k] = weights[k, j]


@jit
def add(total: Array, part: Array) -> None:
    """In place; both float32 (n,)."""
    for i in range(len(total)):
        total[i] += part[i]
