"""Every sample once an epoch, and sequences whole; Adam against that of torch."""

import numpy as np
import pytest
import torch

from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, Sequences, first_of, with_shorter_sequences
from ml_pipeline.models.rl.update import gradient_steps
from ml_pipeline.models.rl.update.gradient_steps import FlatAdam, epochs_of_samples, epochs_of_sequences

N_STEPS, N_SEQUENCES = 4, 5


def numbered(*, sequences=False):
    """A batch in which every tensor says which sample it belongs to."""
    numbers = torch.arange(float(N_STEPS * N_SEQUENCES))
    starts = torch.zeros(N_STEPS, N_SEQUENCES, dtype=torch.bool)
    starts[1, 3] = True
    state = torch.arange(float(N_SEQUENCES))[:, None]
    extra = Sequences(starts, state) if sequences else None
    return Minibatch(numbers[:, None], numbers.long(), LossInputs(numbers, numbers, numbers, numbers), extra)


def test_samples_come_once_an_epoch_and_their_parts_stay_together():
    parts = list(epochs_of_samples(numbered(), n_epochs=2, size=8, generator=np.random.default_rng(0)))
    assert [len(part.observations) for part in parts] == [8, 8, 4, 8, 8, 4]
    first, second = (torch.cat([part.actions for part in parts[k : k + 3]]) for k in (0, 3))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(20))
    assert first.tolist() != second.tolist()
    for part in parts:
        assert all(torch.equal(row, part.observations[:, 0]) for row in (*part.inputs, part.actions.float()))


def test_bytes_come_in_the_order_of_numbers_and_stay_bytes():
    batch = numbered()
    of_bytes = batch._replace(observations=batch.observations.byte())
    found, expected = (
        list(epochs_of_samples(each, n_epochs=2, size=8, generator=np.random.default_rng(0)))
        for each in (of_bytes, batch)
    )
    for one, other in zip(found, expected, strict=True):
        assert one.observations.dtype == torch.uint8
        assert torch.equal(one.observations, other.observations.byte())
        assert torch.equal(one.actions, other.actions)
        assert torch.equal(torch.stack(one.inputs), torch.stack(other.inputs))


def test_sequences_stay_whole_with_their_starts_and_state():
    batch = numbered(sequences=True)
    parts = list(epochs_of_sequences(batch, n_epochs=1, size=11, generator=np.random.default_rng(0)))
    assert [part.sequences.state.shape[0] for part in parts] == [2, 2, 1]  # 11 samples hold two sequences of four
    assert sorted(torch.cat([part.sequences.state for part in parts]).flatten().tolist()) == [0, 1, 2, 3, 4]
    for part in parts:
        environments = part.sequences.state.flatten()
        steps = torch.arange(float(N_STEPS))[:, None]
        expected = (steps * N_SEQUENCES + environments).flatten()  # one step after another
        assert all(torch.equal(row, expected) for row in (part.observations[:, 0], part.actions, *part.inputs))
        assert torch.equal(part.sequences.starts, (steps == 1) & (environments == 3))


def test_a_minibatch_smaller_than_a_sequence_is_a_sequence():
    parts = list(epochs_of_sequences(numbered(sequences=True), n_epochs=1, size=2, generator=np.random.default_rng(0)))
    assert [len(part.observations) for part in parts] == [N_STEPS] * N_SEQUENCES


def test_shorter_sequences_begin_with_the_state_before_them():
    batch = numbered(sequences=True)
    states = 100 + torch.arange(float(N_STEPS * N_SEQUENCES)).view(N_STEPS, N_SEQUENCES, 1)
    cut = with_shorter_sequences(batch, states, 2)
    # Sequences 0 to 4 are the first two steps of each, 5 to 9 the last two, which begin with the state after step 1.
    first = torch.arange(float(N_SEQUENCES))
    assert torch.equal(cut.sequences.state[:, 0], torch.cat([first, 105 + first]))
    expected = torch.cat([first, 10 + first, 5 + first, 15 + first])  # one step after another
    assert all(torch.equal(row, expected) for row in (cut.observations[:, 0], cut.actions, *cut.inputs))
    assert cut.sequences.starts.nonzero().tolist() == [[1, 3]]
    whole = with_shorter_sequences(batch, states, N_STEPS)
    assert torch.equal(whole.sequences.state, batch.sequences.state)
    assert torch.equal(whole.observations, batch.observations)


def test_the_first_samples_are_whole_sequences():
    assert torch.equal(first_of(numbered(), size=7).actions, torch.arange(7))
    assert first_of(numbered(sequences=True), size=11).sequences.state.flatten().tolist() == [0, 1]
    assert first_of(numbered(sequences=True), size=1).sequences.state.flatten().tolist() == [0]
    assert len(first_of(numbered(sequences=True), size=99).actions) == 20


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
