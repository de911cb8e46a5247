"""What is said of an id or a keyword that Gymnasium cannot make: what to install, and what is near."""

import gymnasium
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.environments.ids import id_error, import_module_of, keyword_error
from ml_pipeline.runs.gym_task import reports_mask_at_reset


def told_of(env_id, **settings):
    with pytest.raises(UserError) as told:
        reports_mask_at_reset(GymEnv(env_id=env_id, **settings), seed=0)
    return str(told.value)


def test_a_module_of_the_package_that_registers_the_id_is_named(tmp_path, monkeypatch):
    package = tmp_path / "gardens"
    (package / "broken_envs").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "broken_envs" / "__init__.py").write_text("import pandaz")
    (package / "envs.py").write_text(
        "import gymnasium; gymnasium.register('gardens/Rose-v0', 'gymnasium.envs.classic_control:CartPoleEnv')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert told_of("gardens:gardens/Rose-v0") == (
            'There is no environment "gardens:gardens/Rose-v0". The module gardens exists but does not register it. '
            "gardens.envs does: gardens.envs:gardens/Rose-v0."
        )
    finally:
        gymnasium.registry.pop("gardens/Rose-v0", None)


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        (
            "ALE/Pong-v5",
            'There is no environment "ALE/Pong-v5". pip install ale-py opencv-python-headless, then put its module '
            "before a colon: ale_py:ALE/Pong-v5.",
        ),
        (
            "BreakoutNoFrameskip-v4",
            'There is no environment "BreakoutNoFrameskip-v4". pip install ale-py opencv-python-headless, then put '
            "its module before a colon: ale_py:ALE/Breakout-v5. Add --atari for the usual preprocessing.",
        ),
        (
            "MiniGrid-Empty-5x5-v0",
            'There is no environment "MiniGrid-Empty-5x5-v0". pip install minigrid, then put its module before a '
            "colon: minigrid:MiniGrid-Empty-5x5-v0.",
        ),
        ("CartPole-v9", 'There is no environment "CartPole-v9". Did you mean "CartPole-v1", "CartPole-v0"'),
        ("cartpole", 'There is no environment "cartpole". Did you mean "CartPole-v1"'),
        (
            "zzz",
            'There is no environment "zzz". Put the module that registers it before a colon, as in '
            "my_project:MyEnv-v0.",
        ),
        ("not an id!", 'There is no environment "not an id!". Put the module that registers it before a colon'),
        (
            "nowhere_at_all.envs:MyEnv-v0",
            'There is no module "nowhere_at_all": run in the folder of nowhere_at_all.py, '
            "add that folder to PYTHONPATH, or install the module.",
        ),
    ],
)
def test_an_unknown_id_is_answered_with_what_to_do(env_id, sentence):
    said = told_of(env_id)
    assert said.startswith(sentence)
    assert len(said) < 300


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            gymnasium.error.DependencyNotInstalled(
                "Box2D is not installed, you can install it by run `pip install swig` followed by\n"
                '`pip install "gymnasium[box2d]"`'
            ),
            "LunarLander-v3 cannot be made: Box2D is not installed, you can install it by run "
            '`pip install swig` followed by `pip install "gymnasium[box2d]"`.',
        ),
        (
            gymnasium.error.DependencyNotInstalled("opencv-python package not installed, run `pip install gymnasium`"),
            "LunarLander-v3 cannot be made: opencv-python-headless is not installed; pip install "
            "ale-py opencv-python-headless.",
        ),
    ],
)  # fmt: skip
def test_what_is_to_be_installed_is_said(error, sentence):
    assert str(id_error("LunarLander-v3", error)) == sentence


def test_a_missing_package_of_environments_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr("ml_pipeline.runs.environments.ids.find_spec", lambda name: None)
    with pytest.raises(UserError) as told:
        import_module_of("minigrid:MiniGrid-Empty-5x5-v0")
    assert str(told.value) == (
        "minigrid:MiniGrid-Empty-5x5-v0 needs minigrid, which is not installed; pip install minigrid."
    )


class Sized(gymnasium.Env):
    def __init__(self, size=3, **others):
        super().__init__()
        assert not others


class Handing(Sized):
    def __init__(self, colour="red", render_mode=None, **others):
        super().__init__(**others)


class Handed(gymnasium.Env):
    def __init__(self):
        pass


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Gymnasium's own environments and those of this file, whatever modules other tests have imported."""
    own = {name: spec for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.")}
    monkeypatch.setattr(gymnasium.envs.registration, "registry", own)
    monkeypatch.setattr(gymnasium, "registry", own)
    for env_class in (Sized, Handing, Handed):
        gymnasium.register(f"{env_class.__name__}-v0", env_class)


@pytest.mark.parametrize(
    ("env_id", "keywords", "sentence"),
    [
        (
            "FrozenLake-v1",
            {"map": "8x8"},
            'FrozenLake-v1 has no keyword "map"; it takes desc, map_name, is_slippery',
        ),
        (
            "CartPole-v1",
            {"sutton_barto": True},
            'CartPole-v1 has no keyword "sutton_barto"; it takes sutton_barto_reward. Did you',
        ),
        ("Handed-v0", {"size": 3}, 'Handed-v0 has no keyword "size"; it takes none.'),
    ],
)
def test_an_unknown_keyword_is_answered_with_those_that_it_takes(env_id, keywords, sentence):
    assert told_of(env_id, env_kwargs=keywords).startswith(sentence)


def test_keywords_that_a_class_hands_on_are_those_of_the_class_above():
    error = TypeError("__init__() got an unexpected keyword argument 'colours'")
    said = str(keyword_error("Handing-v0", error, {"colours": 1}))
    assert said == 'Handing-v0 has no keyword "colours"; it takes colour, size. Did you mean "colour"?'
    assert keyword_error("Handing-v0", error, {"size": 1}) is None


def test_an_id_without_a_version_has_the_keywords_of_the_newest():
    error = TypeError("__init__() got an unexpected keyword argument 'foo'")
    said = str(keyword_error("CartPole", error, {"foo": 1}))
    assert said == 'CartPole has no keyword "foo"; it takes sutton_barto_reward.'


class Unreadable:
    """A creator whose signature cannot be read."""

    __signature__ = "none"

    def __call__(self, **keywords):
        return Sized()


@pytest.mark.parametrize("entry_point", [Unreadable(), "no_such_module:Env"], ids=["unreadable", "gone"])
def test_keywords_that_cannot_be_looked_up_are_not_told(monkeypatch, entry_point):
    spec = gymnasium.envs.registration.EnvSpec("Odd-v0", entry_point=entry_point)
    monkeypatch.setitem(gymnasium.registry, "Odd-v0", spec)
    error = TypeError("__init__() got an unexpected keyword argument 'colours'")
    assert keyword_error("Odd-v0", error, {"colours": 1}) is None
    assert keyword_error("Nowhere-v0", error, {"colours": 1}) is None
