"""Small environments with known behaviour, for the self-test, the tests and the benchmarks of vectorized environments.

They import only NumPy and Gymnasium, and use only their own random generators.
"""

import os
import signal
import time
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env):
    """Counts: observes (episode, step in it, one random number), in one array that it reuses.

    An episode lasts `length` steps plus 0 to `spread` drawn at its reset; every third one is truncated, the others
    terminate. The reward is step + 10 * action. info is not empty at every fourth step and at every reset.
    """

    def __init__(self, length: int = 5, spread: int = 0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.length = length
        self.spread = spread
        self.episode = 0
        self._observation = np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode = 1 if seed is not None else self.episode + 1
        self._t = 0
        self._end = self.length + int(self.np_random.integers(self.spread + 1))
        return self._observe(), {"end": self._end, "options": str(options)}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        over = self._t >= self._end
        truncated = over and self.episode % 3 == 0
        info = (
            {"t": self._t, "nested": {"square": self._t**2}, "array": np.arange(2) + self._t}
            if self._t % 4 == 0
            else {}
        )
        return self._observe(), self._t + 10.0 * int(action), over and not truncated, truncated, info

    def _observe(self) -> np.ndarray:
        self._observation[:] = self.episode, self._t, self.np_random.random()
        return self._observation


class TimedEnv(gymnasium.Env):
    """Takes a known time per step: computes for `busy_s`, or sleeps for `wait_s`. Its episodes never end.

    sigma: standard deviation of the log of the time; the mean is unchanged. shape, dtype: of the observation.
    """

    def __init__(
        self,
        *,
        busy_s: float = 0.0,
        wait_s: float = 0.0,
        sigma: float = 0.0,
        shape: tuple[int, ...] = (4,),
        dtype: type = np.float32,
    ) -> None:
        self.observation_space = spaces.Box(0, 1, shape, dtype)
        self.action_space = spaces.Discrete(2)
        self._busy_s, self._wait_s, self._sigma = busy_s, wait_s, sigma
        self._observation: np.ndarray = np.zeros(shape, dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        factor = self.np_random.lognormal(-(self._sigma**2) / 2, self._sigma) if self._sigma else 1.0
        if self._busy_s:
            # CPU time of this thread, so that a busy step does not shrink when another process takes the core.
            end = time.thread_time() + self._busy_s * factor
            while time.thread_time() < end:
                pass
        if self._wait_s:
            time.sleep(self._wait_s * factor)
        return self._observation, 0.0, False, False, {}


Fault = Literal[
    "none", "raise", "raise_in_reset", "kill", "hang", "shape", "dtype", "nan", "inf", "tuple", "flag", "info", "reset"
]


class FaultyEnv(CountingEnv):
    """A CountingEnv that misbehaves in one way from its step number `at` on, if it is `armed`.

    Set `armed` with set_attr() to choose the environment.
    """

    def __init__(self, fault: Fault = "raise", at: int = 1, *, armed: bool = True) -> None:
        super().__init__(length=1000)
        self.fault, self.at, self.armed = fault, at, armed
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        observation, info = super().reset(seed=seed, options=options)
        if self.armed and self.fault == "raise_in_reset":
            raise KeyError("no such reset")
        if self.armed and self.fault == "reset":
            return observation  # type: ignore[return-value]
        return observation, info

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._steps += 1
        return self._misbehave(*result) if self.armed and self._steps >= self.at else result

    def _misbehave(self, observation: np.ndarray, reward: float, *rest: Any) -> Any:
        if self.fault == "raise":
            raise ValueError(f"no such step: {self._steps}")
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            time.sleep(3600)
        terminated, truncated, info = rest
        unusable = {
            "shape": (observation[:2], reward, terminated, truncated, info),
            "dtype": (observation.astype(np.complex64), reward, terminated, truncated, info),
            "nan": (observation, float("nan"), terminated, truncated, info),
            "inf": (observation, float("inf"), terminated, truncated, info),
            "tuple": (observation, reward, terminated, info),
            "flag": (observation, reward, None, truncated, info),
            "info": (observation, reward, terminated, truncated, None),
        }
        return unusable.get(self.fault, (observation, reward, *rest))
