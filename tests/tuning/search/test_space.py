import json
import re
from pathlib import Path

import optuna
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import hints_of
from ml_pipeline.runs.train_config import TrainConfig, train_config
from ml_pipeline.trading.features.indicators import make_features
from ml_pipeline.tuning.search.space import SEARCHABLE, SPACES, read_space
from tests.examples import COSTLY

FINITE = {
    "activation": ["tanh", "relu"],
    "n_epochs": {"int": [1, 4]},
    "minibatch_size": {"power_of_two": [32, 128]},
    "clip_range": {"uniform": [0.1, 0.3], "step": 0.1},
    "hidden_sizes": [[64, 64], [8]],
}
LINES = {
    **FINITE,
    "learning_rate": {"log": ["1e-5", "1e-2"]},
    "gamma": {"one_minus_log": [0.9, 0.999]},
    "ent_coef": {"uniform": [0, 0.1]},
    "n_steps": {"int": [16, 512], "log": True},
    "clip_range_vf": ["none", 0.2],
    "normalize_obs": [True, False],
    "features": [["rsi_14"], ["rsi_14", "macd"]],
    "reward_kwargs": [{}, {"risk_free_rate": 0.02}],
    "stop_loss": [None, 0.05],
}


def random_study(seed: int = 0) -> optuna.Study:
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))


def space_file(folder: Path, content: object, name: str = "space.yaml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def suggest_gamma(trial: optuna.Trial) -> dict[str, object]:
    return {"gamma": trial.suggest_float("gamma", 0.9, 0.99)}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_with_a_name_search_settings_that_there_are(name):
    named = read_space(name).described()
    assert set(named) <= SEARCHABLE & set(hints_of(TrainConfig))
    assert {"learning_rate", "n_steps", "minibatch_size", "n_epochs", "hidden_sizes"} <= set(named)


def test_the_space_of_trading_is_that_of_ppo_and_what_is_observed_and_rewarded():
    ppo, trading = (read_space(name).described() for name in ("ppo", "trading"))
    assert {**trading, **ppo} == trading
    assert set(trading) - set(ppo) == {"features", "window", "reward"}


def test_features_of_the_space_of_trading_need_as_many_earlier_bars_each():
    choices = read_space("trading").described()["features"]["choice"]
    longest = {max(each.warm_up for name in names for each in make_features(name)) for names in choices}
    assert longest == {25}


@pytest.mark.parametrize("name", SPACES)
def test_500_draws_are_buildable_or_impossible_and_few_of_them_impossible(name):
    space, study, impossible = read_space(name), random_study(), 0
    for _ in range(500):
        drawn = space.suggest(study.ask())
        if drawn["minibatch_size"] > 8 * drawn["n_steps"]:
            impossible += 1
            with pytest.raises(UserError, match="minibatch_size must be at most"):
                train_config({"n_envs": 8, **drawn})
        else:
            assert train_config({"n_envs": 8, **drawn}).ppo.learning_rate == drawn["learning_rate"]
    # A minibatch of 512 from rollouts of 8 * 32 steps, or of 1,024 from those or of 8 * 64: 3 of 7 * 6 pairs.
    assert impossible / 500 < 0.12


@settings(max_examples=COSTLY)
@given(names=st.sets(st.sampled_from(sorted(LINES)), min_size=1), seed=st.integers(0, 2**31))
def test_a_file_with_any_of_these_lines_sets_them_and_no_more(tmp_path_factory, names, seed):
    path = space_file(tmp_path_factory.mktemp("space"), {name: LINES[name] for name in names})
    space = read_space(path)
    study = random_study(seed)
    trial = study.ask()
    drawn = space.suggest(trial)
    assert set(drawn) == names == set(space.described())
    json.dumps([space.described(), drawn])
    assert set(trial.params) == set(space.distributions())
    # What Optuna stored gives the same settings again: of a trial that is retried, or continued.
    study.enqueue_trial(trial.params)
    assert space.suggest(study.ask()) == drawn


def test_a_file_may_extend_a_space_and_change_lines_of_it(tmp_path):
    path = space_file(tmp_path, {"extends": "ppo", "gamma": [0.9, 0.99], "window": [1, 2]})
    described = read_space(path).described()
    assert described["gamma"] == {"choice": [0.9, 0.99]}
    assert {
        **read_space("ppo").described(),
        "gamma": {"choice": [0.9, 0.99]},
        "window": {"choice": [1, 2]},
    } == described


def test_a_copy_of_a_space_is_the_same_space(tmp_path):
    copied = space_file(tmp_path, SPACES["ppo"].read_text(), "mine.yml")
    assert read_space(copied).described() == read_space("ppo").described()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"fee_bps": {"uniform": [0, 5]}}, "fee_bps cannot be searched: costs are not searched"),
        ({"train_fraction": {"uniform": [0.5, 0.8]}}, "train_fraction cannot be searched: it decides which bars"),
        ({"learning_rat": {"log": [1, 2]}}, 'unknown setting "learning_rat". Did you mean "learning_rate"?'),
        ({"gamma": {"uniform": [0.9, 1.1]}}, "gamma must lie between 0 and 1, but got 1.1"),
        ({"n_steps": {"int": [0, 8]}}, "n_steps must be a whole number of at least 1, but got 0"),
        ({"features": [["rsi_14"], ["rsii_14"]]}, 'There is no feature "rsii_14"'),
        ({"reward": ["log_retrun"]}, 'There is no reward "log_retrun". Did you mean "log_return"?'),
        ({"gamma": [0.9], "extends": "ppp"}, 'extends must name a space, but got "ppp". Did you mean "ppo"?'),
        ({"gamma": [0.9], "extends": ["ppo"]}, "extends must name a space, but got"),
        ("gamma: [0.9]\ngamma: [0.8]", "gamma is set twice"),
        ("n_steps: [8]\nn-steps: [9]", "n_steps is set twice"),
        ("- gamma", "must hold lines such as"),
        ("gamma: {", "is not valid YAML"),
        ("", "has no setting to search"),
        ({5: [1]}, 'unknown setting "5"'),
    ],
)
def test_a_file_that_is_no_space_is_refused_in_one_sentence(tmp_path, content, sentence):
    with pytest.raises(UserError, match=sentence) as told:
        read_space(space_file(tmp_path, content))
    assert "\n" not in str(told.value)
    assert "space.yaml" in str(told.value)


