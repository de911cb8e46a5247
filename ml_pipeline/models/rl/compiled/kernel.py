"""A whole update, compiled: every minibatch of every epoch, from gathering its rows to Adam's step. `steps_by` makes it
for any kind of network, `update` is for two perceptrons. `evaluate` and `choose` compute outputs and sampled actions.

Needs numba (extra `fast`); besides the recurrent kernel, only `compiled_networks` and `compiled_steps` import it. The
formulas are those of `ppo_loss`, `distributions` and `FlatAdam`, and the tests compare the results; parameters,
gradients and moments are float32, the loss of a sample is float64. Nothing here assumes finite numbers: NaN stays NaN.

Measured, 20,480 samples of a 64x64 network in minibatches of 256: 18 ms in one thread and 12 ms in two, against 42 ms
in torch; in minibatches of 64, 21 and 17 ms against 92.

Each minibatch is split into one chunk per gradient buffer, and buffers are added up in a fixed order, independent of
the thread that filled them: the number of threads changes no bit.
"""

import math
from pathlib import Path
from typing import Any

from ml_pipeline.models.rl.compiled.layout import (
    Acting,
    Learner,
    Results,
    Samples,
    Settings,
    Worker,
    Workspace,
    last_layer,
    layer_of,
    parts_of,
)
from ml_pipeline.models.rl.compiled.losses import Part, draw, minibatch_of, policy_slopes, value_slopes
from ml_pipeline.models.rl.compiled.machine import TILE, Array, f32, jit, jit_entry, jit_sums, meet
from ml_pipeline.models.rl.compiled.perceptron import add, backward, forward, forward_some, transpose, whole_blocks
from ml_pipeline.runtime.code_cache import keep_code


def kept(function: Any) -> Any:
    """Compiled once for all processes, in about seven seconds, and again after any change to a file in this folder."""
    return keep_code(jit_entry(function), made_of=sorted(Path(__file__).parent.rglob("*.py")))


def steps_by(prepare: Any, fill_gradient: Any) -> Any:
    """The update function of one kind of network, ready to compile, from two compiled functions.

    prepare(n, learner): updates the values that network n derives from its parameters; called after each of its steps.
    fill_gradient(unit, chunk, learner, samples, workspace): fills a unit's part of the chunk's gradient, and of its
    rows; returns its part of the sum of the KL. Units, columns of `Results.kls`, are computed in parallel.
    """

    def update(worker: Worker, learner: Any, samples: Samples, settings: Settings, results: Results) -> int:
        """All threads run this at the same time; returns the number of steps taken.

        It stops before the step of the first minibatch whose approximate KL is above the limit.
        """
        number, n_threads, gradients = worker.number, worker.n_threads, learner.gradients
        n_networks = len(learner.ends) - 1
        n_epochs, n_samples = samples.orders.shape
        n_chunks, n_units = results.kls.shape
        for n in range(number, n_networks, n_threads):
            prepare(n, learner)
        due = meet(results.arrivals, n_threads)
        done = 0
        for epoch in range(n_epochs):
            for first in range(0, n_samples, settings.minibatch_size):
                chosen = samples.orders[epoch, first : first + settings.minibatch_size]
                minibatch = minibatch_of(chosen, samples.inputs[1], settings)
                n_whole = len(chosen) // settings.sequence_length
                for u in range(number, n_chunks * n_units, n_threads):
                    c = u // n_units
                    start = c * n_whole // n_chunks * settings.sequence_length
                    stop = (c + 1) * n_whole // n_chunks * settings.sequence_length
                    chunk = Part(minibatch, chosen[start:stop], results.rows[epoch, :, first + start :], gradients[c])
                    results.kls[c, u % n_units] = fill_gradient(u % n_units, chunk, learner, samples, worker.workspace)
                due = meet(results.arrivals, due + n_threads)
                if results.kls.sum() / len(chosen) > settings.kl_limit:
                    return done
                for n in range(number, n_networks, n_threads):
                    results.squares[n] = add_up(n, learner)
                due = meet(results.arrivals, due + n_threads)
                norm = math.sqrt(results.squares[0] + results.squares[1])
                results.norms[done] = norm
                done += 1
                for n in range(number, n_networks, n_threads):
                    step(n, learner, settings, norm, settings.n_steps_before + done)
                    prepare(n, learner)
                due = meet(results.arrivals, due + n_threads)
        return done

    return update


@jit
def add_up(n: int, learner: Learner) -> float:
    """Adds network n's part of all chunks to that of the first, in order; returns the sum of its squares."""
    start, stop = learner.ends[n], learner.ends[n + 1]
    first = learner.gradients[0, start:stop]
    for c in range(1, len(learner.gradients)):
        add(first, learner.gradients[c, start:stop])
    return float(_sum_of_squares(first))


@jit_sums
def _sum_of_squares(x: Array) -> float:
    total = f32(0.0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return float(total)


@jit
def step(n: int, learner: Learner, settings: Settings, norm: float, n_steps: int) -> None:
    """Clips network n's gradient and takes step n_steps, counted from 1, by the formula of `FlatAdam`."""
    part = slice(learner.ends[n], learner.ends[n + 1])
    parameters, gradient = learner.networks.parameters[part], learner.gradients[0, part]
    means, squares = learner.means[part], learner.squares[part]
    ratio = settings.max_grad_norm / (norm + 1e-6)
    correction = math.sqrt(1.0 - 0.999**n_steps)
    scale = f32(1.0 if ratio > 1.0 else ratio)
    size = f32(settings.learning_rate * correction / (1.0 - 0.9**n_steps))
    epsilon = f32(settings.epsilon * correction)
    for i in range(len(parameters)):
        slope = gradient[i] = gradient[i] * scale
        means[i] += (slope - means[i]) * f32(0.1)
        squares[i] = squares[i] * f32(0.999) + slope * slope * f32(0.001)
        parameters[i] -= size * (means[i] / (math.sqrt(squares[i]) + epsilon))


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


update = kept(steps_by(transpose, _gradient))


@kept
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


@kept
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
