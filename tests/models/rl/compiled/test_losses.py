"""The kernel's own copy of the rule for choices, and torch's way to it, against NumPy's."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.models.rl.compiled.losses import draw
from ml_pipeline.models.rl.compiled.machine import jit_entry
from ml_pipeline.models.rl.networks.distributions import Categorical
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.device_collector import device_actions

draw_from_python = jit_entry(draw.py_func)
LARGEST = np.nextafter(np.float32(1), np.float32(0))
IMPOSSIBLE = -1e8  # the logit of a choice that a mask forbids


def by_numpy(logits, noise):
    return Categorical(logits.shape[1]).sample(logits, noise)


def by_torch(logits, noise):
    policy = Policy(spaces.Box(-1, 1, (1,)), spaces.Discrete(logits.shape[1]))
    return device_actions(policy).sample(torch.from_numpy(logits), torch.from_numpy(noise)).numpy()


def by_the_kernel(logits, noise):
    cumulative = np.zeros(logits.shape[1])
    return np.array([draw_from_python(row, float(own), cumulative) for row, own in zip(logits, noise, strict=True)])


ways = pytest.mark.parametrize("chosen", [by_numpy, by_torch, by_the_kernel])


@ways
@pytest.mark.parametrize(
    ("logits", "noise", "expected"),
    [
        # Shares 1/2, 1/4, 1/4: choices begin at 0, 1/2 and 3/4.
        ([np.log(2.0), 0.0, 0.0], 0.0, 0),
        ([np.log(2.0), 0.0, 0.0], 0.49, 0),
        ([np.log(2.0), 0.0, 0.0], 0.51, 1),
        ([np.log(2.0), 0.0, 0.0], 0.76, 2),
        ([np.log(2.0), 0.0, 0.0], LARGEST, 2),
        ([IMPOSSIBLE, 0.0, 0.0], 0.0, 1),  # the first cannot be taken by the least noise
        ([0.0, 0.0, IMPOSSIBLE], LARGEST, 1),  # nor the last by the largest
        ([0.0, IMPOSSIBLE, 0.0], 0.5, 2),
        ([500.0, -500.0, 500.0], 0.25, 0),  # without overflow
        ([500.0, -500.0, 500.0], 0.75, 2),
    ],
)
def test_choices_worked_by_hand(chosen, logits, noise, expected):
    assert chosen(np.array([logits], np.float32), np.array([noise], np.float32)).tolist() == [expected]


@ways
def test_choices_of_random_logits_are_those_of_float64(chosen):
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(300, 5)).astype(np.float32)
    noise = generator.random(300, dtype=np.float32)
    shares = np.exp(logits.astype(np.float64))
    ends = (shares / shares.sum(axis=1, keepdims=True)).cumsum(axis=1)
    clear = abs(ends - noise[:, None]).min(axis=1) > 1e-5  # no rounding decides between two choices
    assert clear.sum() > 290
    expected = (ends[:, :-1] <= noise[:, None]).sum(axis=1)
    np.testing.assert_array_equal(chosen(logits[clear], noise[clear]), expected[clear])
