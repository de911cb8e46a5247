"""The minibatches of an update, one after another, by several threads with the same bits as by one."""

import math
from typing import Any

from ml_pipeline.models.rl.compiled.adam import add_up, step
from ml_pipeline.models.rl.compiled.arguments import Results, Samples, Settings, Worker
from ml_pipeline.models.rl.compiled.losses import Part, minibatch_of
from ml_pipeline.models.rl.compiled.threads import meet


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
