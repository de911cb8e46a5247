"""A whole update of two perceptrons, compiled: every minibatch of every epoch, from gathering its rows to Adam's step;
and their outputs and sampled actions.

Needs numba (extra `fast`); only `compiled_networks` and `compiled_steps` import it. The mathematics is that of
`ppo_loss`, `distributions` and `FlatAdam`, with which the tests compare it; parameters, gradients and moments are
float32, the loss of a sample is float64. Nothing here assumes finite numbers: a NaN comes out as NaN.

Measured, 20,480 samples of a 64x64 network in minibatches of 256: 18 ms in one thread and 12 ms in two, against 42 ms
in torch; in minibatches of 64, 21 and 17 ms against 92.

Each minibatch is cut into as many chunks as there are gradient buffers, and buffers are added up in order, whichever
thread filled them: the number of threads changes no bit.
"""

import math
from pathlib import Path
from typing import Any

from ml_pipeline.models.rl.compiled.layout import (
    Acting,
    Learner,
    Samples,
    Workspace,
    last_layer,
    layer_of,
    parts_of,
)
from ml_pipeline.models.rl.compiled.losses import Part, draw, policy_slopes, value_slopes
from ml_pipeline.models.rl.compiled.machine import TILE, Array, jit, jit_entry
from ml_pipeline.models.rl.compiled.minibatch_steps import steps_by
from ml_pipeline.models.rl.compiled.perceptron import backward, forward, forward_some, transpose, whole_blocks
from ml_pipeline.runtime.code_cache import keep_code


def _kept(function: Any) -> Any:
    """Compiled once for all processes, in about seven seconds, and again after a file of this folder has changed."""
    return keep_code(jit_entry(function), made_of=sorted(Path(__file__).parent.glob("*.py")))


@jit
def _gradient(unit: int, chunk: Part, learner: Learner, samples: Samples, workspace: Workspace) -> float:
    """Fills the chunk's gradient and rows, tile by tile; returns the sum of its KL. There is one unit, 0."""
    chunk.gradient[:] = 0.0
    kl = 0.0
    for tile in range(0, len(chunk.chosen), TILE):
        part = Part(chunk.minibatch, chunk.chosen[tile : tile + TILE], chunk.rows[:, tile:], chunk.gradient)
        kl += _tile_gradient(part, learner, samples, workspace)
    return kl


@jit
def _tile_gradient(part: Part, learner: Learner, samples: Samples, workspace: Workspace) -> float:
    """Adds the gradient of at most TILE samples and fills their rows; returns the sum of their KL."""
    networks, n_samples = learner.networks, len(part.chosen)
    n_rows = whole_blocks(n_samples)
    x = workspace.activations.x.reshape(TILE, -1)
    for s in range(n_samples):
        for k in range(samples.observations.shape[1]):
            x[s, k] = samples.observations[part.chosen[s], k]
    x[n_samples:n_rows] = 0.0
    for n in range(2):
        forward(n, n_rows, networks, workspace.activations)
    kl: float = policy_slopes(part, samples.actions, samples.inputs, networks, workspace)
    value_slopes(part, samples.inputs, networks, workspace)
    for n in range(2):
        backward(n, n_rows, learner, part.gradient, workspace)
    return kl


update = _kept(steps_by(transpose, _gradient))


@_kept
def choose(acting: Acting, observations: Array, noise: Array, actions: Array) -> None:
    """Fills actions with samples for observations, float32 (N, D), and noise.

    actions, noise: int64 and float32 (N,) of a `Categorical`, both float32 (N, A) of a `DiagonalGaussian`.
    """
    networks, activations = parts_of(acting)
    last = last_layer(networks, 0)
    layer = layer_of(networks, 0, last)
    for tile in range(0, len(observations), TILE):
        some = observations[tile : tile + TILE]
        forward_some(0, some, networks, activations)
        outputs = activations.outputs[0, last].reshape(-1, layer.width)
        for s in range(len(some)):
            if actions.ndim == 1:
                actions[tile + s] = draw(outputs[s, : layer.outputs], noise[tile + s], acting.row)
            else:
                for a in range(layer.outputs):
                    deviation = math.exp(networks.parameters[networks.log_std + a])
                    actions[tile + s, a] = outputs[s, a] + deviation * noise[tile + s, a]


@_kept
def evaluate(n: int, acting: Acting, observations: Array, outputs: Array) -> None:
    """Fills outputs, float32 (N, O), with those of network n for observations, float32 (N, D)."""
    networks, activations = parts_of(acting)
    last = last_layer(networks, n)
    width = layer_of(networks, n, last).width
    for tile in range(0, len(observations), TILE):
        some = observations[tile : tile + TILE]
        forward_some(n, some, networks, activations)
        found = activations.outputs[n, last].reshape(-1, width)
        for s in range(len(some)):
            for a in range(outputs.shape[1]):
                outputs[tile + s, a] = found[s, a]
