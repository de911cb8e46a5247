"""The step on a minibatch, network by network: the sum over chunks of the gradient, its norm, and Adam."""

import math

from ml_pipeline.models.rl.compiled.arguments import Learner, Settings
from ml_pipeline.models.rl.compiled.machine import Array, f32, jit, jit_sums
from ml_pipeline.models.rl.compiled.perceptron import add


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
