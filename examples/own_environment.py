"""Trains on an environment of one's own: a cart on a line that is pushed to the middle.

python examples/own_environment.py
"""

import gymnasium
import numpy as np

from ml_pipeline import ParallelEnv, PPOConfig, PPOTrainer, evaluate


class CartOnALine(gymnasium.Env):
    """Push left, not at all or right, and stay near the middle. Observation: position and speed."""

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.speed, self.steps = self.np_random.uniform(-2.0, 2.0), 0.0, 0
        return self._observation(), {}

    def step(self, action):
        self.speed = 0.9 * self.speed + 0.1 * (int(action) - 1)
        self.position = float(np.clip(self.position + self.speed, -10.0, 10.0))
        self.steps += 1
        reward = -abs(self.position)
        terminated = False
        truncated = self.steps >= 50  # the time is up, which is no end of the task: PPO bootstraps here
        return self._observation(), reward, terminated, truncated, {}

    def _observation(self):
        return np.array([self.position, self.speed], np.float32)


def main():
    before = evaluate(CartOnALine(), lambda observation: 1, n_episodes=20, seed=1).mean_return
    with ParallelEnv([CartOnALine] * 8, copy=False) as envs:  # as many workers as pay, here mostly none
        trainer = PPOTrainer(envs, PPOConfig(n_steps=128, learning_rate=1e-3), total_timesteps=40_960)
        policy = trainer.train(progress=False)
    after = evaluate(CartOnALine(), policy.act, n_episodes=20, seed=1).mean_return
    print(f"Mean return: {before:.1f} without a push, {after:.1f} trained")


if __name__ == "__main__":
    main()
