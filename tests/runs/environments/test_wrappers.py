"""Wrappers are found by their names, and what cannot be used is one sentence."""

from contextlib import closing

import gymnasium
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.environments.gym_env import wrapped

MODULE = """
import gymnasium

class Halved(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2

def limited(env):
    return gymnasium.wrappers.TimeLimit(env, 3)

def broken(env):
    return "no environment"

def failing(env):
    return len(7)
"""


@pytest.fixture
def env(tmp_path, monkeypatch):
    (tmp_path / "wrappers_of_mine.py").write_text(MODULE)
    (tmp_path / "importing_what_is_not.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with closing(gymnasium.make("CartPole-v1")) as made:
        yield made


def test_classes_and_functions_of_a_module_wrap(env):
    halved = wrapped(env, "wrappers_of_mine:Halved")
    halved.reset(seed=0)
    assert halved.step(0)[1] == 0.5
    limited = wrapped(env, "wrappers_of_mine:limited")
    limited.reset(seed=0)
    assert [limited.step(k % 2)[3] for k in range(3)] == [False, False, True]


def test_a_wrapper_of_gymnasium_goes_by_its_name_alone(env):
    assert isinstance(wrapped(env, "FlattenObservation"), gymnasium.wrappers.FlattenObservation)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "FlattenObservations",
            'gymnasium.wrappers has no FlattenObservations. Did you mean "FlattenObservation"? Name your own wrapper '
            "as module:Wrapper.",
        ),
        (
            "wrappers_of_mine:Halve",
            'wrappers_of_mine:Halve cannot be imported: wrappers_of_mine has no "Halve". Did you mean "Halved"?',
        ),
        (
            "nope.wrappers:Halved",
            'There is no module "nope": run in the folder of nope.py, add that folder to PYTHONPATH, or '
            "install the module.",
        ),
        (
            "importing_what_is_not:Wrapper",
            "importing_what_is_not cannot be imported: line 1 of importing_what_is_not.py imports "
            "a_package_that_nobody_has, which is not there; install it, or add its folder to PYTHONPATH.",
        ),
        (
            "TimeLimit",
            "The wrapper TimeLimit needs more arguments than the environment (TimeLimit.__init__() missing 1 required "
            "positional argument: 'max_episode_steps'); name a function of your own, such as my_project:wrap, that "
            "passes them.",
        ),
        (
            "wrappers_of_mine:broken",
            "The wrapper wrappers_of_mine:broken must return a gymnasium.Env, but returned a str.",
        ),
    ],
)
def test_what_cannot_wrap_is_one_sentence(env, name, sentence):
    with pytest.raises(UserError) as told:
        wrapped(env, name)
    assert str(told.value) == sentence


def test_what_a_wrapper_raises_is_its_own(env):
    with pytest.raises(TypeError, match="has no len"):
        wrapped(env, "wrappers_of_mine:failing")
