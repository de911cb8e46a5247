"""What the terminal shows of a study."""

from pathlib import Path

from optuna.trial import TrialState, create_trial

from ml_pipeline.tuning.commands.tune import TrialLines, closing_lines


def _trials():
    told = [
        (TrialState.COMPLETE, 1.5, {"settings": {"gamma": 0.9}, "folders": ["trial-0000"]}),
        (TrialState.PRUNED, None, {"reason": "behind"}),
        (TrialState.PRUNED, None, {"impossible": True, "reason": "too large"}),
        (TrialState.FAIL, None, {"void": True}),
        (TrialState.FAIL, None, {"reason": "stopped"}),
        (TrialState.FAIL, None, {"reason": "It broke."}),
        (TrialState.COMPLETE, 2.5, {"settings": {"gamma": 0.8}, "folders": ["trial-0006-seed-0", "trial-0006-seed-1"]}),
    ]
    trials = [create_trial(state=state, value=value, user_attrs=attributes) for state, value, attributes in told]
    for number, trial in enumerate(trials):
        trial.number = number
    return trials


def _end(**told):
    return {"number": 6, "state": "complete", "value": 2.5, "reason": None, "global_step": 100, "seconds": 3.21, **told}


def test_each_trial_that_finishes_is_a_line():
    lines = TrialLines(10)
    assert lines.line(_end(), _trials()) == "[3/10] Trial 6: 2.5 in 3.2 s; best 2.5 by trial 6"
    pruned = lines.line(_end(state="pruned", value=1.0, global_step=10_240), _trials())
    assert pruned == "[3/10] Trial 6: pruned at step 10,240 with 1; best 2.5 by trial 6"


def test_of_a_trial_that_lost_a_rank_nothing_more_is_said_than_when_it_was_queued_again():
    assert TrialLines(10).line(_end(state="lost", reason="Rank 1 was killed by SIGKILL."), _trials()) is None


def test_a_reason_is_told_once():
    lines = TrialLines(500)
    told = [
        lines.line(_end(number=number, state="failed", reason=f"It broke at step {number}."), []) for number in range(9)
    ]
    assert [line for line in told if line] == ["Trial 0 failed: It broke at step 0."]
    other = lines.line(_end(state="failed", reason="The disk\nis away."), [])
    assert other == "Trial 6 failed: The disk is away."


def test_a_traceback_is_told_by_what_was_raised():
    reason = (
        "EnvRaisedError: Worker 0 raised ValueError in step 3:\n\nTraceback (most recent call last):\n"
        '  File "env.py", line 7, in step\n    self.break_down()\nValueError: the \x1b[31mprice is gone\n'
    )
    line = TrialLines(500).line(_end(state="failed", reason=reason), [])
    assert line == (
        "Trial 6 failed: EnvRaisedError: Worker 0 raised ValueError in step 3: ValueError: the "
        "\N{REPLACEMENT CHARACTER}[31mprice is gone"
    )


def test_reasons_that_differ_by_their_numbers_alone_are_one_at_the_end():
    trials = [
        create_trial(state=TrialState.FAIL, user_attrs={"reason": f"Its process {pid} is gone."}) for pid in (11, 12)
    ]
    assert "  2 x Its process 12 is gone." in closing_lines("s", trials, folder=Path("s"))


def test_the_end_names_the_best_trial_its_settings_and_its_folder():
    lines = closing_lines("s", _trials(), folder=Path("/runs/s"))
    assert lines == [
        "Study s: 3 trials finished (2 complete, 1 pruned, 1 failed, 1 impossible).",
        "  1 x It broke.",
        "Best value 2.5, by trial 6, the median of 2 runs, in /runs/s/trial-0006-seed-0 to trial-0006-seed-1",
        "  gamma: 0.8",
    ]


def test_a_trial_that_was_trained_further_is_no_further_trial():
    told = {"continues": 0, "settings": {"gamma": 0.9}}
    trials = [*_trials(), create_trial(state=TrialState.COMPLETE, value=3.5, user_attrs=told)]
    trials[-1].number = 7
    first, *_, best, _ = closing_lines("s", trials, folder=Path("/runs/s"))
    assert first.startswith("Study s: 3 trials finished (2 complete, 1 pruned, 1 failed, 1 impossible, 1 continued)")
    assert best == "Best value 3.5, by trial 7"


def test_a_study_without_a_complete_trial_has_no_best_one():
    assert closing_lines("s", [], folder=Path("s")) == [
        "Study s: 0 trials finished (none).",
        "No trial has completed, so there is no best trial.",
    ]


def test_settings_that_do_not_fit_together_are_no_failure_of_the_study():
    line = TrialLines(10).line(_end(number=2, state="impossible", reason="minibatch_size is too large."), _trials())
    assert line == (
        "Trial 2 was skipped, because its settings do not fit together; the study continues: minibatch_size is "
        "too large."
    )
