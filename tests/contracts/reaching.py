"""The part of the contract about what a caller reads, sets and calls in the environments."""

from typing import Any

import gymnasium
import pytest
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import EnvRaisedError
from ml_pipeline.testing.vector_envs import WholeNumberEnv, counting


class ReachingContract:
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
