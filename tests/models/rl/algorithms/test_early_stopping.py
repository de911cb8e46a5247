"""Training ends at a target or on a plateau, also where it was interrupted in between."""

import gymnasium
import numpy as np
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.callbacks import StopAtReturn, StopOnPlateau
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.trainer import Every
from ml_pipeline.models.rl.core.vec_env import SerialEnv

CONFIG = PPOConfig(n_steps=8, minibatch_size=16, n_epochs=2, hidden_sizes=(8,))


class Constant(gymnasium.Env):
    """Episodes of two steps that return 2, whatever is done."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 2, False, {}


def trainer_for(n_iterations):
    return PPOTrainer(SerialEnv([Constant] * 2), CONFIG, total_timesteps=n_iterations * 16)


def iterations(callback):
    trainer = trainer_for(10)
    trainer.train(callbacks=[callback])
    return trainer.iteration


def test_training_ends_at_a_target():
    assert iterations(StopAtReturn(2.0)) == 1
    assert iterations(StopAtReturn(2.1)) == 10


def test_training_ends_where_it_no_longer_gets_better():
    assert iterations(StopOnPlateau(patience=3)) == 4  # the first is a rise from nothing


def test_a_rise_begins_the_patience_anew():
    class Statistics:
        def __init__(self, mean_return_100):
            self.mean_return_100 = mean_return_100

    class Trainer:
        stopped = False

        def request_stop(self):
            self.stopped = True

    callback, trainer, log = StopOnPlateau(patience=2, min_rise=0.5), Trainer(), []
    for value in (float("nan"), 1.0, 1.4, 1.6, 1.7, 1.8):
        callback.after_iteration(trainer, Statistics(value))
        log.append(trainer.stopped)
    assert log == [False, False, False, False, False, True]


def test_a_resumed_run_stops_on_its_plateau_where_the_uninterrupted_one_does():
    def run(n_before):
        """A run that stops on a plateau, saved and resumed after so many iterations: how many it has in the end."""
        trainer, states = trainer_for(20), []
        save = Every(1, lambda trainer: states.append(trainer.state_dict()))
        trainer.train(callbacks=[StopOnPlateau(patience=4)], save=save)
        trainer = trainer_for(20)
        trainer.load_state_dict(states[n_before])
        trainer.train(callbacks=[StopOnPlateau(patience=4)])
        assert not trainer.finished
        return trainer.iteration

    assert [run(n) for n in range(4)] == [5] * 4
