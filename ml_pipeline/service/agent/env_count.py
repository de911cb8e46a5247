"""How many environments to train in, where nobody says: what a step costs, how many symbols, cores and how much memory.

More environments share one evaluation of the policy, and more cores; past some number nothing is gained, and rollouts
only grow. A number chosen here depends on the machine, and results depend on the number: give it to repeat a run.
"""

from dataclasses import dataclass

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.core.workers.choice import StepCost, choose_division, expected_speedup

# What one vector step costs besides the environments, as an assumption that only ranks the counts: acting and storing
# with a small policy (`time/acting_s` of a run over its vector steps tells it here), and waking one worker.
_ACTING_S = 8e-5
_WAKE_S = 7e-5
# More environments are taken only where they are worth it.
_WORTH = 1.1
WORKER_BYTES = 60_000_000
"""What a worker process takes: 40 MB of Python, NumPy and Gymnasium, and its environments."""


@dataclass(frozen=True)
class EnvCount:
    """n_envs, and why it is that many."""

    n_envs: int
    reason: str


def choose_n_envs(
    n_symbols: int, cost: StepCost | None, *, most: int, cores: float, free_bytes: int, bytes_each: int
) -> EnvCount:
    """The fewest environments whose steps per second are within a tenth of the most that can be had.

    They are whole rounds of the symbols. cost: of a step; None where it could not be measured. most: the limit.
    cores: those that are free. bytes_each: what one environment takes in rollouts.
    Raises UserError where the limit is less than one environment per symbol.

    >>> choose_n_envs(2, StepCost(1e-3, 0.0), most=8, cores=2, free_bytes=10**9, bytes_each=10**6).n_envs
    2
    """
    if n_symbols > most:
        raise UserError(
            f"{counted(n_symbols, 'symbol')} need an environment each, but max_concurrent_envs is {most}; raise it in "
            f"the section vectorized to {n_symbols} or more, or name fewer symbols."
        )
    counts = range(n_symbols, most + 1, n_symbols)
    rates = {n: _steps_per_second(n, cost or StepCost(1e-5, 0.0), cores) for n in counts}
    affordable = {n: rate for n, rate in rates.items() if n == n_symbols or n * bytes_each <= free_bytes / 2}
    best = max(affordable.values())
    chosen = next(n for n, rate in affordable.items() if rate * _WORTH >= best)
    measured = "its steps refuse random actions" if cost is None else f"a step takes {_time(cost.cpu_s + cost.wait_s)}"
    limit = f"at most {most}" if len(affordable) == len(rates) else f"{free_bytes / 1e6:,.0f} MB are free"
    return EnvCount(
        chosen,
        f"n_envs is {chosen}: {measured}, {counted(n_symbols, 'symbol')}, {cores:.3g} cores, {limit}; give n_envs "
        f"{chosen} to repeat the run elsewhere.",
    )


def _steps_per_second(n: int, cost: StepCost, cores: float) -> float:
    division = choose_division(cost, n, cores, wake_s=_WAKE_S)
    alone_s = n * (cost.cpu_s + cost.wait_s)
    return n / (_ACTING_S + alone_s / expected_speedup(cost, n, division, cores, wake_s=_WAKE_S))


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.3g} µs"
