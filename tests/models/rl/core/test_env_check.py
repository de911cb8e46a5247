"""What is wrong with an environment is said in a sentence that names it."""

import random
import re
import time

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.env_check import check_env, check_env_in_process
from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.models.rl.preprocessing.action_mask import ActionMaskInObservation
from tests.contracts.envs import MaskedEnv

NOT_FINITE = (
    "reward must be a finite number, but got NaN; look for a division by zero, a logarithm or an overflow in the "
    "environment."
)


class SpoiltEnv(CountingEnv):
    """Counts, with one thing spoilt; observes a dict of a number of at most 1, and of a choice of 2."""

    def __init__(self, spoil):
        super().__init__(length=4)
        self.observation_space = spaces.Dict(share=spaces.Box(0, 1, (1,)), side=spaces.Discrete(2))
        self._spoil = spoil

    def _observe(self):
        observation = {"share": np.array([0.5], np.float32), "side": 1}
        return self._spoil(self._t, observation) or observation


def test_nothing_is_said_of_a_sound_environment():
    assert check_env(lambda: CountingEnv(spread=3)) == []
    assert check_env(lambda: SpoiltEnv(lambda t, observation: None)) == []


@pytest.mark.parametrize(
    ("spoilt", "sentence"),
    [
        ({"share": np.array([1.5], np.float32), "side": 1}, "['share'] holds 1.5, but its space allows 0 to 1;"),
        ({"share": np.array([1.0000001], np.float32), "side": 1}, "['share'] holds 1.0000001192092896, but its space"),
        ({"share": np.array([np.nan], np.float32), "side": 1}, "['share'] holds nan, but its space allows 0"),
        ({"share": np.array([0.5], np.float32), "side": 7}, "['side'] is array([7]), which is not in its space"),
    ],
)
def test_observations_outside_of_their_space_are_named(spoilt, sentence):
    (found,) = check_env(lambda: SpoiltEnv(lambda t, observation: spoilt if t == 3 else None))
    assert found.startswith(f"The observation of step 3{sentence}")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("raise", "It raises ValueError in step 1 with action .*: no such step: 1."),
        ("raise_in_reset", "It raises KeyError in reset.*: 'no such reset'."),
        ("nan", f"In step 1, {NOT_FINITE}"),
        ("inf", "In step 1, reward must be a finite number, but got inf; look for"),
        ("dtype", r"In step 1, observation must be float32 of shape \(3,\), but got complex64 of shape"),
    ],
)
def test_failures_are_one_sentence(fault, sentence):
    (found,) = check_env(lambda: FaultyEnv(fault))
    assert re.match(sentence, found)


def test_a_failing_construction_is_one_sentence():
    assert check_env(SpoiltEnv) == [
        "It raises TypeError in construction: SpoiltEnv.__init__() missing 1 required positional argument: 'spoil'."
    ]


def test_what_the_seed_does_not_settle_is_found():
    class ClockEnv(CountingEnv):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, time.perf_counter(), *rest

    (found,) = check_env(ClockEnv)
    assert found.startswith("Two environments with seed 0 and the same actions differ in step 1; draw every random")


def test_global_random_is_named_and_not_told_twice():
    class DrawingEnv(CountingEnv):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, reward + random.random(), *rest

    before = random.getstate()
    (found,) = check_env(DrawingEnv)
    assert "draws from the global random in step 1; draw from self.np_random" in found
    assert random.getstate() == before


def test_a_wrong_result_does_not_hide_global_random():
    class WrongAndDrawingEnv(FaultyEnv):
        def step(self, action):
            random.random()
            return super().step(action)

    drawn, wrong = check_env(lambda: WrongAndDrawingEnv("dtype", at=3))
    assert "draws from the global random in step 1" in drawn
    assert wrong.startswith("In step 3, observation must be float32")


def test_an_unfit_observation_is_told_beside_a_later_failure():
    def spoil(t, observation):
        if t == 3:
            raise ValueError("no third step")
        return {"share": np.array([1.5], np.float32), "side": 1} if t == 2 else None

    unfit, failure = check_env(lambda: SpoiltEnv(spoil))
    assert unfit.startswith("The observation of step 2['share'] holds 1.5")
    assert failure.startswith("It raises ValueError in step 3")


