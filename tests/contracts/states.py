"""The part of the contract about what states of environments hold, and which are refused."""

from typing import Any

import gymnasium
import pytest
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable
from ml_pipeline.testing.vector_envs import MODES, assert_equal, counting, trajectory
from tests.contracts.envs import ForgetfulEnv, MarketEnv


class StatesContract:
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
        with pytest.raises(ValueError, match="one state per environment, 2, but got 1"):
            envs.set_states([b""])
