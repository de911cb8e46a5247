"""The tests that every vectorizer must pass, as a class to inherit, and the environments that they step."""

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
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import vector as wrappers

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import ActionsError, ResetRequiredError, SpacesDifferError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need not import pytest

MODES = list(AutoresetMode)
N = 5


class CustomSpace(gymnasium.Space):
    """A space that is not one of Gymnasium's."""

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
    "multi-discrete": spaces.MultiDiscrete(np.array([[3, 5], [7, 11]])),
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
    """Observes samples of a space, asserts that actions are in it, and ends every third step."""

    def __init__(self, space: gymnasium.Space) -> None:
        self.observation_space = copy.deepcopy(space)
        self.action_space = copy.deepcopy(space)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        # A scalar Box warns about the NumPy scalars that Gymnasium's iterate() makes from its actions.
        given = np.asarray(action) if isinstance(self.action_space, spaces.Box) else action
        assert self.action_space.contains(given), f"{action!r} of {type(action)} is not in {self.action_space}"
        self.t += 1
        return self.observation_space.sample(), 0.0, self.t == 3, False, {}


class KeepingEnv(CountingEnv):
    """Keeps the actions that it gets, and returns a list that it changes later."""

    def __init__(self) -> None:
        super().__init__(length=1000)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.actions: list[np.ndarray] = []

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.actions.append(action)
        observation, _, terminated, truncated, _ = super().step(0)
        return observation, float(action[0]), terminated, truncated, {"actions": self.actions}


class WholeNumberEnv(CountingEnv):
    """Observes its step as a plain int, of at most `most`, and reports its action in the info."""

    def __init__(self, action_space: gymnasium.Space, most: int = 9, length: int = 2) -> None:
        super().__init__(length=length)
        self.action_space = action_space
        self.observation_space = spaces.Discrete(most + 1)
        self.render_mode = "ansi"

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, _, terminated, truncated, _ = super().step(0)
        return observation, 0.0, terminated, truncated, {"given": f"{type(action).__name__} {action}"}

    def render(self) -> str:
        return f"step {self._t}"

    def greet(self, greeting: str, *, name: str) -> str:
        return f"{greeting} {name}"

    def _observe(self) -> Any:
        return self._t


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
    """`envs` in most of Gymnasium's vector wrappers; observations can be wrapped only in NEXT_STEP mode."""
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
    """Tests of a vectorizer, `ParallelEnv` or your own: derive a class that overrides `vectorizer`."""

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> VectorEnv:
        """Return a vectorizer of the environments that these functions make. kwargs: as of `ParallelEnv`."""
        raise NotImplementedError

    @pytest.fixture
    def make(self) -> Iterator[Callable[..., Any]]:
        made = []

        def make_one(*args: Any, **kwargs: Any) -> Any:
            made.append(self.vectorizer(*args, **kwargs))
            return made[-1]

        yield make_one
        for envs in made:
            envs.close()

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
        # (episode, step): the last of episode 1 is (1, 2); step() returns the first of episode 2, (2, 0)
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
        "actions",
        [np.zeros(3, int), np.zeros((2, 1), int), np.zeros(2), [[0], [1]], 1, np.int64(1), None, [[0], [1, 2]]],
        ids=["n", "2d", "float", "list", "scalar", "np", "none", "ragged"],
    )
    def test_unfit_actions_are_named_and_harmless(self, make: Any, actions: Any) -> None:
        envs = make([CountingEnv] * 2)
        envs.reset(seed=0)
        with pytest.raises(ActionsError, match=re.escape("actions must be int64 of shape (2,)")) as caught:
            envs.step(actions)
        assert isinstance(caught.value, TypeError)  # as Gymnasium's errors are
        assert isinstance(caught.value, ValueError)
        assert envs.step([1, 2])[1].tolist() == [11.0, 21.0]

    @pytest.mark.parametrize(
        ("space", "actions", "given"),
        [
            # As in Gymnasium: an np.float64 that is the whole action keeps its type, and is thus a float.
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
        with pytest.raises(ActionsError, match="one action per environment, 2, but got 3"):
            envs.step(batch.sample())
        with pytest.raises(ActionsError, match=r"one action per environment, 2, but got 0\.5"):
            envs.step(0.5)
        assert envs.step(envs.action_space.sample())[0].tolist() == [1, 1]

    def test_actions_without_a_part_are_named(self, make: Any) -> None:
        envs = make([lambda: SamplingEnv(spaces.Dict(a=spaces.Tuple([spaces.Discrete(3)] * 2)))] * 2)
        envs.reset(seed=0)
        for actions, message in (
            (1, "actions must be a dict with an item 'a', but got 1."),
            ({}, "actions must be a dict with an item 'a', but got {}."),
            ({"a": ([0, 1],)}, "actions['a'] must be a tuple with an item 1, but got ([0, 1],)."),
            ({"a": ([0, 1], 1)}, "actions['a'][1] must be int64 of shape (2,)"),
        ):
            with pytest.raises(ActionsError, match=re.escape(message)):
                envs.step(actions)
        envs.step({"a": ([0, 1], [1, 0])})

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
        assert observations[:, 1].tolist() == [0, 2]  # the refused step changed no environment
        assert envs.step([0, 0])[0][:, 1].tolist() == [1, 3]
