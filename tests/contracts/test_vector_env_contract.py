"""What every vectorizer keeps: one class of tests, run over `SerialEnv` and over `ParallelEnv` in every manner.

A later vectorizer subclasses `VectorEnvContract` and says how it is made.
"""

import copy
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError
from gymnasium.utils import EzPickle
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

from ml_pipeline.models.rl.core import vec_env
from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.models.rl.core.vec_errors import (
    EnvFailedError,
    EnvRaisedError,
    EnvResultError,
    ResetRequiredError,
    SpacesDifferError,
    StateNotAvailable,
)
from ml_pipeline.models.rl.core.worker_choice import Division

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test module

MODES = list(AutoresetMode)
N = 5


class CustomSpace(gymnasium.Space):
    """A space that Gymnasium knows nothing about."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return f"word-{self.np_random.integers(10)}"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomSpace)

    __hash__ = None  # type: ignore[assignment]


SPACES = {
    "scalar box": spaces.Box(-1, 1, (), np.float64),
    "float16 box": spaces.Box(-1, 1, (2, 3), np.float16),
    "frames": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([[3, 5], [7, 11]]),
    "multi-binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32))),
    "dict": spaces.Dict(a=spaces.Dict(x=spaces.Discrete(3)), b=spaces.Tuple([spaces.MultiBinary(3)])),
    "text": spaces.Text(7),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "one of": spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
    "mixed dict": spaces.Dict(a=spaces.Text(5), b=spaces.Box(0, 1, (2,))),
    "custom": CustomSpace(),
}


class SamplingEnv(gymnasium.Env):
    """Observes samples of a space, insists on actions from it, and ends every third step."""

    def __init__(self, space: gymnasium.Space) -> None:
        self.observation_space = copy.deepcopy(space)
        self.action_space = copy.deepcopy(space)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        # A scalar Box warns about the NumPy scalar that Gymnasium's own iterate() makes of its actions.
        given = np.asarray(action) if isinstance(self.action_space, spaces.Box) else action
        assert self.action_space.contains(given), f"{action!r} of {type(action)} is not in {self.action_space}"
        self.t += 1
        return self.observation_space.sample(), 0.0, self.t == 3, False, {}


class KeepingEnv(CountingEnv):
    """Keeps what it was given, and hands out what it goes on changing."""

    def __init__(self) -> None:
        super().__init__(length=1000)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.actions: list[np.ndarray] = []

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.actions.append(action)
        observation, _, *flags, _ = super().step(0)
        return observation, float(action[0]), *flags, {"actions": self.actions}


class WholeNumberEnv(CountingEnv):
    """Observes its step as a plain int, of at most `most`, and says what it was stepped with and its render mode."""

    def __init__(self, action_space: gymnasium.Space, most: int = 9, length: int = 2) -> None:
        super().__init__(length=length)
        self.action_space = action_space
        self.observation_space = spaces.Discrete(most + 1)
        self.render_mode = "ansi"

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, _, *flags, _ = super().step(0)
        return observation, 0.0, *flags, {"given": f"{type(action).__name__} {action}"}

    def render(self) -> str:
        return f"step {self._t}"

    def greet(self, greeting: str, *, name: str) -> str:
        return f"{greeting} {name}"

    def _observe(self) -> Any:
        return self._t


class Market:
    """Stands for gigabytes that every environment reads."""

    shared_between_environments = True

    def __init__(self) -> None:
        self.prices = np.arange(1000.0)

    def __getstate__(self) -> dict:
        raise AssertionError("a market was pickled")


class MarketEnv(CountingEnv):
    """Holds a market twice over."""

    def __init__(self) -> None:
        super().__init__(length=3, spread=3)
        self.market = Market()
        self.views = [self.market, self.market]

    def is_whole(self) -> bool:
        return self.views[0] is self.views[1] is self.market and float(self.market.prices[7]) == 7.0


class ForgetfulEnv(CountingEnv, EzPickle):
    """Pickles as its arguments, as LunarLander does."""

    def __init__(self) -> None:
        CountingEnv.__init__(self)
        EzPickle.__init__(self)


class FreshCountingEnv(CountingEnv):
    """Returns a new array each time: Gymnasium's own vectorizers keep references."""

    def _observe(self) -> np.ndarray:
        return super()._observe().copy()


