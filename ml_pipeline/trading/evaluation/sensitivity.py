"""How sensitive an agent's return is to fees and delays: the same run at other fees, and with delayed orders."""

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.evaluation.baselines import Act, hold_action, run_policy

FEES_BPS = (0.0, 1.0, 5.0, 10.0, 25.0)
DELAYS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Sensitivity:
    """Total log returns ln(V_end / V_start) by fee in bps, and by delay in bars; -inf if nothing was left."""

    by_fee: dict[float, float]
    by_delay: dict[int, float]

    @property
    def break_even_fee_bps(self) -> float | None:
        """The fee at which the agent's return is zero, interpolated linearly between the fees that were run.

        Beyond the largest fee, the last segment is extrapolated. None if the agent earns nothing even without fees, or
        if higher fees do not lower its return.
        """
        fees, returns = np.array(list(self.by_fee)), np.array(list(self.by_fee.values()))
        if returns[0] <= 0:
            return None
        after = np.flatnonzero(returns <= 0)
        i = int(after[0]) if after.size else len(fees) - 1
        slope = (returns[i] - returns[i - 1]) / (fees[i] - fees[i - 1])
        return float(fees[i - 1] - returns[i - 1] / slope) if np.isfinite(slope) and slope < 0 else None

    def sentence(self) -> str:
        """A sentence about the break-even fee."""
        fee = self.break_even_fee_bps
        if fee is not None:
            return f"The agent breaks even at a fee of about {fee:.1f} bps on what it trades."
        if self.by_fee[0.0] > 0:
            return "No fee that was tried takes away what the agent earns: it hardly trades."
        return "There is no fee at which the agent breaks even: it loses even when trading is free."


def analyze_sensitivity(env: StatefulTradingEnv, act: Act) -> Sensitivity:
    """Run `act` in the market of `env` at each fee and at each delay; a delay fills orders that many bars later."""
    by_fee = {}
    for fee in FEES_BPS:
        rules = replace(env.rules, fee_bps=fee, sell_fee_bps=None)
        by_fee[fee] = _log_return(StatefulTradingEnv(env.market, rules, window=env.window), act)
    return Sensitivity(by_fee, {delay: _log_return(env, delayed(act, delay, hold_action(env))) for delay in DELAYS})


def delayed(act: Act, bars: int, hold: Any) -> Act:
    """`act` with each action executed `bars` later; until the first of them, `hold`."""
    pending = deque([hold] * bars)

    def act_later(observation: NDArray[np.float32]) -> Any:
        pending.append(act(observation))
        return pending.popleft()

    return act_later


def _log_return(env: StatefulTradingEnv, act: Act) -> float:
    equity = run_policy(env, act)["equity"]
    return float(np.log(equity[-1] / equity[0])) if equity[-1] > 0 else -np.inf
