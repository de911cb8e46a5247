"""Environments that the contract is tried on, what stepping them returns, and how that is compared."""

import copy
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as wrappers

from ml_pipeline.models.rl.core.probe_envs import CountingEnv

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a module of tests

MODES = list(AutoresetMode)
N = 5


class CustomSpace(gymnasium.Space):
    """A space that Gymnasium knows nothing about."""

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return f"word-{self.np_random.integers(10)}"

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CustomSpace)

    __hash__ = None  # type: ignore[assignment]


SPACES = {
    "scalar box": spaces.Box(-1, 1, (), np.float64),
    "float16 box": spaces.Box(-1, 1, (2, 3), np.float16),
    "frames": spaces.Box(0, 255, (8, 8, 3), np.uint8),
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([[3, 5], [7, 11]]),
    "multi-binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2,), np.float32))),
    "dict": spaces.Dict(a=spaces.Dict(x=spaces.Discrete(3)), b=spaces.Tuple([spaces.MultiBinary(3)])),
    "text": spaces.Text(7),
    "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
    "sequence": spaces.Sequence(spaces.Discrete(4)),
    "one of": spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
    "mixed dict": spaces.Dict(a=spaces.Text(5), b=spaces.Box(0, 1, (2,))),
    "custom": CustomSpace(),
}


class SamplingEnv(gymnasium.Env):
    """Observes samples of a space, insists on actions from it, and ends every third step."""

    def __init__(self, space: gymnasium.Space) -> None:
        self.observation_space = copy.deepcopy(space)
        self.action_space = copy.deepcopy(space)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        # A scalar Box warns about the NumPy scalar that Gymnasium's own iterate() makes of its actions.
        given = np.asarray(action) if isinstance(self.action_space, spaces.Box) else action
        assert self.action_space.contains(given), f"{action!r} of {type(action)} is not in {self.action_space}"
        self.t += 1
        return self.observation_space.sample(), 0.0, self.t == 3, False, {}


class KeepingEnv(CountingEnv):
    """Keeps what it was given, and hands out what it goes on changing."""

    def __init__(self) -> None:
        super().__init__(length=1000)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.actions: list[np.ndarray] = []

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.actions.append(action)
        observation, _, *flags, _ = super().step(0)
        return observation, float(action[0]), *flags, {"actions": self.actions}


class WholeNumberEnv(CountingEnv):
    """Observes its step as a plain int, of at most `most`, and says what it was stepped with and its render mode."""

    def __init__(self, action_space: gymnasium.Space, most: int = 9, length: int = 2) -> None:
        super().__init__(length=length)
        self.action_space = action_space
        self.observation_space = spaces.Discrete(most + 1)
        self.render_mode = "ansi"

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        observation, _, *flags, _ = super().step(0)
        return observation, 0.0, *flags, {"given": f"{type(action).__name__} {action}"}

    def render(self) -> str:
        return f"step {self._t}"

    def greet(self, greeting: str, *, name: str) -> str:
        return f"{greeting} {name}"

    def _observe(self) -> Any:
        return self._t


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


class FreshCountingEnv(CountingEnv):
    """Returns a new array each time: Gymnasium's own vectorizers keep references."""

    def _observe(self) -> np.ndarray:
        return super()._observe().copy()


def counting(index: int) -> Callable[[], gymnasium.Env]:
    return lambda: CountingEnv(length=2 + index, spread=3)


def trajectory(envs: VectorEnv, n_steps: int, *, seed: int | None = 11) -> list[Any]:
    """Everything that stepping returns, with actions that depend on nothing but the step."""
    rng = np.random.default_rng(3)
    seen: list[Any] = [envs.reset(seed=seed)] if seed is not None else []
    for _ in range(n_steps):
        if envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED and seen and len(seen[-1]) == 5:
            over = seen[-1][2] | seen[-1][3]
            if over.any():
                seen.append(envs.reset(options={"reset_mask": over}))
        seen.append(envs.step(rng.integers(0, 4, envs.num_envs)))
    return seen


def wrapped(envs: Any) -> Any:
    """Under most of Gymnasium's vector wrappers; observations can be wrapped in NEXT_STEP mode alone."""
    mode = envs.metadata["autoreset_mode"]
    envs = wrappers.NormalizeReward(wrappers.RecordEpisodeStatistics(envs))
    if mode == AutoresetMode.NEXT_STEP:
        envs = wrappers.TransformObservation(envs, func=lambda batch: 2 * batch)
        envs = wrappers.FlattenObservation(wrappers.NormalizeObservation(envs))
    return wrappers.DictInfoToList(wrappers.ClipReward(envs, -1.0, 1.5))


def assert_equal(a: Any, b: Any) -> None:
    """The same structure, types, dtypes and bits."""
    if isinstance(a, dict) and isinstance(b, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    elif isinstance(a, np.ndarray) and a.dtype == object:
        assert_equal(list(a), list(b))
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    else:
        assert a == b
