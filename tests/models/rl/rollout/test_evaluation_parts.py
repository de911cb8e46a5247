"""A rollout of images is evaluated in parts: as by one call, with the same bits for any number of threads."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.policies.threads_and_device import in_threads, one_thread
from ml_pipeline.models.rl.rollout import estimates
from ml_pipeline.models.rl.rollout.estimates import outputs_of, outputs_over_sequences
from ml_pipeline.models.rl.transitions import Sequences

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
T, N = 14, 20  # 280 rows: a part of 256, and one of 24; environments: two parts of 8, and one of 4


def network_of(**settings):
    return Policy(IMAGE, spaces.Discrete(3), PPOConfig(hidden_sizes=(16,), **settings), seed=1).network


def case_of(network):
    generator = np.random.default_rng(0)
    observations = torch.from_numpy(generator.integers(0, 256, (T, N, 36 * 36)).astype(np.float32))
    starts = torch.from_numpy(generator.random((T, N)) < 0.2)
    return observations, Sequences(starts, torch.randn(N, network.state_size, generator=torch.manual_seed(0)))


def evaluate(network, observations, sequences):
    if network.state_size:
        return outputs_over_sequences(network, observations, sequences)
    return outputs_of(network, observations.flatten(0, 1))


@pytest.mark.parametrize("settings", [{}, {"memory": "gru"}, {"memory": "lstm", "share_layers": True}])
def test_parts_give_what_one_call_gives_for_any_number_of_threads(settings, monkeypatch):
    network = network_of(**settings)
    observations, sequences = case_of(network)
    rows = observations.flatten(0, 1)
    expected = network.over_sequences(rows, sequences) if settings else network(rows)
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 4):
            torch.set_num_threads(n_threads)
            monkeypatch.setattr(estimates, "in_threads", partial(in_threads, n_threads=n_threads))
            with one_thread():
                found.append(evaluate(network, observations, sequences))
    finally:
        torch.set_num_threads(before)
    for columns in zip(expected, *found, strict=True):
        whole, *parts = columns
        torch.testing.assert_close(parts[0], whole.detach(), rtol=1e-4, atol=1e-5)
        assert not parts[0].requires_grad
        assert torch.equal(parts[0], parts[1])
        assert torch.equal(parts[0], parts[2])
