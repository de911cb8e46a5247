"""CartPole with steps that wait, so that a small training lasts for seconds."""

import time

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

STEP_S = 0.01


class Waiting(CartPoleEnv):
    def step(self, action):
        time.sleep(STEP_S)
        return super().step(action)


gymnasium.register("Waiting-v0", Waiting, max_episode_steps=200)
