"""The protocol of trainers, kept by one that is not PPO: early stopping and intervals work with it."""

from typing import NamedTuple

import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline.models.rl.algorithms.callbacks import Callbacks, StopAtReturn, StopOnPlateau
from ml_pipeline.models.rl.algorithms.evaluation import evaluate
from ml_pipeline.models.rl.algorithms.trainer import Every, Trainer


class Counter(NamedTuple):
    """The statistics of one iteration."""

    iteration: int
    global_step: int
    mean_return_100: float

    def metrics(self):
        return {"time/iteration": float(self.iteration), "rollout/mean_return_100": self.mean_return_100}


class Constant:
    """A policy: one number, whatever it observes."""

    number = 0.0

    def act(self, observation):
        return np.array([self.number], np.float32)

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


class Climber:
    """A trainer: raises the number by 1 in each iteration of one step, up to 5; the number is the return."""

    def __init__(self, total_timesteps):
        self.policy, self.iteration, self.total_timesteps, self._stopped = Constant(), 0, total_timesteps, False

    global_step = property(lambda self: self.iteration)
    total_iterations = property(lambda self: self.total_timesteps)
    finished = property(lambda self: self.iteration >= self.total_timesteps)

    def train(self, *, callbacks=(), evaluate=None, save=None, progress=True, **functions):
        called = Callbacks(callbacks, **functions)
        while not (self.finished or self._stopped):
            self.iteration += 1
            self.policy.number = min(self.policy.number + 1.0, 5.0)
            called.after_iteration(self, Counter(self.iteration, self.global_step, self.policy.number))
            for every in (evaluate, save):
                if every and every.due(self):
                    every.action(self)
        self._stopped = False
        return self.policy

    def attach(self, callbacks):
        pass

    def request_stop(self):
        self._stopped = True

    def state_dict(self):
        return {"iteration": self.iteration, "policy": self.policy.state_dict()}

    def load_state_dict(self, state):
        self.iteration = state["iteration"]
        self.policy.load_state_dict(state["policy"])

    def close(self):
        pass


def test_it_is_a_trainer():
    assert isinstance(Climber(1), Trainer)


@pytest.mark.parametrize("member", ["request_stop", "finished", "close", "load_state_dict", "total_timesteps"])
def test_what_lacks_one_of_its_members_is_none(member):
    whole = {name: object() for name in (*dir(Climber), *vars(Climber(1))) if not name.startswith("_")}
    assert isinstance(type("Whole", (), whole)(), Trainer)
    del whole[member]
    assert not isinstance(type("Lacking", (), whole)(), Trainer)


@pytest.mark.parametrize(
    ("callback", "iterations"),
    [
        (StopAtReturn(3.0), 3),
        (StopAtReturn(6.0), 20),
        (StopOnPlateau(patience=2), 7),  # the fifth iteration is the last that rises
        (StopOnPlateau(patience=4, min_rise=9.0), 5),  # only the first, from nothing, is a rise by more than 9
    ],
)
def test_early_stopping_stops_it(callback, iterations):
    trainer = Climber(20)
    trainer.train(callbacks=[callback])
    assert trainer.iteration == iterations


def test_what_is_due_every_so_many_iterations_is_due_after_the_last():
    evaluated, saved = [], []
    trainer = Climber(10)
    trainer.train(
        evaluate=Every(4, lambda trainer: evaluated.append(trainer.iteration)),
        save=Every(5, lambda trainer: saved.append(trainer.state_dict())),
    )
    assert evaluated == [4, 8, 10]
    assert [state["iteration"] for state in saved] == [5, 10]


def test_a_saved_one_goes_on():
    first, second = Climber(3), Climber(4)
    first.train()
    second.load_state_dict(first.state_dict())
    second.train()
    assert (second.iteration, second.policy.number) == (4, 4.0)


class Echo:
    """An environment of one step that pays the action."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Box(-9, 9, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action[0]), True, False, {}


def test_its_policy_is_evaluated_as_any_other():
    policy = Climber(2).train()
    assert evaluate(Echo(), policy.act, n_episodes=2, seed=0).returns == (2.0, 2.0)
