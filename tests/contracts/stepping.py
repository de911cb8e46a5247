"""The part of the contract about what steps give, whatever the spaces and the mode."""

import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import ActionsError, SpacesDifferError
from tests.contracts.envs import (
    MODES,
    SPACES,
    FreshCountingEnv,
    KeepingEnv,
    N,
    SamplingEnv,
    WholeNumberEnv,
    assert_equal,
    counting,
    trajectory,
    wrapped,
)


class SteppingContract:
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
        "actions",
        [np.zeros(3, int), np.zeros((2, 1), int), np.zeros(2), [[0], [1]], 1, np.int64(1), None, [[0], [1, 2]]],
        ids=["n", "2d", "float", "list", "scalar", "np", "none", "ragged"],
    )
    def test_unfit_actions_are_named_and_harmless(self, make: Any, actions: Any) -> None:
        envs = make([CountingEnv] * 2)
        envs.reset(seed=0)
        with pytest.raises(ActionsError, match=re.escape("actions must be int64 of shape (2,)")) as caught:
            envs.step(actions)
        assert isinstance(caught.value, TypeError)  # as Gymnasium's own say
        assert isinstance(caught.value, ValueError)
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
