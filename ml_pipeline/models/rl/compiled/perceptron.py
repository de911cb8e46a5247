"""The two perceptrons on a tile of samples: forward, and backward from slopes by the outputs to the gradient."""

from ml_pipeline.models.rl.compiled.activations import activate, through_activation
from ml_pipeline.models.rl.compiled.arguments import Activations, Learner, Networks, Workspace, last_layer, layer_of
from ml_pipeline.models.rl.compiled.machine import LANES, ROWS, TILE, Array, jit
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
    """Adds to gradient, float32 (P,); the outputs of network n must have been replaced by the slopes by them.

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
    # Where `backward` leaves the slopes by the first layer's sums.
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
    # Block by block: rows whose length is a power of two share few places of the cache nearest to a core.
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
