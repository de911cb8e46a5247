"""The minibatches of an update, one after another, by several threads with the same bits as by one.

A step takes the sum over chunks of the gradient, network by network, its norm, and Adam.
"""

import math
from typing import Any

from ml_pipeline.models.rl.compiled.layout import Learner, Results, Samples, Settings, Worker
from ml_pipeline.models.rl.compiled.losses import Part, minibatch_of
from ml_pipeline.models.rl.compiled.machine import Array, f32, jit, jit_sums, meet
from ml_pipeline.models.rl.compiled.perceptron import add


def steps_by(prepare: Any, fill_gradient: Any) -> Any:
    """The steps of a kind of network, a function to compile, from two compiled ones.

    prepare(n, learner): what network n needs besides its parameters, after each of its steps.
    fill_gradient(unit, chunk, learner, samples, workspace): fills a unit's part of the chunk's gradient, and of its
    rows; returns its part of the sum of the KL. Units, columns of `Results.kls`, are computed side by side.
    """

    def update(worker: Worker, learner: Any, samples: Samples, settings: Settings, results: Results) -> int:
        """Run by all threads at the same time; returns the number of steps taken.

        It ends before the step of the first minibatch whose approximate KL is above the limit.
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