@pytest.mark.parametrize("report", ["info", "method"])
def test_masks_are_kept_to(report):
    assert check_env(lambda: MaskedEnv(report)) == []
    assert check_env(lambda: ActionMaskInObservation(MaskedEnv(report))) == []


def test_a_mask_of_another_size_is_one_sentence():
    sentence = "The action mask must have 4 entries, one per choice, but has 3."
    assert check_env(lambda: MaskedEnv(n_actions=4, mask_size=3)) == [sentence]


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("none", None),
        ("nan", f"In step 2, {NOT_FINITE}"),
        ("kill", "It is killed by SIGKILL in step 2."),
        pytest.param("hang", "It has not returned from step 2 within step_timeout_s=5.", marks=pytest.mark.slow),
    ],
)
def test_from_a_process_of_its_own_even_what_kills_or_hangs_is_told(fault, sentence):
    step_timeout_s = 5 if fault == "hang" else 60
    found = check_env_in_process(lambda: FaultyEnv(fault, at=2), n_steps=5, step_timeout_s=step_timeout_s)
    assert [each.partition("\n")[0] for each in found] == ([sentence] if sentence else [])
    assert ("probe_envs.py" in "".join(found)) == (fault == "hang")  # where it is stuck


def test_a_slow_environment_takes_fewer_steps():
    """With no time at all, each pass takes one step, and does not reach a fault in a later one."""
    n_steps = []

    class CountedEnv(CountingEnv):
        def step(self, action):
            n_steps.append(1)
            return super().step(action)

    assert check_env(CountedEnv, n_steps=30, pass_limit_s=-1.0) == []
    assert len(n_steps) == 5
    assert check_env(lambda: FaultyEnv("nan", at=3), n_steps=30, pass_limit_s=-1.0) == []
    assert len(check_env(lambda: FaultyEnv("nan", at=3), n_steps=30, pass_limit_s=60.0)) == 1


@pytest.mark.parametrize("wrong", ["draws", "refuses", "draws and refuses"])
def test_a_slow_environment_takes_fewer_steps_even_if_a_pass_ends_early(wrong):
    n_steps = []

    class WrongEnv(CountingEnv):
        def reset(self, *, seed=None, options=None):
            if "draws" in wrong:
                np.random.rand()
            return super().reset(seed=seed, options=options)

        def step(self, action):
            n_steps.append(1)
            observation, reward, *rest = super().step(action)
            return observation, "wrong" if "refuses" in wrong else reward, *rest

    found = check_env(WrongEnv, n_steps=30, pass_limit_s=-1.0)
    assert any("global numpy.random" in sentence for sentence in found) == ("draws" in wrong)
    assert 1 <= len(n_steps) <= 5


class ManyBugsEnv(CountingEnv):
    """Wrong in each part of what it returns, in other steps."""

    def __init__(self):
        super().__init__(length=9)
        self.observation_space = spaces.Box(-100, 100, (3,), np.float32)

    def reset(self, *, seed=None):
        return super().reset(seed=seed)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        step = self._t
        observation = observation.astype(np.float64) + (1e9 if step == 5 else 0)
        observation = observation[:1] if step == 4 else observation
        parts = (str(reward) if step == 1 else reward, 1 if step == 2 else terminated, truncated)
        return observation, *parts, None if step == 3 else info

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True

    closed = False


def test_every_bug_is_named_in_one_run():
    found = check_env(ManyBugsEnv, read=observation_refused)
    for sentence in (
        "no such kind",
        "reset() does not take options; write def reset(self, *, seed=None, options=None)",
        "In step 1, reward must be one number, but got a str; return a float",
        "In step 2, terminated must be True or False, but got 1; return a bool",
        "In step 3, info must be a dict, but got a NoneType; return {}",
        "In step 4, observation must be float32 of shape (3,), but got float64 of shape (1,)",
        "observation is float64, but its space declares float32",
        "The observation of step 5 holds 1e+09",
        "A second close() raises RuntimeError: closed already",
    ):
        assert any(sentence in each for each in found), (sentence, found)
    assert len({*found}) == len(found)


def observation_refused(space):
    raise UserError("no such kind")


def test_an_action_that_is_changed_is_named():
    class InPlaceEnv(CountingEnv):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-1, 1, (2,))

        def step(self, action):
            action[:] = 0
            return super().step(0)

    assert check_env(InPlaceEnv) == ["In step 1, it changes the action passed to step(); work on a copy."]
