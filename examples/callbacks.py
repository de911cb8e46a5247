"""Callbacks of your own: fees that rise with the score, the net worth of each episode, and goals that move away.

PYTHONPATH=examples ml-pipeline train --callback callbacks:RisingFees --callback callbacks:NetWorth
PYTHONPATH=examples ml-pipeline train --env-id callbacks:Goal-v0 --n-envs 8 --callback callbacks:Farther

PYTHONPATH names the folder of this file; without it, run where the file lies.
"""

import gymnasium
import numpy as np


class RisingFees:
    """Training fees rise from 0 to 5 bps as the validation score, a log return, rises from 0 to 0.05."""

    fee_bps = 0.0

    def before_rollout(self, trainer):
        trainer.envs.set_attr("fee_bps", self.fee_bps)

    def after_evaluation(self, trainer, metrics):
        self.fee_bps = max(self.fee_bps, min(5.0, 100 * metrics["eval/score"]))
        return {"mine/fee_bps": self.fee_bps}

    def state_dict(self):
        return {"fee_bps": self.fee_bps}

    def load_state_dict(self, state):
        self.fee_bps = state["fee_bps"]


class NetWorth:
    """The mean net worth at the end of the episodes of each iteration."""

    def after_episode(self, trainer, episode):
        return {"mine/net_worth": episode.info["equity"]}


class Farther:
    """Moves the goal away by one step whenever the agent reached it in 9 of 10 episodes of a rollout."""

    distance = 3

    def __init__(self):
        self.reached = []

    def before_rollout(self, trainer):
        trainer.envs.set_attr("distance", self.distance)

    def after_episode(self, trainer, episode):
        self.reached.append(episode.info["success"])
        return {"mine/success": episode.info["success"]}

    def after_rollout(self, trainer):
        if self.reached and np.mean(self.reached) >= 0.9:
            self.distance += 1
        self.reached.clear()
        return {"mine/distance": self.distance}

    def state_dict(self):
        return {"distance": self.distance}

    def load_state_dict(self, state):
        self.distance = state["distance"]


class Goal(gymnasium.Env):
    """A goal on the left or on the right, `distance` steps away, which the agent must reach in twice as many."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    distance = 3

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.distance * int(self.np_random.choice([-1, 1]))
        self.steps = 2 * self.distance
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left += 1 - 2 * int(action)
        self.steps -= 1
        success = self.left == 0
        info = {"success": success} if success or self.steps == 0 else {}
        return np.array([self.left], np.float32), float(success), success, self.steps == 0 and not success, info


gymnasium.register("Goal-v0", entry_point=Goal)
