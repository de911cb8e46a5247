"""Pinned transfers give what plain ones do; where there is no page-locked memory, ordinary memory stands in."""

import numpy as np
import pytest
import torch

from ml_pipeline.models.rl.policies import acting
from ml_pipeline.models.rl.policies.acting import Transfers


@pytest.fixture
def pinned(monkeypatch):
    """Transfers that take the way of a GPU, and what was pinned and waited for."""
    calls = []
    monkeypatch.setattr(acting, "pin", lambda like: calls.append("pin") or torch.empty_like(like))
    monkeypatch.setattr(acting, "wait_for", lambda device: calls.append("wait"))
    both = Transfers(torch.device("cpu"))
    both.pins = True
    return both, calls


def test_pinned_and_plain_transfers_carry_the_same(pinned):
    throughpins, calls = pinned
    plain = Transfers(torch.device("cpu"))
    for array in np.random.default_rng(0).normal(size=(3, 4, 2)).astype(np.float32):
        results = [each.to_host(each.to_device(array) * 2.0).copy() for each in (plain, throughpins)]
        np.testing.assert_array_equal(results[0], array * 2.0)
        np.testing.assert_array_equal(results[1], results[0])
    assert calls == ["pin", "pin", "wait", "wait", "wait"]  # pinned once each way, waited for at every answer


def test_other_shapes_get_memory_of_their_own(pinned):
    both, _ = pinned
    for shape in ((2, 3), (5,), (2, 3)):
        assert both.to_host(both.to_device(np.ones(shape, np.float32))).shape == shape
