"""How long training is, and how far it is, by steps: what schedules follow, and where a finished run goes on."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv

N_STEPS, NUM_ENVS = 8, 3
ROLLOUT = N_STEPS * NUM_ENVS  # 24


class Walk(gymnasium.Env):
    """A seeded random walk in episodes of five steps."""

    observation_space = spaces.Box(-9, 9, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.t = np.zeros(2, np.float32), 0
        return self.position.copy(), {}

    def step(self, action):
        self.t += 1
        self.position += self.np_random.normal(size=2).astype(np.float32) + 0.1 * action
        return self.position.clip(-9, 9), float(self.position[0]), False, self.t == 5, {}


class Unsaveable(Walk, gymnasium.utils.EzPickle):
    """Its pickle would begin anew, as that of simulators does."""


def trainer_for(total_timesteps, *, env=Walk, schedule="linear"):
    config = PPOConfig(
        n_steps=N_STEPS, minibatch_size=12, n_epochs=1, hidden_sizes=(8,), learning_rate_schedule=schedule
    )
    return PPOTrainer(SerialEnv([env] * NUM_ENVS), config, total_timesteps=total_timesteps, seed=3)


def progress_of(trainer):
    """Train to the end; the progress that each update was given."""
    learn, seen = trainer._learn, []

    def watched(*, progress):
        seen.append(progress)
        return learn(progress=progress)

    trainer._learn = watched
    trainer.train()
    return seen


def stop_after(n_steps, trainer):
    """Let training stop after so many steps of the environments."""
    step, left = trainer._envs.step, iter(range(n_steps - 1, -1, -1))

    def stopping(actions):
        if next(left, None) == 0:
            trainer.request_stop()
        return step(actions)

    trainer._envs.step = stopping


def weights_of(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.network.parameters()])


@pytest.mark.parametrize(("steps", "rollouts"), [(1, 1), (24, 1), (25, 2), (72, 3)])
def test_steps_are_rounded_up_to_whole_rollouts(steps, rollouts):
    trainer = trainer_for(steps)
    for _ in range(rollouts):
        assert (trainer.total_timesteps, trainer.total_iterations) == (rollouts * ROLLOUT, rollouts)
        assert not trainer.finished
        trainer.train_episode_vectorized()
    assert (trainer.global_step, trainer.iteration, trainer.finished) == (rollouts * ROLLOUT, rollouts, True)
    trainer.train_episode_vectorized()  # beyond the end
    assert (trainer.total_timesteps, trainer.total_iterations) == (rollouts * ROLLOUT, rollouts)
    assert trainer.finished


def test_progress_is_the_share_of_steps_taken_before_the_rollout():
    # 25 to 48 steps are two rollouts of 24, 145 to 168 seven. The quotients are those of iterations, to the last bit.
    assert progress_of(trainer_for(30)) == [0.0, 0.5]
    assert progress_of(trainer_for(150)) == [k / 7 for k in range(7)]


@pytest.mark.parametrize("n_steps", [1, 8, 11])
def test_an_interruption_changes_neither_length_nor_progress(n_steps):
    trainer = trainer_for(100)  # five rollouts
    stop_after(n_steps, trainer)
    seen = progress_of(trainer)
    assert (trainer.global_step, trainer.total_timesteps, trainer.total_iterations) == (n_steps * NUM_ENVS, 120, 5)
    resumed = trainer_for(100)
    resumed.load_state_dict(trainer.state_dict())
    assert (resumed.total_timesteps, resumed.total_iterations) == (120, 5)
    assert seen + progress_of(resumed) == [k / 5 for k in range(5)]


def test_rollouts_are_counted_from_where_environments_that_begin_anew_stand():
    # Stopped after 11 steps, in the second rollout, whose 9 transitions are lost: 33 steps, 1 iteration. 96 asked for
    # are 63 more, three rollouts: until 33 + 72 = 105.
    trainer = trainer_for(96, env=Unsaveable)
    stop_after(11, trainer)
    trainer.train()
    state = trainer.state_dict()
    assert state["environments"] is None
    resumed = trainer_for(96, env=Unsaveable)
    resumed.load_state_dict(state)
    assert (resumed.global_step, resumed.total_timesteps, resumed.total_iterations) == (33, 105, 4)
    assert progress_of(resumed) == [33 / 105, 57 / 105, 81 / 105]
    assert (resumed.global_step, resumed.iteration, resumed.finished) == (105, 4, True)


def test_a_finished_run_given_more_steps_equals_one_that_had_them_from_the_start():
    whole, first, more = (trainer_for(n * ROLLOUT, schedule="constant") for n in (5, 2, 5))
    whole.train()
    first.train()
    assert first.finished
    more.load_state_dict(first.state_dict())
    assert not more.finished
    more.train()
    assert (more.iteration, more.global_step, more.finished) == (5, 5 * ROLLOUT, True)
    assert torch.equal(weights_of(more), weights_of(whole))


def test_a_finished_run_given_more_steps_goes_on_in_the_schedule_of_its_new_length():
    # Two rollouts of two, then three more of five: at 2/5, 3/5 and 4/5 of a line from 3e-4 to 0.
    first, more = (trainer_for(n * ROLLOUT) for n in (2, 5))
    assert progress_of(first) == [0.0, 0.5]
    more.load_state_dict(first.state_dict())
    rates = [more.train_episode_vectorized().update.learning_rate for _ in range(3)]
    assert rates == pytest.approx([3e-4 * 3 / 5, 3e-4 * 2 / 5, 3e-4 * 1 / 5])


def test_a_run_given_fewer_steps_than_it_has_taken_is_finished():
    first, fewer = trainer_for(4 * ROLLOUT), trainer_for(2 * ROLLOUT)
    first.train()
    fewer.load_state_dict(first.state_dict())
    assert fewer.finished
    assert progress_of(fewer) == []
