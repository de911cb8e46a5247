"""`ParallelEnv` under Stable-Baselines3: the same as its own vectorizer, and what its algorithms train on."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import ActionsError

stable_baselines3 = pytest.importorskip("stable_baselines3")

from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.logger import Logger  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize  # noqa: E402

from ml_pipeline.integrations.sb3 import SB3ParallelEnv  # noqa: E402


class NewArraysEnv(CountingEnv):
    """DummyVecEnv keeps references to infos and observations."""

    def _observe(self):
        return super()._observe().copy()


class DictEnv(NewArraysEnv):
    """Observes a dict."""

    def __init__(self):
        super().__init__(length=3)
        self.observation_space = spaces.Dict(all=self.observation_space, step=spaces.Discrete(10))

    def _observe(self):
        return {"all": super()._observe(), "step": self._t}


@pytest.fixture
def make():
    made = []

    def make_one(env_fns, **options):
        made.append(SB3ParallelEnv(env_fns, **{"num_workers": 2, **options}))
        return made[-1]

    yield make_one
    for envs in made:
        envs.close()


def plain(info):
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in info.items()}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_steps_as_stable_baselines3_does(make, num_workers):
    env_fns = [lambda i=i: NewArraysEnv(length=2 + i, spread=2) for i in range(3)]
    ours, theirs = make(env_fns, num_workers=num_workers), DummyVecEnv(env_fns)
    ours.seed(5)
    theirs.seed(5)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    assert [info["end"] for info in ours.reset_infos] == [info["end"] for info in theirs.reset_infos]
    n_over = 0
    for step in range(30):
        actions = np.array([step % 4, 1, 2])
        (obs, rewards, dones, infos), (obs2, rewards2, dones2, infos2) = ours.step(actions), theirs.step(actions)
        np.testing.assert_array_equal(obs, obs2)
        np.testing.assert_array_equal(rewards, rewards2)
        np.testing.assert_array_equal(dones, dones2)
        assert rewards.dtype == rewards2.dtype
        assert dones.dtype == dones2.dtype
        assert [plain(info) for info in infos] == [plain(info) for info in infos2]
        assert [info["end"] for info in ours.reset_infos] == [info["end"] for info in theirs.reset_infos]
        n_over += sum(dones)
    assert n_over > 15


def test_dict_observations(make):
    ours, theirs = make([DictEnv] * 2), DummyVecEnv([DictEnv] * 2)
    ours.seed(1)
    theirs.seed(1)
    ours.reset()
    theirs.reset()
    for _ in range(5):
        (obs, _, _, infos), (obs2, _, _, infos2) = ours.step(np.array([0, 1])), theirs.step(np.array([0, 1]))
        for key in obs2:
            np.testing.assert_array_equal(obs[key], obs2[key])
        assert ("terminal_observation" in infos[0]) == ("terminal_observation" in infos2[0])
        if "terminal_observation" in infos[0]:
            assert plain(infos[0]["terminal_observation"]) == plain(infos2[0]["terminal_observation"])


def test_attributes_methods_and_wrappers_of_some(make):
    envs = make([lambda: TimeLimit(CountingEnv(), 9)] * 3)
    envs.set_attr("length", 7, indices=[0, 2])
    assert envs.get_attr("length") == [7, 5, 7]
    assert envs.get_attr("length", indices=1) == [5]
    assert envs.env_method("get_wrapper_attr", "length", indices=[2]) == [7]
    assert envs.env_is_wrapped(TimeLimit, indices=[1]) == [True]
    assert envs.env_is_wrapped(OrderEnforcing) == [False] * 3
    assert not envs.has_attr("no_such")
    envs.close()
    envs.close()


class NamedEnv(CountingEnv):
    """Counts the calls of its method; `own` is there in every second one."""

    def __init__(self, number):
        super().__init__()
        self.number, self.n_calls = number, 0
        if number % 2 == 0:
            self.own = number

    def call(self, times=1):
        self.n_calls += 1
        return self.number * times

    def marked(self):
        return vars(self).get("mark")


def ask(envs, indices):
    """All that can be asked of some environments, and what it leaves in each, or the error."""
    try:
        envs.set_attr("mark", 7, indices=indices)
        return [
            envs.get_attr("number", indices=indices),
            envs.env_method("call", times=2, indices=indices),
            envs.env_is_wrapped(TimeLimit, indices=indices),
            envs.env_method("marked"),
            envs.get_attr("n_calls"),
        ]
    except Exception as error:
        return type(error)


CHOSEN = [None, 0, 2, -1, -3, [], [0, -1], [2, 0], (1,), [1, 1, -2], range(2), np.array([-1, 0]), {1}, 3, -4, [0, 3]]


@pytest.mark.parametrize("indices", CHOSEN, ids=str)
def test_indices_mean_what_they_mean_to_stable_baselines3(make, indices):
    env_fns = [lambda i=i: NamedEnv(i) for i in range(3)]
    assert ask(make(env_fns), indices) == ask(DummyVecEnv(env_fns), indices)


def test_an_attribute_may_be_in_those_alone_that_are_asked(make):
    env_fns = [lambda i=i: NamedEnv(i) for i in range(3)]
    for envs in (make(env_fns), DummyVecEnv(env_fns)):
        assert envs.get_attr("own", indices=[2, 0]) == [2, 0]
        assert not envs.has_attr("own")
        with pytest.raises(AttributeError):
            envs.get_attr("own", indices=[0, 1])


PARTS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "multi": spaces.MultiDiscrete([3, 2]),
    "binary": spaces.MultiBinary(3),
    "nested": spaces.Tuple([spaces.Discrete(2), spaces.Dict(deep=spaces.Box(0, 1, (1,), np.float32))]),
}
COMPOSITE = {"dict": spaces.Dict(PARTS), "tuple": spaces.Tuple(tuple(PARTS.values()))}


class ActedOn(CountingEnv):
    """Its info holds its action, as text."""

    def __init__(self, action_space):
        super().__init__(length=100)
        self.action_space = action_space

    def step(self, action):
        assert self.action_space.contains(action)
        observation, _, terminated, truncated, _ = super().step(0)
        return observation.copy(), 1.0, terminated, truncated, {"action": _as_plain(action)}


def _as_plain(action):
    if isinstance(action, dict):
        return str({key: _as_plain(part) for key, part in sorted(action.items())})
    if isinstance(action, tuple):
        return str([_as_plain(part) for part in action])
    return str(np.asarray(action).tolist())


@pytest.mark.parametrize("num_envs", [1, 2, 5])
@pytest.mark.parametrize("kind", COMPOSITE)
def test_actions_of_dicts_and_tuples_may_be_one_per_environment(make, kind, num_envs):
    space = COMPOSITE[kind]
    space.seed(0)
    env_fns = [lambda: ActedOn(space)] * num_envs
    ours, theirs = make(env_fns), DummyVecEnv([lambda: ActedOn(space) for _ in range(num_envs)])
    ours.reset()
    theirs.reset()
    as_objects = np.empty(num_envs, object)
    for arrange in (list, tuple, lambda actions: as_objects):
        actions = [space.sample() for _ in range(num_envs)]
        as_objects[:] = actions
        found, expected = ([info["action"] for info in envs.step(arrange(actions))[3]] for envs in (ours, theirs))
        assert found == expected


@pytest.mark.parametrize("kind", COMPOSITE)
def test_batched_actions_of_dicts_and_tuples_are_taken_too(make, kind):
    space = COMPOSITE[kind]
    envs = make([lambda: ActedOn(space)] * 2)
    envs.reset()
    actions = batch_space(space, 2).sample()
    expected = [_as_plain(action) for action in iterate(batch_space(space, 2), actions)]
    assert [info["action"] for info in envs.step(actions)[3]] == expected


def test_actions_that_lack_a_part_are_refused_in_a_sentence(make):
    envs = make([lambda: ActedOn(COMPOSITE["dict"])] * 2)
    envs.reset()
    whole, part = COMPOSITE["dict"].sample(), {"discrete": 1}
    with pytest.raises(ActionsError, match="must be one per environment, each with an item 'b"):
        envs.step([whole, part])
    with pytest.raises(ActionsError, match="2"):
        envs.step([whole])
    assert len(envs.step([whole, whole])[3]) == 2


class ModulesEnv(CountingEnv):
    """Tells what its process has imported."""

    def modules(self):
        return set(sys.modules)


def test_no_question_makes_workers_import_torch(make):
    envs = make([ModulesEnv] * 2, num_workers=2)
    envs.reset()
    envs.set_attr("length", 7)
    assert envs.env_is_wrapped(Monitor) == [False, False]
    for modules in envs.env_method("modules"):
        assert not modules & {"torch", "stable_baselines3"}


class Shorter(TimeLimit):
    pass


@pytest.mark.parametrize("num_workers", [0, 1])
def test_wrappers_of_any_module_are_known_and_their_subclasses(make, num_workers):
    class Local(Shorter):
        pass

    envs = make([lambda: Local(CountingEnv(), 9), lambda: Shorter(CountingEnv(), 9)], num_workers=num_workers)
    assert envs.env_is_wrapped(TimeLimit) == [True, True]
    assert envs.env_is_wrapped(Shorter) == [True, True]
    assert envs.env_is_wrapped(Local) == [True, False]


def test_options_reach_the_environments_once(make):
    envs = make([CountingEnv] * 2)
    envs.set_options({"start": 3})
    envs.reset()
    assert [info["options"] for info in envs.reset_infos] == ["{'start': 3}"] * 2
    envs.reset()
    assert [info["options"] for info in envs.reset_infos] == ["None"] * 2


def test_options_may_differ(make):
    ours, theirs = (wrap([NewArraysEnv] * 4) for wrap in (make, DummyVecEnv))
    for envs in (ours, theirs):
        envs.seed(3)
        envs.set_options([{"start": np.arange(2)}, {"start": np.arange(3)}, {}, {"start": np.arange(2)}])
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    starts = [info["options"] for info in ours.reset_infos]
    assert starts == ["{'start': array([0, 1])}", "{'start': array([0, 1, 2])}", "{}", "{'start': array([0, 1])}"]
    assert [info["end"] for info in ours.reset_infos] == [info["end"] for info in theirs.reset_infos]


@pytest.mark.parametrize(
    ("algorithm", "env_id", "settings"),
    [
        ("PPO", "CartPole-v1", {"n_steps": 32, "batch_size": 64, "n_epochs": 2}),
        ("DQN", "CartPole-v1", {"learning_starts": 16}),
        ("SAC", "Pendulum-v1", {"learning_starts": 16, "train_freq": 8}),
    ],
)
def test_its_algorithms_learn_the_same_weights(make, algorithm, env_id, settings):
    weights, episodes = [], []
    for vectorize in (make, DummyVecEnv):
        envs = VecMonitor(vectorize([lambda: gymnasium.make(env_id)] * 4))
        model = getattr(stable_baselines3, algorithm)("MlpPolicy", envs, seed=1, device="cpu", **settings)
        model.set_logger(Logger(None, []))  # its own would make a folder in TMPDIR
        model.learn(256)
        assert model.num_timesteps == 256
        weights.append([parameter.detach().numpy() for parameter in model.policy.parameters()])
        episodes.append([(episode["r"], episode["l"]) for episode in model.ep_info_buffer])
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert episodes[0] == episodes[1]
    if env_id == "CartPole-v1":
        assert len(episodes[0]) > 0
        mean, _ = evaluate_policy(model, make([lambda: gymnasium.make(env_id)] * 2), n_eval_episodes=2, warn=False)
        assert mean > 0


def test_its_wrappers_normalize_and_monitor_alike(make, tmp_path):
    seen = []
    for name, vectorize in (("ours", make), ("theirs", DummyVecEnv)):
        envs = VecNormalize(VecMonitor(vectorize([lambda: gymnasium.make("CartPole-v1", max_episode_steps=9)] * 3)))
        assert envs.seed(8) == [8, 9, 10]
        results = [envs.reset()]
        for step in range(40):
            observations, rewards, dones, infos = envs.step(np.array([0, 1, step % 2]))
            results += [observations, rewards, dones]
            for info in infos:
                results += [info["TimeLimit.truncated"], info.get("terminal_observation", 0)]
                results += [(info["episode"]["r"], info["episode"]["l"]) if "episode" in info else 0]
        envs.save(tmp_path / name)
        results += [envs.obs_rms.mean, envs.ret_rms.var]
        seen.append(results)
    for ours, theirs in zip(*seen, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert any(result is True for result in seen[0])  # some episodes were cut by their time limit


@pytest.mark.slow
def test_its_own_monitor_in_the_environments_is_seen(make):
    def monitored():
        return Monitor(gymnasium.make("CartPole-v1", max_episode_steps=5))

    envs = make([monitored] * 2)
    assert envs.env_is_wrapped(Monitor) == [True, True]
    envs.reset()
    for _ in range(5):
        *_, infos = envs.step(np.array([0, 1]))
    assert [(info["episode"]["r"], info["episode"]["l"]) for info in infos] == [(5.0, 5)] * 2
    assert envs.env_method("get_episode_lengths") == [[5], [5]]