def test_choices_that_another_setting_must_allow_are_left_to_the_trials(tmp_path):
    for first, second in (
        ({"memory": ["none", "gru"]}, "memory_size"),
        ({"use_sde": [False, True]}, "sde_sample_freq"),
    ):
        path = space_file(tmp_path, {**first, second: [32, 64]})
        assert set(read_space(path).described()) == {*first, second}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("pop", 'There is no search space "pop". Did you mean "ppo"?'), ("no/such.yaml", "no/such.yaml cannot be read")],
)
def test_a_space_that_is_not_there_is_said_so(name, sentence):
    with pytest.raises(UserError, match=sentence):
        read_space(name)


def test_a_function_is_a_space(tmp_path):
    source = (
        "import optuna\n\ndef mine(trial: optuna.Trial):\n"
        "    layers = trial.suggest_int('layers', 1, 3)\n"
        "    return {'hidden-sizes': (64,) * layers, 'gamma': 0.9}\n"
    )
    path = space_file(tmp_path, source, "mine.py")
    space = read_space(f"{path}:mine")
    trial = random_study().ask()
    drawn = space.suggest(trial)
    assert drawn == {"hidden_sizes": (64,) * trial.params["layers"], "gamma": 0.9}
    assert space.distributions() is None
    assert space.described()["function"] == "mine.py:mine"


def test_a_function_that_was_changed_is_another_space_and_its_folder_does_not_count(tmp_path):
    source = "def mine(trial):\n    return {'gamma': 0.9}\n"
    described = []
    for folder, text in (("a", source), ("b", source), ("c", source.replace("0.9", "0.8"))):
        (tmp_path / folder).mkdir()
        described.append(read_space(f"{space_file(tmp_path / folder, text, 'mine.py')}:mine").described())
    assert described[0] == described[1] != described[2]