def counting(index: int) -> Callable[[], gymnasium.Env]:
    return lambda: CountingEnv(length=2 + index, spread=3)


def trajectory(envs: VectorEnv, n_steps: int, *, seed: int | None = 11) -> list[Any]:
    """Everything that stepping returns, with actions that depend on nothing but the step."""
    rng = np.random.default_rng(3)
    seen: list[Any] = [envs.reset(seed=seed)] if seed is not None else []
    for _ in range(n_steps):
        if envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED and seen and len(seen[-1]) == 5:
            over = seen[-1][2] | seen[-1][3]
            if over.any():
                seen.append(envs.reset(options={"reset_mask": over}))
        seen.append(envs.step(rng.integers(0, 4, envs.num_envs)))
    return seen


def wrapped(envs: Any) -> Any:
    """Under most of Gymnasium's vector wrappers; observations can be wrapped in NEXT_STEP mode alone."""
    mode = envs.metadata["autoreset_mode"]
    envs = wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(envs))
    if mode == AutoresetMode.NEXT_STEP:
        envs = wrappers.TransformObservation(envs, func=lambda batch: 2 * batch)
        envs = wrappers.FlattenObservation(wrappers.NormalizeObservation(envs))
    return wrappers.DictInfoToList(wrappers.ClipReward(envs, -1.0, 1.5))


