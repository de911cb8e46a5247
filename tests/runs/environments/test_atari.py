"""Atari games: lives are episodes and rewards are signs in training, games and points in evaluation."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.environments.gym_env import GymEnv, _Lives, _sign
from ml_pipeline.runs.gym_task import reports_mask_at_reset


class Game(gymnasium.Env):
    """Two lives of so many steps each, 7 points a step, with what an Atari game tells of itself.

    done: what was done since it was emptied.
    """

    observation_space = spaces.Box(0, 255, (2, 2), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self, meanings=("NOOP", "FIRE", "UP", "DOWN"), life=3):
        self.meanings, self.ale, self.life, self.done = list(meanings), self, life, []

    def get_action_meanings(self):
        return self.meanings

    def lives(self):
        return max(0, 2 - self.t // self.life)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        self.done.append("reset")
        return np.zeros((2, 2), np.uint8), {}

    def step(self, action):
        self.t += 1
        self.done.append(self.meanings[action])
        return np.full((2, 2), self.t, np.uint8), 7.0, self.lives() == 0, False, {}


DOWN = 3


def play(env):
    """Step to the end of the episode; its return, and what was done since the last call."""
    total, terminated = 0.0, False
    while not terminated:
        _, reward, terminated, _, _ = env.step(DOWN)
        total += reward
    done, env.unwrapped.done = env.unwrapped.done, []
    return total, done


def test_in_training_a_lost_life_ends_the_episode_and_the_next_reset_goes_on_with_the_game():
    env = _Lives(Game(life=5), as_episodes=True)
    env.reset(seed=0)
    assert play(env) == (21.0, ["reset", "FIRE", "UP", "DOWN", "DOWN", "DOWN"])
    env.reset()
    assert play(env) == (14.0, ["NOOP", "FIRE", "UP", "DOWN", "DOWN"])
    env.reset()
    assert play(env)[1][:3] == ["reset", "FIRE", "UP"]


def test_a_game_that_ends_while_a_life_is_started_begins_anew():
    env = _Lives(Game(), as_episodes=True)
    env.reset(seed=0)
    assert play(env) == (7.0, ["reset", "FIRE", "UP", "DOWN"])
    observation, _ = env.reset()  # idling, FIRE and UP are all three steps of the second life
    assert env.unwrapped.done == ["NOOP", "FIRE", "UP", "reset"]
    assert not observation.any()


def test_after_the_game_is_over_a_new_one_begins():
    env = _Lives(Game(meanings=["NOOP", "UP", "LEFT", "DOWN"]), as_episodes=True)
    env.reset(seed=0)
    assert play(env) == (21.0, ["reset", "DOWN", "DOWN", "DOWN"])
    env.reset()
    assert play(env) == (14.0, ["NOOP", "DOWN", "DOWN"])
    env.reset()
    assert play(env) == (21.0, ["reset", "DOWN", "DOWN", "DOWN"])


def test_a_seed_begins_a_new_game_at_any_time():
    env = _Lives(Game(meanings=["NOOP", "UP", "LEFT", "DOWN"]), as_episodes=True)
    for seed in (1, 1):
        env.reset(seed=seed)
        assert play(env) == (21.0, ["reset", "DOWN", "DOWN", "DOWN"])


def test_in_evaluation_an_episode_is_a_game_and_each_life_is_started():
    env = _Lives(Game(), as_episodes=False)
    env.reset(seed=0)
    # The points of FIRE and UP after the lost life count: 7 + (7 + 7) + 7.
    assert play(env) == (28.0, ["reset", "FIRE", "UP", "DOWN", "FIRE", "UP", "DOWN"])
    env.reset()
    assert play(env)[1][0] == "reset"


@pytest.mark.parametrize(("reward", "sign"), [(7.0, 1.0), (0, 0.0), (np.float64(-0.5), -1.0)])
def test_rewards_become_signs(reward, sign):
    assert (_sign(reward), type(_sign(reward))) == (sign, float)


def test_what_is_no_game_is_one_sentence():
    with pytest.raises(UserError) as told:
        reports_mask_at_reset(GymEnv(env_id="CartPole-v1", atari=True), seed=0)
    assert str(told.value) == (
        "--atari is for Atari games, such as ale_py:ALE/Pong-v5, but CartPole-v1 is not one; leave it out."
    )


BREAKOUT = "ale_py:ALE/Breakout-v5"


@pytest.fixture
def ale():
    pytest.importorskip("ale_py", reason="needs the extra atari")
    pytest.importorskip("cv2", reason="needs the extra atari")


def test_a_game_is_four_gray_frames(ale):
    with GymEnv(env_id=BREAKOUT, atari=True).make(training=True) as env:
        assert env.observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation)
        assert observation.max() > 0
        assert env.unwrapped._frameskip == 1
        frames = env.unwrapped.ale.getEpisodeFrameNumber()
        env.step(0)
        assert env.unwrapped.ale.getEpisodeFrameNumber() == frames + 4


def test_lives_and_points_of_a_real_game(ale):
    returns, rewards, n_episodes = {}, {True: set(), False: set()}, {}
    for training in (True, False):
        with GymEnv(env_id=BREAKOUT, atari=True).make(training=training) as env:
            env.reset(seed=1)
            env.action_space.seed(1)
            total, n = 0.0, 0
            while env.unwrapped.ale.lives() > 0:
                _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                rewards[training].add(float(reward))
                total += float(reward)
                if terminated or truncated:
                    n += 1
                    if env.unwrapped.ale.lives():
                        env.reset()
            returns[training], n_episodes[training] = total, n
    assert n_episodes == {True: 5, False: 1}
    assert rewards[True] <= {-1.0, 0.0, 1.0}


@pytest.mark.long
def test_a_game_is_trained_and_judged_by_its_points(ale, tmp_path):
    small = ["--n-steps", "32", "--minibatch-size", "32", "--n-epochs", "1", "--total-timesteps", "64", "--n-envs", "2"]
    run = ["--env-id", BREAKOUT, "--atari", "--checkpoint-dir", str(tmp_path), "--eval-episodes", "1"]
    assert train_ppo.main([*run, *small]) == 0
    report = json.loads((tmp_path / "evaluation.json").read_text())
    assert report["returns"][0] == int(report["returns"][0]) >= 0
