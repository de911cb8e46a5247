"""An error of a rank's environments names them by their numbers among all, and nothing else in it changes."""

from ml_pipeline.models.rl.core.stepping.errors import (
    AlsoFailed,
    EnvRaisedError,
    FailureReport,
    StepTimeoutError,
    WorkerDiedError,
)


def test_an_environment_that_raised_is_renumbered_and_its_traceback_stays():
    raised = "Traceback (most recent call last):\nKeyError: 'environment 2 of 6'"
    report = FailureReport(2, 6, 9, 3, 1, "step 3", "KeyError", raised, KeyError())
    error = report.error(worker=1)
    error.note_failures([AlsoFailed(2, 4, "KeyError")])
    assert error.__notes__ == ["Worker 2 failed as well: environment 4 raised KeyError."]
    error.number_among(6, 12)
    assert isinstance(error, EnvRaisedError)
    assert isinstance(error, KeyError)
    assert str(error) == f"Worker 1 (environment 8 of 12, seed 9) raised KeyError in step 3 with action 1:\n\n{raised}"
    assert error.__notes__ == ["Worker 2 failed as well: environment 10 raised KeyError."]


def test_a_worker_that_died_or_hangs_is_renumbered():
    died = WorkerDiedError(0, range(3), -9, "in step", 1)
    hangs = StepTimeoutError(1, range(3, 6), 4, "step within step_timeout_s=2", "")
    for error in (died, hangs):
        error.number_among(6, 12)
    assert str(died).startswith("Worker 0 (environments 6 to 8) was killed by SIGKILL in step of environment 7; ")
    assert ": environment 10 has not returned" in str(hangs)
