"""The part of the contract about what a user reads where an environment fails, and what then goes on."""

import re
import traceback
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.models.rl.core.stepping.errors import (
    EnvFailedError,
    EnvRaisedError,
    EnvResultError,
    ResetRequiredError,
    SpacesDifferError,
)
from ml_pipeline.testing.vector_envs import SamplingEnv
from tests.contracts.envs import NewPairError, PairError, RaisingEnv, VerboseEnv


class FailureContract:
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
        ("make_error", "caught_as"),
        [
            (lambda: PairError(1, 2), PairError),
            (lambda: NewPairError(1, 2), EnvRaisedError),
            (lambda: ExceptionGroup("several", [ValueError(1), KeyError(2)]), EnvRaisedError),
        ],
        ids=["init", "new", "group"],
    )
    def test_errors_with_arguments_of_their_own_are_told(self, make: Any, make_error: Any, caught_as: type) -> None:
        envs = make([CountingEnv, lambda: RaisingEnv(make_error)])
        envs.reset(seed=0)
        name = type(make_error()).__name__
        with pytest.raises(EnvRaisedError, match=rf"nvironment 1 of 2.* raised {name} in step 1") as caught:
            envs.step([0, 0])
        assert isinstance(caught.value, caught_as)
        assert type(caught.value.__cause__).__name__ == name

    @pytest.mark.parametrize("where", ["constructor", "reset", "step"])
    def test_a_long_message_is_cut(self, make: Any, where: str) -> None:
        def run() -> None:
            envs = make([lambda: VerboseEnv(where)] * 2)
            envs.reset(seed=0)
            envs.step([0, 0])

        with pytest.raises(ValueError, match="begin xxx") as caught:
            run()
        assert isinstance(caught.value, EnvRaisedError)
        for error in (caught.value, caught.value.__cause__):
            assert str(error).rstrip().endswith("xxx end")
            assert "characters left out" in str(error)
        assert len("".join(traceback.format_exception(caught.value))) < 50_000
        assert len(cloudpickle.dumps(caught.value.report)) < 50_000

    @pytest.mark.parametrize(
        ("fault", "field", "expected", "received"),
        [
            ("shape", "observation", "float32 of shape (3,)", "float32 of shape (2,)"),
            ("dtype", "observation", "float32 of shape (3,)", "complex64 of shape (3,)"),
            ("nan", "reward", "a finite number", "NaN"),
            ("inf", "reward", "a finite number", "inf"),
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
