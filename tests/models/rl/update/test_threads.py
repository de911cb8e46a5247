"""One thread for small minibatches of another library."""

import pytest
import torch

from ml_pipeline.models.rl.policies.threads_and_device import learning_threads


@pytest.mark.parametrize(("n_weights", "minibatch_size", "expected"), [(9_000, 256, 1), (150_000, 4096, 2)])
def test_threads_follow_the_size_of_a_minibatch(n_weights, minibatch_size, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with learning_threads(n_weights, minibatch_size):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
