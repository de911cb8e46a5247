"""A study that gets nowhere ends, with the reason once."""

import signal

import pytest

from ml_pipeline.tuning.workers.setbacks import MOST_FAILED, MOST_IMPOSSIBLE, Setbacks


def _end(state, reason="It broke."):
    return {"state": state, "reason": reason}


@pytest.mark.parametrize(
    ("state", "most"), [("failed", MOST_FAILED), ("lost", MOST_FAILED), ("impossible", MOST_IMPOSSIBLE)]
)
def test_so_many_in_a_row_are_enough(state, most):
    setbacks = Setbacks()
    for _ in range(most - 1):
        setbacks.note_trial(_end(state))
    assert setbacks.sentence is None
    setbacks.note_trial(_end(state))
    assert setbacks.sentence is not None
    assert str(most) in setbacks.sentence
    assert "It broke." in setbacks.sentence


def test_the_sentence_has_what_was_raised_and_no_traceback():
    setbacks = Setbacks()
    for _ in range(MOST_FAILED):
        setbacks.note_trial(
            _end("failed", "In step 3:\n\nTraceback (most recent call last):\n  File x\nValueError: no\n")
        )
    assert str(setbacks.sentence).endswith("In step 3: ValueError: no")


@pytest.mark.parametrize("state", ["complete", "pruned"])
def test_a_trial_that_finishes_begins_the_count_anew(state):
    setbacks = Setbacks()
    for _ in range(5):
        for _ in range(MOST_FAILED - 1):
            setbacks.note_trial(_end("failed"))
        setbacks.note_trial(_end(state))
    assert setbacks.sentence is None


def test_stopped_trials_are_no_setback():
    setbacks = Setbacks()
    for _ in range(1000):
        setbacks.note_trial(_end("stopped"))
    assert setbacks.sentence is None


def test_workers_that_crash_are_not_started_for_ever():
    setbacks = Setbacks()
    for _ in range(1000):
        setbacks.note_worker(-signal.SIGSEGV, log="s/workers.log")
        if setbacks.sentence:
            break
    assert "killed by SIGSEGV; s/workers.log may say why" in str(setbacks.sentence)


def test_thirty_kills_in_a_row_are_survived():
    setbacks = Setbacks()
    for _ in range(30):
        setbacks.note_worker(-signal.SIGKILL, log="s/workers.log")
    assert setbacks.sentence is None
