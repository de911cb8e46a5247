"""One thread for small minibatches; what was set before is back afterwards, even after an error."""

import contextlib

import pytest
import torch

from ml_pipeline.models.rl.update.threads import learning_threads


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("n_weights", "minibatch_size", "expected"), [(9_000, 256, 1), (150_000, 4096, 2)])
def test_threads_follow_the_size_of_a_minibatch(n_weights, minibatch_size, expected):
    with learning_threads(n_weights, minibatch_size):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2


def test_threads_are_restored_after_an_error():
    with contextlib.suppress(RuntimeError), learning_threads(1, 1):
        raise RuntimeError
    assert torch.get_num_threads() == 2