def assert_equal(a: Any, b: Any) -> None:
    """The same structure, types, dtypes and bits."""
    if isinstance(a, dict) and isinstance(b, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif isinstance(a, np.ndarray) and a.dtype == object:
        assert_equal(list(a), list(b))
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b


class VectorEnvContract:
    """The tests. `make(env_fns, autoreset_mode=..., copy=...)` makes the vectorizer under test."""

    @pytest.fixture
    def make(self) -> Iterator[Callable[..., Any]]:
        made = []

        def make_one(*args: Any, **kwargs: Any) -> Any:
            made.append(self.vectorizer(*args, **kwargs))
            return made[-1]

        yield make_one
        for envs in made:
            envs.close()

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    # Stepping

    @pytest.mark.parametrize("mode", MODES)
    def test_steps_as_gymnasium_does(self, make: Any, mode: AutoresetMode) -> None:
        envs = make([counting(i) for i in range(N)], autoreset_mode=mode)
        fresh = [lambda i=i: FreshCountingEnv(length=2 + i, spread=3) for i in range(N)]
        reference = SyncVectorEnv(fresh, autoreset_mode=mode)
        assert envs.num_envs == N
        assert envs.metadata["autoreset_mode"] == mode
        assert envs.observation_space == reference.observation_space
        assert envs.action_space == reference.action_space
        assert_equal(trajectory(envs, 40), trajectory(reference, 40))

    def test_autoreset_mode_may_be_a_string(self, make: Any) -> None:
        assert make([CountingEnv], autoreset_mode="NextStep").metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP

    def test_final_observation_is_copied_before_the_reset(self, make: Any) -> None:
        envs = make([lambda: CountingEnv(length=2)] * 2)
        envs.reset(seed=0)
        envs.step([0, 0])
        observations, _, terminated, _, infos = envs.step([0, 0])
        assert terminated.all()
        # (episode, step): the last of episode 1 is (1, 2); what is returned is the first of episode 2, (2, 0)
        assert [tuple(final[:2]) for final in infos["final_obs"]] == [(1, 2), (1, 2)]
        assert observations[:, :2].tolist() == [[2, 0], [2, 0]]
        assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [True, True]

    def test_nothing_to_say_is_an_empty_info(self, make: Any) -> None:
        envs = make([lambda: CountingEnv(length=9)] * 2)
        envs.reset(seed=0)
        assert envs.step([0, 0])[4] == {}

    @pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
    @pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
    def test_every_space(self, make: Any, space: gymnasium.Space, mode: AutoresetMode) -> None:
        envs = make([lambda: SamplingEnv(space)] * 3, autoreset_mode=mode)
        reference = SyncVectorEnv([lambda: SamplingEnv(space)] * 3, autoreset_mode=mode)
        observations, _ = envs.reset(seed=4)
        assert observations in envs.observation_space
        assert data_equivalence(observations, reference.reset(seed=4)[0])
        envs.action_space.seed(0)
        for _ in range(4):
            actions = envs.action_space.sample()
            observations, *_, infos = envs.step(actions)
            expected, *_, expected_infos = reference.step(actions)
            assert data_equivalence(observations, expected)
            assert infos.keys() == expected_infos.keys()
            if "final_obs" in infos:
                assert all(final in envs.single_observation_space for final in infos["final_obs"])

    @pytest.mark.parametrize("copies", [True, False])
    def test_observations_are_copies_or_views(self, make: Any, copies: bool) -> None:
        envs = make([CountingEnv] * 2, copy=copies)
        first, _ = envs.reset(seed=0)
        before = first.copy()
        second, rewards, *_ = envs.step([0, 0])
        assert np.shares_memory(first, second) is not copies
        assert (first == before).all() == copies
        kept = rewards.copy()
        envs.step([3, 3])
        assert (rewards == kept).all()

    def test_an_environment_may_keep_its_actions(self, make: Any) -> None:
        envs = make([KeepingEnv] * 2)
        envs.reset(seed=0)
        for value in (0.25, 0.5, 0.75):
            envs.step(np.full((2, 2), value, np.float32))
        assert [float(action[0]) for action in envs.get_attr("actions")[1]] == [0.25, 0.5, 0.75]

    def test_infos_do_not_change_afterwards(self, make: Any) -> None:
        envs = make([KeepingEnv] * 2)
        envs.reset(seed=0)
        infos = envs.step(np.zeros((2, 2), np.float32))[4]
        envs.step(np.zeros((2, 2), np.float32))
        assert [len(actions) for actions in infos["actions"]] == [1, 1]

    @pytest.mark.parametrize(
        "actions", [np.zeros(3, int), np.zeros((2, 1), int), np.zeros(2), [[0], [1]]], ids=["n", "2d", "float", "list"]
    )
    def test_unfit_actions_are_named_and_harmless(self, make: Any, actions: Any) -> None:
        envs = make([CountingEnv] * 2)
        envs.reset(seed=0)
        with pytest.raises(ValueError, match=re.escape("actions must be int64 of shape (2,)")):
            envs.step(actions)
        assert envs.step([1, 2])[1].tolist() == [11.0, 21.0]

    @pytest.mark.parametrize(
        ("space", "actions", "given"),
        [
            # As from Gymnasium's own: an np.float64 stays one where it is the whole action, so that it is a float.
            (spaces.Box(0, 1, ()), np.array([0.1, 0.2]), ["float64 0.1", "float64 0.2"]),
            (spaces.Box(0, 1, (1,)), [0, 1], ["ndarray [0.]", "ndarray [1.]"]),
            (spaces.Box(0, 1, (1,)), np.array([[0.5], [1.0]]), ["ndarray [0.5]", "ndarray [1.]"]),
            (spaces.Text(5), ("left", "right"), ["str left", "str right"]),
        ],
        ids=["scalar", "flat", "float64", "text"],
    )
    def test_actions_arrive_as_they_should(self, make: Any, space: Any, actions: Any, given: list[str]) -> None:
        envs = make([lambda: WholeNumberEnv(space)] * 2)
        envs.reset(seed=0)
        assert envs.step(actions)[4]["given"].tolist() == given

    @pytest.mark.parametrize("space", [spaces.Text(5), spaces.Box(0, 1, ())], ids=["text", "scalar"])
    def test_another_number_of_actions_is_harmless(self, make: Any, space: gymnasium.Space) -> None:
        envs = make([lambda: WholeNumberEnv(space)] * 2)
        envs.reset(seed=0)
        batch = spaces.Tuple([space] * 3) if isinstance(space, spaces.Text) else spaces.Box(0, 1, (3,))
        with pytest.raises(ValueError, match="one action an environment, 2, but got 3"):
            envs.step(batch.sample())
        assert envs.step(envs.action_space.sample())[0].tolist() == [1, 1]

    def test_a_final_choice_is_the_whole_number_that_the_environment_returned(self, make: Any) -> None:
        env_fns = [lambda n=n: WholeNumberEnv(spaces.Discrete(2), length=n) for n in (2, 3)]
        envs, reference = make(env_fns), SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)
        envs.reset(seed=0)
        reference.reset(seed=0)
        actions = np.array([0, 1])
        for _ in range(6):
            assert data_equivalence(envs.step(actions)[4], reference.step(actions)[4])  # types as well

    def test_spaces_may_differ_in_their_bounds_where_that_is_meant(self, make: Any) -> None:
        env_fns = [lambda most=most: WholeNumberEnv(spaces.Discrete(2), most) for most in (2, 5, 3)]
        with pytest.raises(SpacesDifferError, match="use `observation_mode='different'`"):
            make(env_fns)
        envs = make(env_fns, observation_mode="different")
        assert (envs.single_observation_space, envs.observation_space) == (
            spaces.Discrete(3),
            spaces.MultiDiscrete([3, 6, 4]),
        )
        assert envs.reset(seed=0)[0] in envs.observation_space
        assert envs.step([0, 1, 0])[0].tolist() == [1, 1, 1]
        given = (spaces.MultiDiscrete([7, 7, 7]), spaces.Discrete(7))
        envs = make(env_fns, observation_mode=given)
        assert (envs.observation_space, envs.single_observation_space) == given
        assert envs.reset(seed=0)[0].tolist() == [0, 0, 0]

    def test_what_never_fits_is_refused_in_every_observation_mode(self, make: Any) -> None:
        for mode in ("same", "different", (spaces.MultiDiscrete([4, 4]), spaces.Discrete(4))):
            with pytest.raises(SpacesDifferError, match="observation_space of environment 1"):
                make([lambda: WholeNumberEnv(CountingEnv().action_space), CountingEnv], observation_mode=mode)
        with pytest.raises(SpacesDifferError, match="shape and dtype must be equal"):
            make([CountingEnv] * 2, observation_mode=(spaces.MultiDiscrete([4, 4]), spaces.Discrete(4)))
        with pytest.raises(SpacesDifferError, match="action_space of environment 1"):
            make([lambda n=n: WholeNumberEnv(spaces.Discrete(n)) for n in (2, 3)], observation_mode="different")
        with pytest.raises(ValueError, match="Invalid `observation_mode`"):
            make([CountingEnv], observation_mode="any")

    @pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
    def test_wrappers_of_gymnasium_see_what_they_see_over_its_own(self, make: Any, mode: AutoresetMode) -> None:
        env_fns = [lambda i=i: FreshCountingEnv(length=2 + i, spread=3) for i in range(3)]
        ours = trajectory(wrapped(make(env_fns, autoreset_mode=mode)), 20)
        theirs = trajectory(wrapped(SyncVectorEnv(env_fns, autoreset_mode=mode)), 20)
        episodes = [info.pop("episode") for *_, infos in theirs for info in infos if "episode" in info]
        own_episodes = [info.pop("episode") for *_, infos in ours for info in infos if "episode" in info]
        assert [(episode["r"], episode["l"]) for episode in own_episodes] == [
            (episode["r"], episode["l"]) for episode in episodes
        ]
        assert len(episodes) > 9
        assert_equal(ours, theirs)

    # Resetting

    @pytest.mark.parametrize(
        "seed", [7, np.int64(7), [7, 8, 9], np.array([7, 8, 9])], ids=["int", "np", "list", "array"]
    )
    def test_environment_i_is_seeded_by_its_index(self, make: Any, seed: Any) -> None:
        envs = make([lambda: CountingEnv(spread=90)] * 3)
        expected = [CountingEnv(spread=90).reset(seed=7 + i)[0].copy() for i in range(3)]
        np.testing.assert_array_equal(envs.reset(seed=seed)[0], expected)
        assert envs.np_random_seed == (7, 8, 9)

    def test_without_a_seed_generators_go_on(self, make: Any) -> None:
        envs = make([lambda: CountingEnv(spread=90)] * 2)
        first, _ = envs.reset(seed=3)
        second, _ = envs.reset()
        assert (first[:, 2] != second[:, 2]).all()
        assert envs.np_random_seed == (3, 4)

    def test_wrong_number_of_seeds(self, make: Any) -> None:
        with pytest.raises(ValueError, match=re.escape("must match num_envs=2 but got length=3")):
            make([CountingEnv] * 2).reset(seed=[1, 2, 3])

    def test_options_reach_every_environment(self, make: Any) -> None:
        _, infos = make([CountingEnv] * 2).reset(seed=0, options={"level": 4})
        assert infos["options"].tolist() == ["{'level': 4}"] * 2

    def test_mask_resets_only_those(self, make: Any) -> None:
        envs = make([lambda: CountingEnv(length=50)] * 3)
        envs.reset(seed=0)
        before = envs.step([0, 0, 0])[0]
        options = {"reset_mask": np.array([False, True, False]), "level": 4}
        after, infos = envs.reset(seed=[1, 1, 1], options=options)
        assert list(options) == ["reset_mask", "level"]
        np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
        assert after[1, :2].tolist() == [1, 0]
        assert infos["_options"].tolist() == [False, True, False]
        assert infos["options"][1] == "{'level': 4}"

    @pytest.mark.parametrize(
        ("mask", "error"),
        [
            ([True, False], TypeError),
            (np.array([1, 0]), TypeError),
            (np.array([True]), ValueError),
            (np.array([[True, False]]), ValueError),
            (np.array([False, False]), ValueError),
        ],
    )
    def test_unfit_masks_are_named(self, make: Any, mask: Any, error: type[Exception]) -> None:
        envs = make([CountingEnv] * 2)
        envs.reset(seed=0)
        with pytest.raises(error, match=re.escape("`options['reset_mask']` must ")):
            envs.reset(options={"reset_mask": mask})

    @pytest.mark.parametrize("masked", [False, True])
    def test_explicit_reset_clears_a_pending_autoreset(self, make: Any, masked: bool) -> None:
        envs = make([lambda: CountingEnv(length=2)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
        envs.reset(seed=0)
        envs.step([0, 0])
        assert envs.step([0, 0])[2].all()
        envs.reset(options={"reset_mask": np.array([True, True])} if masked else None)
        observations, rewards, *_ = envs.step([1, 1])
        assert rewards.tolist() == [11.0, 11.0]  # the action counted: no reset swallowed it
        assert observations[:, :2].tolist() == [[2, 1], [2, 1]]

    def test_disabled_autoreset_refuses_a_finished_environment(self, make: Any) -> None:
        envs = make([lambda: CountingEnv(length=2), CountingEnv], autoreset_mode=AutoresetMode.DISABLED)
        envs.reset(seed=0)
        envs.step([0, 0])
        assert envs.step([0, 0])[2].tolist() == [True, False]
        with pytest.raises(ResetRequiredError, match=re.escape("environments [0] are over")):
            envs.step([0, 0])
        observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        assert observations[:, 1].tolist() == [0, 2]  # the refused step touched nobody
        assert envs.step([0, 0])[0][:, 1].tolist() == [1, 3]

    # Reaching the environments

    def test_call_and_attributes(self, make: Any) -> None:
        envs = make([lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array")] * 3)
        envs.set_attr("gravity", [1.0, 2.0, 3.0])
        assert envs.get_attr("gravity") == (1.0, 2.0, 3.0)
        envs.set_attr("gravity", 9.5)
        assert envs.call("gravity") == (9.5,) * 3
        assert envs.call("get_wrapper_attr", "length") == (0.5,) * 3
        assert envs.render_mode == "rgb_array"
        with pytest.raises(ValueError, match="Got `2` values for 3 environments"):
            envs.set_attr("gravity", [1.0, 2.0])
        with pytest.raises(ValueError, match="use `step` directly"):
            envs.call("step", 0)

    def test_frames_names_and_generators(self, make: Any) -> None:
        envs = make([lambda: WholeNumberEnv(spaces.Discrete(2), length=5)] * 2)
        envs.reset(seed=6)
        envs.step([0, 0])
        assert (envs.render_mode, envs.render()) == ("ansi", ("step 1", "step 1"))
        assert envs.call("greet", "Hello", name="Ada") == ("Hello Ada",) * 2
        twins = [WholeNumberEnv(spaces.Discrete(2)) for _ in range(2)]
        for index, twin in enumerate(twins):
            twin.reset(seed=6 + index)
        states = [generator.bit_generator.state for generator in envs.np_random]
        assert states == [twin.np_random.bit_generator.state for twin in twins]
        assert envs.np_random_seed == (6, 7)

    def test_a_function_is_applied_where_the_environments_are(self, make: Any) -> None:
        envs = make([counting(i) for i in range(5)])
        assert envs.apply(lambda env, factor: env.length * factor, 10) == [20, 30, 40, 50, 60]
        assert envs.apply(lambda env: env.length, env_ids=[4, 1]) == [6, 3]
        with pytest.raises(ZeroDivisionError, match=r"nvironment 3 of 5"):
            envs.apply(lambda env: 1 / (env.length - 5))

    def test_an_unknown_attribute_breaks_nothing(self, make: Any) -> None:
        envs = make([CountingEnv] * 3)
        envs.reset(seed=0)
        with pytest.raises(AttributeError, match=r"nvironment 0 of 3(.|\n)*no_such") as caught:
            envs.get_attr("no_such")
        assert isinstance(caught.value, EnvRaisedError)
        assert envs.step([0, 0, 0])[1].tolist() == [1.0, 1.0, 1.0]

    def test_closed_is_closed(self, make: Any) -> None:
        envs = make([CountingEnv] * 2)
        envs.close()
        envs.close()
        for use in (envs.reset, envs.get_states, lambda: envs.step([0, 0]), lambda: envs.get_attr("length")):
            with pytest.raises(ClosedEnvironmentError):
                use()

    # Failures

    def test_a_raising_step_is_told_in_full(self, make: Any) -> None:
        envs = make([lambda: FaultyEnv("raise", at=2, armed=False)] * 4)
        envs.set_attr("armed", [False, False, True, False])
        envs.reset(seed=40)
        envs.step([0, 1, 2, 3])
        with pytest.raises(EnvRaisedError) as caught:
            envs.step([3, 2, 1, 0])
        error = caught.value
        assert (error.index, error.seed, error.step, error.action) == (2, 42, 2, 1)
        assert "nvironment 2 of 4" in str(error)
        assert "seed 42) raised ValueError in step 2 with action" in str(error)
        assert "_misbehave" in str(error)  # its own traceback
        assert isinstance(error, ValueError)
        assert isinstance(error.__cause__, ValueError)
        assert str(error.__cause__) == "no such step: 2"

    def test_after_a_failure_reset_makes_it_whole(self, make: Any) -> None:
        envs = make([lambda: FaultyEnv("raise", armed=False)] * 3)
        envs.set_attr("armed", [False, True, False])
        envs.reset(seed=0)
        with pytest.raises(EnvFailedError):
            envs.step([0, 0, 0])
        with pytest.raises(ResetRequiredError, match=re.escape("Call reset()")):
            envs.step([0, 0, 0])
        envs.set_attr("armed", False)
        observations, _ = envs.reset(seed=5)
        np.testing.assert_array_equal(observations, [CountingEnv().reset(seed=5 + i)[0] for i in range(3)])
        assert envs.step([0, 0, 0])[1].tolist() == [1.0, 1.0, 1.0]

    def test_a_raising_reset_after_an_episode_is_not_blamed_on_an_action(self, make: Any) -> None:
        envs = make([lambda: FaultyEnv("raise_in_reset", armed=False)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
        envs.reset(seed=0)
        envs.set_attr("_end", [9, 1])
        envs.step([2, 3])
        envs.set_attr("armed", True)
        with pytest.raises(KeyError, match=r"nvironment 1 of 2.* in the reset after its episode, in ") as caught:
            envs.step([2, 3])
        assert caught.value.action is None

    def test_a_raising_reset_is_told(self, make: Any) -> None:
        envs = make([lambda: FaultyEnv("raise_in_reset", armed=False)] * 3)
        envs.set_attr("armed", [False, True, False])
        with pytest.raises(
            KeyError, match=re.escape("(environment 1 of 3, seed 8)") + "|" + re.escape("Environment 1 of 3 (seed 8)")
        ) as caught:
            envs.reset(seed=7)
        assert "raised KeyError in reset()" in str(caught.value)

    def test_a_raising_construction_is_told(self, make: Any) -> None:
        def broken() -> gymnasium.Env:
            raise OSError("no such file")

        with pytest.raises(OSError, match=r"nvironment 3 of 4.* raised OSError in construction") as caught:
            make([CountingEnv] * 3 + [broken])
        assert isinstance(caught.value, EnvRaisedError)

    @pytest.mark.parametrize(
        ("fault", "field", "expected", "received"),
        [
            ("shape", "observation", "float32 of shape (3,)", "float32 of shape (2,)"),
            ("dtype", "observation", "float32 of shape (3,)", "float64 of shape (3,)"),
            ("nan", "reward", "a number", "NaN"),
            ("tuple", "the result of step()", "(observation, reward, terminated, truncated, info)", "4 values"),
            ("flag", "terminated", "True or False", "None"),
            ("info", "info", "a dict", "a NoneType"),
        ],
    )
    def test_unusable_results_are_named(self, make: Any, fault: Any, field: str, expected: str, received: str) -> None:
        envs = make([lambda: FaultyEnv(fault, armed=False)] * 3)
        envs.set_attr("armed", [False, False, True])
        envs.reset(seed=0)
        with pytest.raises(EnvResultError) as caught:
            envs.step([0, 0, 0])
        error = caught.value
        assert (error.index, error.field, error.expected, error.received) == (2, field, expected, received)
        assert f"{field} must be {expected}, but got {received}" in str(error)

    def test_an_unusable_reset_is_named(self, make: Any) -> None:
        with pytest.raises(EnvResultError, match=re.escape("the result of reset() must be")):
            make([lambda: FaultyEnv("reset")]).reset()

    def test_unequal_spaces_are_named(self, make: Any) -> None:
        with pytest.raises(SpacesDifferError, match=r"observation_space of environment 2 is Discrete\(2\)"):
            make([CountingEnv, CountingEnv, lambda: SamplingEnv(spaces.Discrete(2))])

    # States

    @pytest.mark.parametrize("mode", MODES)
    def test_states_continue_bit_for_bit(self, make: Any, mode: AutoresetMode) -> None:
        envs = make([counting(i) for i in range(3)], autoreset_mode=mode)
        trajectory(envs, 9)
        if mode == AutoresetMode.DISABLED:
            envs.reset()
        states = envs.get_states()
        expected = trajectory(envs, 20, seed=None)
        envs.set_states(states)
        assert_equal(trajectory(envs, 20, seed=None), expected)
        other = make([counting(i) for i in range(3)], autoreset_mode=mode)  # as after a restart of the program
        other.set_states(states)
        assert_equal(trajectory(other, 20, seed=None), expected)

    def test_states_hold_wrappers_and_pending_resets(self, make: Any) -> None:
        envs = make([lambda: gymnasium.make("CartPole-v1", max_episode_steps=2)] * 2, autoreset_mode="NextStep")
        envs.reset(seed=0)
        envs.step([0, 0])
        assert envs.step([0, 0])[3].all()
        states = envs.get_states()
        first = envs.step([0, 0])
        assert first[1].tolist() == [0.0, 0.0]  # the autoreset that was pending
        envs.set_states(states)
        assert_equal(envs.step([0, 0]), first)

    def test_shared_objects_stay_out_of_states(self, make: Any) -> None:
        envs = make([MarketEnv] * 2)
        envs.reset(seed=0)
        states = envs.get_states()
        expected = trajectory(envs, 10, seed=None)
        other = make([MarketEnv] * 2)
        other.set_states(states)
        assert other.call("is_whole") == (True, True)
        assert_equal(trajectory(other, 10, seed=None), expected)

    def test_states_that_would_lose_something_are_refused(self, make: Any) -> None:
        envs = make([ForgetfulEnv] * 2)
        envs.reset(seed=0)
        with pytest.raises(StateNotAvailable, match=r"environment 0 is not available: .*EzPickle") as caught:
            envs.get_states()
        assert caught.value.index == 0
        assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]

    def test_states_that_are_none_are_refused(self, make: Any) -> None:
        envs = make([CountingEnv] * 2)
        with pytest.raises(StateNotAvailable, match="cannot be restored"):
            envs.set_states([b"cut short"] * 2)
        with pytest.raises(ValueError, match="one state an environment, 2, but got 1"):
            envs.set_states([b""])


class TestSerialEnv(VectorEnvContract):
    def vectorizer(self, env_fns: Any, **kwargs: Any) -> SerialEnv:
        return SerialEnv(env_fns, **kwargs)


@pytest.mark.filterwarnings("ignore:start_method='fork'")
class TestParallelEnv(VectorEnvContract):
    MANNERS = (("forkserver", 0), ("forkserver", 1), ("forkserver", 2), ("fork", 3), ("forkserver", N))

    @pytest.fixture(autouse=True, params=MANNERS, ids=lambda manner: f"{manner[0]}-{manner[1]}")
    def _manner(self, request: pytest.FixtureRequest) -> None:
        self.start_method, self.num_workers = request.param

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> ParallelEnv:
        return ParallelEnv(env_fns, start_method=self.start_method, num_workers=self.num_workers, **kwargs)


class TestParallelEnvBySpawn:
    """What may depend on how a process came to be; all of it would take a minute, half a second a start."""

    make = VectorEnvContract.make
    test_steps = VectorEnvContract.test_steps_as_gymnasium_does
    test_attributes = VectorEnvContract.test_call_and_attributes
    test_raising_step = VectorEnvContract.test_a_raising_step_is_told_in_full
    test_raising_construction = VectorEnvContract.test_a_raising_construction_is_told
    test_states = VectorEnvContract.test_states_hold_wrappers_and_pending_resets

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> ParallelEnv:
        return ParallelEnv(env_fns, start_method="spawn", num_workers=2, **kwargs)


class TestParallelEnvThatStepsAShare(VectorEnvContract):
    """What "auto" chooses where steps compute: this process steps the first block, two workers the others."""

    @pytest.fixture(autouse=True)
    def _division(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def shared(example: gymnasium.Env, num_envs: int) -> Division:
            return Division(min(2, num_envs - 1), steps_here=True)

        monkeypatch.setattr(vec_env, "_fastest", shared)

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> ParallelEnv:
        envs = ParallelEnv(env_fns, **kwargs)
        assert envs.steps_here
        return envs


class TestParallelEnvInGroups(VectorEnvContract):
    """Environments that could be stepped apart from each other, stepped all at once."""

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> ParallelEnv:
        return ParallelEnv(env_fns, num_groups=min(2, len(env_fns)), **kwargs)


@pytest.mark.filterwarnings("ignore:start_method='fork'")
@pytest.mark.parametrize(("method", "workers"), [("spawn", 2), ("fork", 1), ("fork", 7), ("forkserver", 3)])
def test_partition_changes_nothing(method: Any, workers: int) -> None:
    env_fns = [counting(i) for i in range(7)]
    with SerialEnv(env_fns) as serial, ParallelEnv(env_fns, start_method=method, num_workers=workers) as parallel:
        assert (parallel.num_workers, parallel.start_method) == (workers, method)
        assert_equal(trajectory(parallel, 30), trajectory(serial, 30))
        serial.set_states(parallel.get_states())
        assert_equal(trajectory(parallel, 30, seed=None), trajectory(serial, 30, seed=None))
