"""What is said of a second machine: whether it pays, and what costs the most where it does not."""

import math
from dataclasses import replace

import pytest

from ml_pipeline.models.rl.distributed.cost_model import LAN, Network, Sharing, Training
from ml_pipeline.models.rl.distributed.second_machine import worth_of_a_second

# 8 environments stepped one after another in 1 ms each, 100 steps: 0.8 s, and nothing else.
STEPS = Training(
    num_envs=8,
    n_steps=100,
    step_s=lambda n: n * 1e-3,
    acting_call_s=0.0,
    acting_row_s=0.0,
    learning_s=0.0,
    transition_bytes=0.0,
)
FREE = Network(hop_s=0.0, bytes_per_s=math.inf)


def test_where_steps_are_all_every_machine_counts():
    assert worth_of_a_second(STEPS, FREE) == (
        "A second machine would train 2.0 times as fast: of an iteration of 800 ms, 100 % are steps, which machines "
        "share. 8 of them would train 8.0 times as fast."
    )


def test_more_than_two_are_named_only_where_they_pay():
    # 1.0 s of 0.6 s with two machines; 0.4 s with four, 2.5 times.
    assert worth_of_a_second(replace(STEPS, learning_s=0.2), FREE) == (
        "A second machine would train 1.7 times as fast: of an iteration of 1.0 s, 80 % are steps, which machines "
        "share."
    )


@pytest.mark.parametrize(
    ("training", "network", "reason"),
    [
        (
            replace(STEPS, learning_s=2.0, acting_call_s=1e-4),
            FREE,
            "of an iteration of 2.8 s, 71 % are learning, which every machine does",
        ),
        (replace(STEPS, acting_call_s=0.03), FREE, "acting takes nearly as long for 4 environments as for 8"),
        (replace(STEPS, step_s=lambda n: 0.02), LAN, "this machine steps all 8 environments at once already; more of"),
        (STEPS, Network(hop_s=1.0, bytes_per_s=1.0), "the exchange of each rollout would take 2.0 s, and an iteration"),
    ],
)
def test_the_reason_is_what_costs_the_most(training, network, reason):
    said = worth_of_a_second(training, network)
    assert said.startswith("A second machine would not pay: it would train ")
    assert f", since {reason}" in said


def test_what_is_as_fast_is_no_faster():
    assert "it would train no faster, since" in worth_of_a_second(replace(STEPS, step_s=lambda n: 0.02), FREE)
    assert "it would train 0.3 times as fast, since" in worth_of_a_second(STEPS, Network(hop_s=1.0, bytes_per_s=1.0))


def test_gradients_that_are_long_on_the_network_are_the_reason():
    sharing = Sharing(n_chunks=2, cores=1, n_minibatches=1, gradient_bytes=10**9)
    said = worth_of_a_second(replace(STEPS, learning_s=2.0, sharing=sharing), LAN)
    assert "71 % are learning, whose gradients are long on the network." in said


def test_one_environment_cannot_be_divided():
    assert worth_of_a_second(replace(STEPS, num_envs=1), FREE) == (
        "A second machine would not pay: one environment cannot be divided; more need a larger --n-envs."
    )
