"""Environments by their id, and masks of actions in their infos."""

import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
import yaml
from gymnasium import spaces

from ml_pipeline import enjoy, evaluate_ppo, export_policy, load_policy, train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.gym_task import GymTask
from tests.contracts.envs import MaskedEnv


class Forbidding(MaskedEnv):
    def step(self, action):
        return *super().step(action)[:4], {"action_mask": [0, 0, 0]}


class Unready(MaskedEnv):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no licence")


class Wordy(MaskedEnv):
    observation_space = spaces.Text(9)

    def reset(self, *, seed=None, options=None):
        return "begin", {}


class Verbose(Wordy):
    observation_space = spaces.Box(-1, 1, (2,))

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Text(9)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


class Grid(gymnasium.Env):
    """Observes a cell of a square of `size`; an episode takes `length` steps, and each gives `reward`."""

    action_space = spaces.Discrete(2)

    def __init__(self, size=2, length=3, reward=1.0, render_mode=None):
        self.observation_space = spaces.Discrete(size * size)
        self.length, self.reward = length, reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return 0, {}

    def step(self, action):
        self.t += 1
        return 0, self.reward, self.t == self.length, False, {}


ENVS = {
    "Choosy": MaskedEnv,
    "Asked": partial(MaskedEnv, "method"),
    **{each.__name__: each for each in (Grid, Forbidding, Unready, Wordy, Verbose)},
}


@pytest.fixture(autouse=True)
def registered():
    for name, env_class in ENVS.items():
        gymnasium.register(f"{name}-v0", env_class)
    yield
    for name in ENVS:
        del gymnasium.registry[f"{name}-v0"]


def options(name, folder):
    small = ["--n-steps", "16", "--minibatch-size", "16", "--iterations", "2", "--n-workers", "0", "--n-envs", "2"]
    return ["--env-id", f"{name}-v0", "--eval-episodes", "2", "--checkpoint-dir", str(folder), *small]


@pytest.mark.parametrize("name", ["Choosy", "Asked"])
def test_masks_are_kept_to_in_training_and_evaluation(name, tmp_path, capsys):
    assert train_ppo.main(options(name, tmp_path)) == 0
    assert f"Evaluation on a single {name}-v0: return 7.00 ± 0.00 over 2 episodes" in capsys.readouterr().out
    evaluate_ppo.main([str(tmp_path / "best.pt")])
    assert f"{name}-v0: return 7.00 ± 0.00 over 2 episodes" in capsys.readouterr().out
    assert enjoy.main([str(tmp_path), "--stochastic"]) == 0
    assert "return 7" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Choosy", "Asked"])
def test_nothing_is_found_wrong_with_a_masked_environment(name, tmp_path, capsys):
    code = train_ppo.main([*options(name, tmp_path), "--check-env"])
    assert (code, "no problem found" in capsys.readouterr().out) == (0, True)


def test_keywords_wrappers_and_frames_are_those_of_every_command(tmp_path, capsys):
    run, config = tmp_path / "run", tmp_path / "run.yaml"
    config.write_text("env_kwargs: {size: 3, length: 5}\nwrappers: FlattenObservation\n")
    flags = ["--config", str(config), "--frame-stack", "2"]
    assert train_ppo.main([*options("Grid", run), *flags]) == 0
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings["env_kwargs"] == {"size": 3, "length": 5}
    assert settings["wrappers"] == ["FlattenObservation"]
    assert settings["frame_stack"] == 2
    assert "return 5.00 ± 0.00" in capsys.readouterr().out

    evaluate_ppo.main([str(run / "best.pt")])
    assert "return 5.00 ± 0.00" in capsys.readouterr().out
    assert enjoy.main([str(run)]) == 0
    assert "return 5" in capsys.readouterr().out
    assert export_policy.main([str(run / "best.pt"), "--format", "torch"]) == 0
    policy = load_policy(run)
    assert policy.observation_space.shape == (2, 9)
    assert policy.config.run.env_kwargs == {"size": 3, "length": 5}

    assert train_ppo.main(["--resume", str(run), "--iterations", "3"]) == 0
    assert "return 5.00 ± 0.00" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        train_ppo.main(["--resume", str(run), "--env-kwargs", '{"size": 4}'])
    assert '--env-kwargs {"size": 3, "length": 5}, which cannot change on resume' in capsys.readouterr().err


