import statistics
from pathlib import Path
from typing import Any, get_args

import optuna
import pytest
import yaml

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.config import SamplerName
from ml_pipeline.tuning.search.samplers import make_sampler, sampler_remark
from ml_pipeline.tuning.search.space import Space, read_space

FINITE = {
    "n_steps": {"int": [1, 4]},
    "clip_range": {"uniform": [0.1, 0.3], "step": 0.1},
    "activation": ["tanh", "relu"],
}
N_POINTS = 4 * 3 * 2


def space_of(folder: Path, content: dict[str, Any]) -> Space:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(content))
    return read_space(path)


SLOW = pytest.param("gp", marks=pytest.mark.slow)


def study_with(name: str, seed: int, space: Space) -> optuna.Study:
    return optuna.create_study(sampler=make_sampler(name, seed, space), direction="maximize")


def tell_some(study: optuna.Study, space: Space, n: int) -> list[dict[str, Any]]:
    """Settings of n trials; each is told what depends on them alone."""
    drawn = []
    for _ in range(n):
        trial = study.ask()
        drawn.append(space.suggest(trial))
        study.tell(trial, sum(value for value in drawn[-1].values() if isinstance(value, int | float)))
    return drawn


@pytest.mark.parametrize("name", [SLOW if name == "gp" else name for name in get_args(SamplerName)])
def test_the_same_seed_draws_the_same_and_another_one_does_not(tmp_path, name):
    space = space_of(tmp_path, FINITE)
    first, again, other = (tell_some(study_with(name, seed, space), space, 12) for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("name", ["tpe", SLOW, "cmaes", "random"])
def test_every_sampler_takes_the_spaces_that_have_a_name(name):
    space = read_space("trading")
    assert len(tell_some(study_with(name, 0, space), space, 12)) == 12


@pytest.mark.parametrize("name", ["tpe", SLOW, "cmaes"])
def test_samplers_come_nearer_to_the_best_than_chance(tmp_path, name):
    space = space_of(tmp_path, {"clip_range": {"uniform": [0.0001, 1]}, "ent_coef": {"uniform": [0, 1]}})
    study = study_with(name, 1, space)
    distances = []
    for _ in range(30 if name == "gp" else 60):
        trial = study.ask()
        drawn = space.suggest(trial)
        distances.append((drawn["clip_range"] - 0.3) ** 2 + (drawn["ent_coef"] - 0.8) ** 2)
        study.tell(trial, -distances[-1])
    assert statistics.mean(distances[-15:]) < statistics.mean(distances[:10]) / 2


def test_the_grid_has_every_point_once_and_is_exhausted_then(tmp_path):
    space = space_of(tmp_path, FINITE)
    study = study_with("grid", 0, space)
    assert isinstance(study.sampler, optuna.samplers.GridSampler)
    points = [tuple(each.values()) for each in tell_some(study, space, N_POINTS - 1)]
    assert not study.sampler.is_exhausted(study)
    points += [tuple(each.values()) for each in tell_some(study, space, 1)]
    assert len(set(points)) == N_POINTS
    assert study.sampler.is_exhausted(study)


def test_the_grid_makes_up_for_void_trials_and_not_for_repeated_ones(tmp_path):
    space = space_of(tmp_path, FINITE)
    study = study_with("grid", 0, space)
    lost = study.ask()
    never_run = space.suggest(lost)
    lost.set_user_attr("void", True)
    study.tell(lost, state=optuna.trial.TrialState.FAIL)
    failed = study.ask()
    repeated = space.suggest(failed)
    study.tell(failed, state=optuna.trial.TrialState.FAIL)
    study.enqueue_trial(failed.params)
    drawn = tell_some(study, space, N_POINTS)
    assert drawn[0] == repeated
    assert never_run in drawn[1:]
    assert repeated not in drawn[1:]
    assert isinstance(study.sampler, optuna.samplers.GridSampler)
    assert study.sampler.is_exhausted(study)


def test_the_grid_takes_hyperband_which_shows_samplers_some_trials_alone(tmp_path):
    space = space_of(tmp_path, FINITE)
    study = study_with("grid", 0, space)
    study.pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=9)
    points = [tuple(each.values()) for each in tell_some(study, space, N_POINTS)]
    assert len(set(points)) == N_POINTS


def test_a_grid_of_a_continuous_range_is_refused():
    with pytest.raises(UserError, match="A grid has finitely many points, but learning_rate"):
        make_sampler("grid", 0, read_space("ppo"))


def test_cma_es_without_ranges_is_refused(tmp_path):
    space = space_of(tmp_path, {"activation": ["tanh", "relu"], "gamma": {"uniform": [0.9, 0.99]}})
    with pytest.raises(UserError, match=r"needs at least two ranges, but the space space.yaml has 1"):
        make_sampler("cmaes", 0, space)


def test_an_unknown_sampler_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r'There is no sampler "tp"\. Did you mean "tpe"'):
        make_sampler("tp", 0, read_space("ppo"))


def test_it_is_said_what_a_sampler_leaves_to_another_and_how_many_points_a_grid_has(tmp_path):
    def asks(trial: optuna.Trial) -> dict[str, Any]:
        return {"gamma": trial.suggest_float("gamma", 0.9, 0.99)}

    assert sampler_remark("grid", space_of(tmp_path, FINITE)) == (
        f"The grid of the space space.yaml has {N_POINTS} points; the study ends after them."
    )
    assert "TPE chooses hidden_sizes, activation" in str(sampler_remark("cmaes", read_space("ppo")))
    assert sampler_remark("tpe", read_space("ppo")) is None
    assert "is a function" in str(sampler_remark("gp", read_space(asks)))
