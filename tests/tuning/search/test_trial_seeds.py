"""What a sampler draws depends on the study and its seed, and not on which process asks or how often it began."""

import optuna
import pytest
from optuna.trial import TrialState

from ml_pipeline.tuning.search.samplers import SeededByTrial, drawn_before
from tests.tuning.stand_in_runs import open_study, suggest_x

SAMPLERS = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=2),
}


def _told(study, n):
    values = []
    for _ in range(n):
        trial = study.ask()
        values.append(suggest_x(trial)["x"])
        study.tell(trial, values[-1])
    return values


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_study_that_is_opened_anew_goes_on_with_the_same_sequence(tmp_path, name):
    at_once = _told(open_study(tmp_path / "a", seed=7, make=SAMPLERS[name]), 6)
    in_parts = [value for n in (2, 1, 3) for value in _told(open_study(tmp_path / "b", seed=7, make=SAMPLERS[name]), n)]
    assert in_parts == at_once
    assert _told(open_study(tmp_path / "c", seed=8, make=SAMPLERS[name]), 6) != at_once


def test_two_workers_with_one_seed_draw_different_settings(tmp_path):
    one, other = open_study(tmp_path), open_study(tmp_path)
    assert suggest_x(one.ask()) != suggest_x(other.ask())


def test_trials_that_repeat_earlier_ones_do_not_shift_the_sequence(tmp_path):
    undisturbed = _told(open_study(tmp_path / "a"), 3)
    study = open_study(tmp_path / "b")
    trial = study.ask()
    first = suggest_x(trial)["x"]
    study.tell(trial, state=TrialState.FAIL)
    study.enqueue_trial({"x": first}, user_attrs={"failed_trial": 0})
    assert [first, *_told(study, 3)] == [first, first, *undisturbed[1:]]
    assert drawn_before(study, 3) == 2


def test_a_grid_is_drawn_whole_by_two_workers_and_then_exhausted(tmp_path):
    def make(seed):
        return optuna.samplers.GridSampler({"x": [0.1, 0.2, 0.3, 0.4]}, seed=seed)

    studies = [open_study(tmp_path, seed=3, make=make) for _ in range(2)]
    drawn = [value for _ in range(2) for study in studies for value in _told(study, 1)]
    assert sorted(drawn) == [0.1, 0.2, 0.3, 0.4]
    assert all(study.sampler.is_exhausted(study) for study in studies)


def test_a_pruner_that_shows_one_bracket_alone_does_not_repeat_seeds(tmp_path):
    study = open_study(tmp_path)
    study.pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9)
    assert len({suggest_x(study.ask())["x"] for _ in range(12)}) == 12


def test_what_cannot_be_made_is_refused_at_once():
    with pytest.raises(ValueError, match="no such sampler"):
        SeededByTrial(_refuse, 0)


def _refuse(seed):
    raise ValueError("no such sampler")
