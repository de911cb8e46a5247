"""Environments that draw from the global generators are found, and those generators stay as they were."""

import random

import numpy as np
import pytest

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.runtime.global_random import find_global_random


class DrawingEnv(CountingEnv):
    """Calls `draw` where it is told to."""

    def __init__(self, draw, where):
        super().__init__(length=3)
        self._draw, self._where = draw, where
        self._at("constructor")

    def _at(self, place):
        if place == self._where:
            self._draw()

    def reset(self, *, seed=None, options=None):
        self._at("reset" if seed is not None else "later reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self._at("step")
        return super().step(action)


@pytest.mark.parametrize(
    ("draw", "generator"),
    [
        (random.random, "global random in"),
        (lambda: random.gauss(0, 1), "global random in"),
        (np.random.rand, "global numpy.random in"),
        (lambda: np.random.seed(1), "global numpy.random in"),
        (lambda: (random.random(), np.random.normal()), "global random and numpy.random in"),
    ],
)
def test_the_generator_is_named(draw, generator):
    assert generator in find_global_random(lambda: DrawingEnv(draw, "step"))


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("constructor", "in the constructor;"),
        ("reset", "in reset();"),
        ("step", "in step 1;"),
        ("later reset", "in reset() after step 3;"),
    ],
)
def test_the_place_is_named(where, named):
    assert named in find_global_random(lambda: DrawingEnv(random.random, where))


def test_own_generators_are_fine():
    assert find_global_random(lambda: CountingEnv(spread=3)) is None


def test_refused_actions_end_the_search():
    class RefusingEnv(CountingEnv):
        def step(self, action):
            raise ValueError("not now")

    assert find_global_random(RefusingEnv) is None


def test_the_global_generators_are_left_alone():
    before = random.getstate(), np.random.get_state()[1].tobytes()
    find_global_random(lambda: DrawingEnv(lambda: (random.random(), np.random.rand()), "step"))
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before
