"""The model of an iteration on several machines, beside cases that were calculated by hand."""

import math
from dataclasses import replace

import pytest

from ml_pipeline.models.rl.core.workers.choice import StepCost
from ml_pipeline.models.rl.distributed.cost_model import (
    Network,
    Sharing,
    Training,
    best_vector_step_s,
    iteration_cost,
    most_that_pay,
    pays,
    shortest_step_that_pays,
    speedup,
)
from ml_pipeline.models.rl.distributed.rows import rows_of

# 10 environments stepped one after another in 1 ms each, 100 steps; a hop takes 1 ms, a second carries 1 MB.
TRAINING = Training(
    num_envs=10,
    n_steps=100,
    step_s=lambda n: n * 1e-3,
    acting_call_s=2e-4,
    acting_row_s=1e-5,
    learning_s=0.05,
    transition_bytes=20.0,
)
NETWORK = Network(hop_s=1e-3, bytes_per_s=1e6)
FREE = Network(hop_s=0.0, bytes_per_s=math.inf)


def test_one_machine_sends_nothing():
    cost = iteration_cost(TRAINING, 1, NETWORK)
    # Steps: 100 * 10 ms. Acting: 100 * (0.2 + 10 * 0.01) ms.
    assert (cost.stepping_s, cost.acting_s) == pytest.approx((1.0, 0.03))
    assert (cost.exchanging_s, cost.learning_s) == (0.0, 0.05)
    assert cost.total_s == pytest.approx(1.08)


def test_the_machine_with_the_most_environments_decides():
    cost = iteration_cost(TRAINING, 3, NETWORK)
    # 4 of 10 environments. Two rounds of two hops, and twice 4 * 100 * 20 bytes = 8 kB in 8 ms.
    assert cost.stepping_s == pytest.approx(0.4)
    assert cost.acting_s == pytest.approx(100 * (2e-4 + 4e-5))
    assert cost.exchanging_s == pytest.approx(4e-3 + 16e-3)
    assert cost.learning_s == 0.05
    assert speedup(TRAINING, 3, NETWORK) == pytest.approx(1.08 / (0.4 + 0.024 + 0.02 + 0.05))


def test_environments_are_counted_as_the_ranks_divide_them():
    counting = replace(TRAINING, step_s=float, n_steps=1)
    for machines in range(1, 11):
        rows = [rows_of(rank, machines, 10) for rank in range(machines)]
        assert iteration_cost(counting, machines, FREE).stepping_s == max(row.stop - row.start for row in rows)


def test_more_machines_than_environments_are_an_error():
    with pytest.raises(ValueError, match="11 machines need as many environments, but got 10"):
        iteration_cost(TRAINING, 11, NETWORK)


SHARED = replace(TRAINING, learning_s=8.0, sharing=Sharing(n_chunks=8, cores=1, n_minibatches=10, gradient_bytes=10**4))


@pytest.mark.parametrize(
    ("machines", "seconds"),
    # The most chunks of one, then 10 times M - 1 hops of 1 ms with 10 ms of gradients each.
    [(1, 8.0), (2, 4 + 0.11), (3, 3 + 0.22), (8, 1 + 0.77), (10, 1 + 0.99)],
)
def test_chunks_of_gradients_are_shared(machines, seconds):
    assert iteration_cost(SHARED, machines, NETWORK).learning_s == pytest.approx(seconds)


def test_gradients_that_take_longer_to_send_are_not_shared():
    assert iteration_cost(SHARED, 2, Network(hop_s=1.0, bytes_per_s=1e6)).learning_s == 8.0


def test_a_machine_with_a_core_for_each_chunk_gains_nothing_by_sharing():
    training = replace(SHARED, sharing=Sharing(n_chunks=8, cores=8, n_minibatches=10, gradient_bytes=0))
    assert iteration_cost(training, 2, FREE).learning_s == 8.0


def test_without_losses_machines_multiply():
    lossless = replace(TRAINING, acting_call_s=0.0, learning_s=0.0)
    for machines in (1, 2, 5, 10):
        assert speedup(lossless, machines, FREE) == pytest.approx(machines)


def test_no_number_of_machines_trains_faster_than_learning_allows():
    for machines in range(1, 11):
        assert speedup(TRAINING, machines, NETWORK) <= iteration_cost(TRAINING, 1, NETWORK).total_s / 0.05


@pytest.mark.parametrize(("learning_s", "most"), [(0.0, 8), (0.2, 2), (0.5, 1), (2.0, 1)])
def test_the_most_that_pay(learning_s, most):
    # 0.8 s of steps. With 0.2 s of learning: 1.0 / 0.6 = 1.67 of two, 1.0 / 0.4 = 2.5 of four; 0.5 s: 1.3 / 0.9 = 1.44.
    training = replace(TRAINING, num_envs=8, acting_call_s=0.0, acting_row_s=0.0, learning_s=learning_s)
    assert most_that_pay(training, FREE) == most
    assert pays(training, most, FREE)


def test_the_shortest_step_that_pays():
    # 1000 steps of s and 50 ms: (1000 s + 0.05) / (500 s + 0.05) = 1.5 at s = 0.1 ms.
    def training_at(step_s):
        return replace(TRAINING, step_s=lambda n: n * step_s, acting_call_s=0.0, acting_row_s=0.0)

    assert shortest_step_that_pays(training_at, FREE) == pytest.approx(1e-4, rel=0.011)
    assert pays(training_at(1.02e-4), 2, FREE)
    assert not pays(training_at(0.98e-4), 2, FREE)
    # Two machines give at most as many times as learning allows: never 1.5 where steps are a third of all.
    assert shortest_step_that_pays(lambda step_s: replace(TRAINING, learning_s=1e6), FREE) == math.inf


def test_a_faster_network_never_costs_more():
    slow, fast = Network(hop_s=1e-2, bytes_per_s=1e5), Network(hop_s=1e-4, bytes_per_s=1e8)
    for machines in range(2, 11):
        assert speedup(TRAINING, machines, fast) > speedup(TRAINING, machines, slow)


def test_waiting_environments_are_stepped_side_by_side_on_one_machine():
    waits, computes = StepCost(cpu_s=0.0, wait_s=1e-2), StepCost(cpu_s=1e-2, wait_s=0.0)
    assert best_vector_step_s(waits, 64, 1.0, wake_s=6e-5) < 2e-2
    assert best_vector_step_s(computes, 64, 1.0, wake_s=6e-5) == pytest.approx(0.64)
