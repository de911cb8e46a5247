"""Against torch's own Adam."""

import pytest
import torch

from ml_pipeline.models.rl.update import gradient_steps
from ml_pipeline.models.rl.update.gradient_steps import FlatAdam


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_equal_those_of_torch(dtype):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator, dtype=dtype)
    theirs = torch.nn.Parameter(start.clone())
    ours, gradient = start.clone(), torch.empty_like(start)
    their_adam = torch.optim.Adam([theirs], lr=1e-3, eps=1e-5)
    our_adam = FlatAdam(ours, gradient, epsilon=1e-5)
    for step in range(30):
        gradient.copy_(torch.randn(50, generator=generator, dtype=dtype) * 10.0 ** (step % 5 - 3))
        theirs.grad = gradient.clone()
        learning_rate = their_adam.param_groups[0]["lr"] = 1e-3 * (1.0 - step / 30)
        their_adam.step()
        our_adam.step(learning_rate)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(ours, theirs.detach(), rtol=tolerance, atol=tolerance)


def test_a_state_is_a_copy_and_restores_the_moments():
    gradient = torch.tensor([1.0, -2.0])
    first = FlatAdam(torch.zeros(2), gradient, epsilon=1e-5)
    first.step(0.1)
    state = first.state_dict()
    parameters = torch.zeros(2)
    second = FlatAdam(parameters, gradient, epsilon=1e-5)
    second.load_state_dict(state)
    first.step(0.1)
    second.step(0.1)
    assert torch.equal(first.state_dict()["mean"], second.state_dict()["mean"])
    assert not torch.equal(first.state_dict()["mean"], state["mean"])


def test_slices_that_threads_share_move_every_weight_as_one_slice_does(monkeypatch):
    n_weights, moved = 3 * 64 + 5, []
    for length in (64, 1 << 18):
        monkeypatch.setattr(gradient_steps, "_SLICE", length)
        generator = torch.Generator().manual_seed(0)
        parameters, gradient = torch.randn(2, n_weights, generator=generator)
        adam = FlatAdam(parameters, gradient, epsilon=1e-5)
        for _ in range(3):
            adam.step(1e-2)
        moved.append(parameters)
    assert torch.equal(*moved)