def test_environments_without_masks_in_their_infos_stay_as_they_are():
    task = GymTask("CartPole-v1", eval_episodes=1, seed=0)
    for env in (task.train_env_fns(1)[0](), task.evaluation_env()):
        assert isinstance(env.observation_space, spaces.Box)
        env.close()


def test_a_mask_that_forbids_everything_is_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        train_ppo.main(options("Forbidding", tmp_path))
    assert stopped.value.code == 2
    assert capsys.readouterr().err.endswith(
        "The action mask of environment 0 forbids every action; allow one, or end the episode where there is nothing "
        "to do.\n"
    )


@pytest.mark.parametrize(
    ("name", "flags", "sentence"),
    [
        (
            "Wordy",
            [],
            "Observations of Text are not of fixed size; wrap the environment so that it gives a Box, Discrete,",
        ),
        ("Verbose", [], "Actions of Text are not supported; wrap the environment so that it takes a Box, Discrete,"),
        ("Choosy", ["--squash-actions"], "squash_actions needs a Box of actions, but the action space is Discrete(3)"),
        ("Choosy", ["--bfloat16"], "bfloat16 needs images, but the observations have none; switch"),
    ],
)
def test_a_space_or_an_option_that_the_network_has_not_is_one_sentence(name, flags, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        train_ppo.main([*options(name, tmp_path), *flags])
    err = capsys.readouterr().err
    assert (stopped.value.code, err.count("\n")) == (2, 1)
    assert err.startswith(f"train_ppo.py: {sentence}")
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(
    ("env_id", "hint"),
    [
        ("math:CartPol-v1", 'The module math exists but does not register it. Did you mean "CartPole-v1"'),
        ("CartPol-v1", 'Did you mean "CartPole-v1"'),
    ],
)
def test_an_unknown_id_is_answered_with_what_to_do(env_id, hint):
    with pytest.raises(UserError) as told:
        GymTask(env_id, eval_episodes=1, seed=0)
    assert str(told.value).startswith(f'There is no environment "{env_id}". {hint}')


MAKES_NO_ENV = """
import gymnasium

class Hungry(gymnasium.Env):
    def __init__(self):
        import pandaz

gymnasium.register("Hungry-v0", Hungry)
gymnasium.register("Elsewhere-v0", "greedy:Env")
"""


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        (
            "nope:Nope-v0",
            'There is no module "nope": run in the folder of nope.py, add that folder to PYTHONPATH, or '
            "install the module.",
        ),
        (
            "greedy:Env-v0",
            "greedy cannot be imported: line 2 of greedy.py imports pandaz, which is not there; install it",
        ),
        ("hungry:Hungry-v0", "hungry:Hungry-v0 cannot be made: line 6 of hungry.py imports pandaz, which is not"),
        ("hungry:Elsewhere-v0", "hungry:Elsewhere-v0 cannot be made: line 2 of greedy.py imports pandaz, which is"),
    ],
)
def test_an_import_that_is_missing_is_named_where_it_stands(env_id, sentence, tmp_path, monkeypatch):
    (tmp_path / "greedy.py").write_text("import gymnasium\nimport pandaz\n")
    (tmp_path / "hungry.py").write_text(MAKES_NO_ENV)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        with pytest.raises(UserError) as told:
            GymTask(env_id, eval_episodes=1, seed=0)
    finally:
        sys.modules.pop("hungry", None)
        for name in ("Hungry-v0", "Elsewhere-v0"):
            gymnasium.registry.pop(name, None)
    assert str(told.value).startswith(sentence)


def test_a_task_shows_its_environment():
    assert repr(GymTask("CartPole-v1", eval_episodes=1, seed=0)) == "GymTask(CartPole-v1)"
