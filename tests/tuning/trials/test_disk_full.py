"""A failure is taken to be about a full disk by its sentence, whoever wrote it."""

import errno
import os

import pytest

from ml_pipeline.tuning.trials.worker import is_about_a_full_disk


@pytest.mark.parametrize(
    "sentence",
    [
        f"[Errno 28] {os.strerror(errno.ENOSPC)}",
        "Cannot write the checkpoint latest.pt: the disk is full, or only part of it was written.",
        f"Cannot write the checkpoint latest.pt: {os.strerror(errno.EFBIG).lower()}.",
    ],
)
def test_a_disk_that_takes_no_more_is_full(sentence):
    assert is_about_a_full_disk(sentence)


@pytest.mark.parametrize("sentence", [None, "", "The numbers are not finite."])
def test_other_failures_are_not_about_the_disk(sentence):
    assert not is_about_a_full_disk(sentence)