def test_a_function_of_a_module_and_one_handed_in_are_spaces():
    for named in (f"{__name__}:suggest_gamma", suggest_gamma):
        assert 0.9 <= read_space(named).suggest(random_study().ask())["gamma"] <= 0.99


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return {'fee_bps': 0.0}", "fee_bps cannot be searched: costs"),
        ("return {'gama': 0.9}", 'unknown setting "gama". Did you mean "gamma"?'),
        ("return {'gamma': 'high'}", 'mine.py:mine: gamma must be a number, but got "high"'),
        ("return 0.9", "mine must return settings by name"),
        ("return 1 / 0", "mine failed in line 2 of mine.py: ZeroDivisionError"),
    ],
)
def test_a_function_that_fails_or_sets_what_it_may_not_is_told(tmp_path, body, sentence):
    path = space_file(tmp_path, f"def mine(trial):\n    {body}\n", "mine.py")
    with pytest.raises(UserError, match=sentence):
        read_space(f"{path}:mine").suggest(random_study().ask())


@pytest.mark.parametrize(
    ("source", "named", "sentence"),
    [
        ("def mine(trial): ...", "mien", 'has no "mien". Did you mean "mine"?'),
        ("mine = 3", "mine", "must be a function that takes an optuna.Trial, but is 3"),
        ("import pandaz", "mine", "line 1 of .*mine.py imports pandaz, which is not there"),
        ("def mine(", "mine", "is not valid Python"),
        (None, "mine", "mine.py cannot be read: No such file"),
    ],
)
def test_a_function_that_cannot_be_found_is_told(tmp_path, source, named, sentence):
    path = tmp_path / "mine.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(UserError, match=sentence):
        read_space(f"{path}:{named}")


def test_a_function_may_call_a_trial_impossible():
    def impossible(trial: optuna.Trial) -> dict[str, object]:
        raise optuna.TrialPruned("too large together")

    with pytest.raises(optuna.TrialPruned):
        read_space(impossible).suggest(random_study().ask())


def test_the_grid_of_a_finite_space_has_every_point(tmp_path):
    grid = read_space(space_file(tmp_path, FINITE)).grid()
    assert {name: list(points) for name, points in grid.items()} == {
        "activation": ["tanh", "relu"],
        "n_epochs": [1, 2, 3, 4],
        "log2_minibatch_size": [5, 6, 7],
        "clip_range": pytest.approx([0.1, 0.2, 0.3]),
        "hidden_sizes": ["[64, 64]", "[8]"],
    }


def test_a_grid_of_a_continuous_range_of_a_function_or_of_too_many_points_is_refused(tmp_path):
    with pytest.raises(
        UserError, match="learning_rate in the space ppo is a continuous range; give it choices or a step"
    ):
        read_space("ppo").grid()
    with pytest.raises(UserError, match="is a function, which decides trial by trial"):
        read_space(suggest_gamma).grid()
    many = {"n_steps": {"int": [1, 1000]}, "minibatch_size": {"int": [1, 1000]}}
    with pytest.raises(UserError, match="has 1,000,000 points, more than 10,000"):
        read_space(space_file(tmp_path, many)).grid()


def test_the_examples_of_the_docs_are_spaces(tmp_path):
    page = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "tune-settings.md").read_text()
    blocks = re.findall(r"```(?:yaml|python)\n(.*?)```", page, re.DOTALL)
    of_yaml, of_python = (next(block for block in blocks if text in block) for text in ("# space.yaml", "def suggest"))
    declared = read_space(space_file(tmp_path, of_yaml))
    assert declared.suggest(random_study().ask())["hidden_sizes"] in {(64, 64), (256, 256)}
    function = read_space(f"{space_file(tmp_path, of_python, 'space.py')}:suggest")
    assert set(function.suggest(random_study().ask())) == {"hidden_sizes", "learning_rate"}
