"""Environments that the contract is tried on, what stepping them returns, and how that is compared."""

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle

from ml_pipeline.models.rl.core.probe_envs import CountingEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a module of tests


class MaskedEnv(gymnasium.Env):
    """Allows one action, another one in each step, and refuses the others; an episode is 7 steps of reward 1.

    report: where it tells its mask, in its "info" or by its "method" `action_masks`, as for MaskablePPO of sb3-contrib.
    mask_size: how many entries the mask has; none: one per action, as it should be.
    """

    observation_space = spaces.Box(-1, 1, (2,))

    def __init__(self, report: str = "info", *, n_actions: int = 3, mask_size: int | None = None) -> None:
        self.action_space = spaces.Discrete(n_actions)
        self.t = 0
        self._mask_size = n_actions if mask_size is None else mask_size
        self._tells_in_info = report == "info"
        if report == "method":
            self.action_masks = self._mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if action != self.t % self.action_space.n:
            raise ValueError("forbidden")
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 7, False, self._info()

    def _mask(self) -> np.ndarray:
        return np.arange(self._mask_size) == self.t % self.action_space.n

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask()} if self._tells_in_info else {}


class PairError(ValueError):
    """Wants two arguments, as the errors of many libraries do."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(a, b)
        self.sum = a + b


class NewPairError(ValueError):
    """Wants them before it is there."""

    def __new__(cls, a: int, b: int) -> "NewPairError":
        return super().__new__(cls, a, b)


class RaisingEnv(CountingEnv):
    """Raises in its step."""

    def __init__(self, make_error: Callable[[], Exception]) -> None:
        super().__init__()
        self.make_error = make_error

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        raise self.make_error()


class VerboseEnv(CountingEnv):
    """Raises with a long message, and with much else in the exception, in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self._fail_in("constructor")

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        self._fail_in("reset")
        return super().reset(**kwargs)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._fail_in("step")
        return super().step(action)

    def _fail_in(self, where: str) -> None:
        if where == self.where:
            error = ValueError("begin " + "x" * 3_000_000 + " end")
            error.data = bytes(3_000_000)  # type: ignore[attr-defined]
            raise error


class Market:
    """Stands for gigabytes that every environment reads."""

    shared_between_environments = True

    def __init__(self) -> None:
        self.prices = np.arange(1000.0)

    def __getstate__(self) -> dict:
        raise AssertionError("a market was pickled")


class MarketEnv(CountingEnv):
    """Holds a market twice over."""

    def __init__(self) -> None:
        super().__init__(length=3, spread=3)
        self.market = Market()
        self.views = [self.market, self.market]

    def is_whole(self) -> bool:
        return self.views[0] is self.views[1] is self.market and float(self.market.prices[7]) == 7.0


class ForgetfulEnv(CountingEnv, EzPickle):
    """Pickles as its arguments, as LunarLander does."""

    def __init__(self) -> None:
        CountingEnv.__init__(self)
        EzPickle.__init__(self)
