"""An error that ends training says how to resume, if there is a checkpoint to resume from."""

import pytest

from ml_pipeline.models.rl.transitions import TrainingFailed
from ml_pipeline.runs.checkpoint import resume_hint


@pytest.mark.parametrize("has_trained", [True, False])
def test_only_a_run_that_has_trained_is_to_be_resumed(tmp_path, has_trained):
    with pytest.raises(TrainingFailed) as failed, resume_hint(tmp_path, lambda: has_trained):
        raise TrainingFailed("the loss is NaN")
    notes = getattr(failed.value, "__notes__", [])
    assert [f"resume the run in {tmp_path}." in note for note in notes] == [True] * has_trained
