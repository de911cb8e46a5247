"""Every sample once an epoch, and sequences whole."""

import numpy as np
import torch

from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, Sequences, first_of, with_shorter_sequences
from ml_pipeline.models.rl.update.gradient_steps import epochs_of_samples, epochs_of_sequences

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
