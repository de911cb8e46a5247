"""A policy from its checkpoint alone, on runs of the command line."""

import os
import pickle
import shutil
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch

from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.trained.load_policy import load_policy

SMALL = ["--n-envs", "2", "--n-steps", "32", "--minibatch-size", "32", "--hidden-sizes", "8", "--n-epochs", "1"]
SMALL += ["--iterations", "2", "--eval-interval", "1", "--vec-env", "serial", "--seed", "3"]
OWN_ENV = """
import gymnasium, numpy as np
from gymnasium import spaces

class Mixed(gymnasium.Env):
    observation_space = spaces.Dict(
        z=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(4, start=1), action_mask=spaces.MultiBinary(5)
    )
    action_space = spaces.MultiDiscrete([2, 3])
    def observe(self):
        mask = np.ones(5, np.int8)
        mask[2 + self.t % 3] = 0
        return {"z": np.ones(3, np.float32), "b": np.int64(1 + self.t % 4), "action_mask": mask}
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}
    def step(self, action):
        self.t += 1
        return self.observe(), float(action[0]), False, self.t >= 17, {}

gymnasium.register("Mixed-v0", entry_point="own_env:Mixed")
"""


@pytest.fixture(scope="module")
def cart_pole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cart_pole") / "run"
    assert (
        train_ppo.main(["--env-id", "CartPole-v1", *SMALL, "--eval-episodes", "2", "--checkpoint-dir", str(folder)])
        == 0
    )
    return folder


@pytest.fixture(scope="module")
def trading(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trading") / "run"
    assert train_ppo.main([*SMALL, "--checkpoint-dir", str(folder)]) == 0
    return folder


def _without_spaces(checkpoint, path):
    """The same checkpoint as if its spaces could not be written as plain data."""
    state = torch.load(checkpoint, weights_only=True)
    state["trainer"]["policy"]["spaces"] = {"observation": None, "action": None}
    torch.save(state, path)
    return path


def _returns(policy, env, seed, *, generator=None):
    policy.act.begin_episode()
    observation, _ = env.reset(seed=seed)
    rewards, done = [], False
    while not done:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation, generator=generator))
        rewards.append(float(reward))
        done = terminated or truncated
    return rewards


@pytest.mark.parametrize("name", ["", "best.pt", "latest.pt"])
def test_a_run_folder_and_its_checkpoints_are_policies_that_act(cart_pole, name):
    policy = load_policy(str(cart_pole / name))
    assert policy.checkpoint == cart_pole / (name or "best.pt")
    assert _returns(policy, gymnasium.make("CartPole-v1"), 0) == _returns(policy, gymnasium.make("CartPole-v1"), 0)
    generator = np.random.default_rng(0)
    drawn = {int(policy.act(np.zeros(4, np.float32), generator=generator)) for _ in range(50)}
    assert drawn == {0, 1}


def test_a_folder_without_a_best_policy_gives_the_latest(cart_pole, tmp_path):
    shutil.copy(cart_pole / "latest.pt", tmp_path)
    assert load_policy(tmp_path).checkpoint == tmp_path / "latest.pt"


def test_a_loaded_policy_shows_what_it_is(cart_pole):
    assert repr(load_policy(cart_pole / "latest.pt")) == (
        "LoadedPolicy(Box(4,) -> Discrete(2), hidden sizes [8], tanh, trained for 128 steps, "
        f"{cart_pole / 'latest.pt'})"
    )


def test_a_trading_policy_takes_what_its_environment_observes_without_its_data(trading):
    policy = load_policy(trading)
    observation = np.zeros(policy.observation_space.shape, np.float32)
    assert policy.action_space.contains(policy.act(observation))


@pytest.mark.parametrize("run", ["cart_pole", "trading"])
def test_a_checkpoint_of_an_older_version_acts_the_same(run, request, tmp_path):
    folder = request.getfixturevalue(run)
    old, new = load_policy(_without_spaces(folder / "best.pt", tmp_path / "old.pt")), load_policy(folder)
    assert (old.observation_space, old.action_space) == (new.observation_space, new.action_space)
    new.observation_space.seed(0)
    for _ in range(20):
        observation = new.observation_space.sample()
        np.testing.assert_array_equal(old.act(observation), new.act(observation))


@pytest.mark.long
def test_it_acts_in_a_process_that_cannot_import_the_environment(tmp_path):
    (tmp_path / "own_env.py").write_text(OWN_ENV)
    run = tmp_path / "run"
    train = [sys.executable, "-m", "ml_pipeline.train_ppo", "--env-id", "own_env:Mixed-v0", *SMALL]
    search = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with_env = {**os.environ, "PYTHONPATH": search}
    subprocess.run([*train, "--checkpoint-dir", str(run)], env=with_env, check=True, capture_output=True, timeout=100)
    act = (
        "import sys, numpy as np\n"
        "from ml_pipeline import load_policy\n"
        "policy = load_policy(sys.argv[1])\n"
        "for t in range(6):\n"
        "    mask = np.ones(5, np.int8); mask[2 + t % 3] = 0\n"
        "    action = policy.act({'z': np.ones(3, np.float32), 'b': np.int64(1 + t % 4), 'action_mask': mask})\n"
        "    assert policy.action_space.contains(action) and action[1] != t % 3, action\n"
        "assert 'own_env' not in sys.modules\n"
        "print(policy)\n"
    )
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", act, str(run)], cwd=empty, check=True, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.startswith(
        "LoadedPolicy(Dict(z: Box(3,), b: Discrete(4, start=1), action_mask: MultiBinary(5)) -> MultiDiscrete([2 3]), "
    )
    old = _without_spaces(run / "best.pt", tmp_path / "old.pt")
    with pytest.raises(UserError, match='There is no module "own_env"'):
        load_policy(old)


def _damaged(folder, tmp_path, change):
    state = torch.load(folder / "best.pt", weights_only=True)
    change(state)
    torch.save(state, tmp_path / "damaged.pt")
    return tmp_path / "damaged.pt"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: state.pop("config"), "'config' is missing"),
        (lambda state: state.pop("trainer"), "'trainer' is missing"),
        (lambda state: state["trainer"]["policy"].pop("network"), "'network' is missing"),
        (lambda state: state["trainer"]["policy"]["network"].popitem(), "Missing key"),
        (lambda state: state["trainer"]["policy"]["spaces"].update(action={"kind": 3}), "not the data of a space"),
        (lambda state: state["config"].update(n_step=3), 'unknown setting "n_step"'),
    ],
)
def test_a_damaged_checkpoint_is_one_sentence(cart_pole, tmp_path, change, sentence):
    with pytest.raises(UserError, match=sentence) as told:
        load_policy(_damaged(cart_pole, tmp_path, change))
    assert "\n" not in str(told.value)


def test_what_is_no_checkpoint_is_one_sentence(tmp_path, cart_pole):
    (tmp_path / "text.pt").write_text("weights")
    with (tmp_path / "code.pt").open("wb") as file:
        pickle.dump(print, file)
    for path, sentence in (
        (tmp_path, "has no best.pt and no latest.pt; name a run folder or a checkpoint"),
        (tmp_path / "none.pt", "There is no checkpoint"),
        (tmp_path / "text.pt", "cannot be read as a checkpoint"),
        (tmp_path / "code.pt", "cannot be read as a checkpoint"),
        (cart_pole / "config.yaml", "cannot be read as a checkpoint"),
    ):
        with pytest.raises(UserError, match=sentence) as told:
            load_policy(path)
        assert "\n" not in str(told.value)
    with pytest.raises(UserError, match="This machine has no device tpu"):
        load_policy(cart_pole, device="tpu")
