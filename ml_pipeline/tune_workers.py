"""Command: measure in under 20 s which number of workers is best for an environment.

ml-pipeline tune-workers --env-id CartPole-v1 --n-envs 8
ml-pipeline tune-workers --data prices.csv --n-envs 16

It takes the settings of train_ppo, and measures the same environments; 8 of them by default.
"""

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Literal

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers.choice import (
    HERE,
    Division,
    StepCost,
    expected_step_s,
    measure_step,
    measure_wake,
)
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.train_command_line import parse_train_config
from ml_pipeline.runtime.acting import random_actions, reported_mask
from ml_pipeline.runtime.cores import BackgroundLoad, usable_cores

PROG = "tune-workers"
_USUAL_N_ENVS = 8
_COSTS_S, _RATES_S = 4.0, 8.5  # time budgets: for single steps, and for all numbers of workers
_TURN_S, _TURNS = 0.15, 3
_START_S = 0.05  # minimum time to start a worker
_NOISE = 0.1  # a smaller share of waiting may come from the machine
_SLOW = 2.0  # an environment is slow from this multiple of the others' median on


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Measure, print one line per number of workers and a conclusion; return the exit code."""
    with entry(prog):
        sentence = COMMANDS["tune-workers"].sentence
        config = parse_train_config(argv, prog=prog, description=sentence, usual={"n_envs": _USUAL_N_ENVS})

        from ml_pipeline.runs.tasks import make_task

        env_fns = make_task(config).train_env_fns(config.run.n_envs)
        others = BackgroundLoad()
        if (warning := others.warning_before()) is not None:
            print(warning, flush=True)
        try:
            costs = measure_costs(env_fns)
            rates = measure_rates(env_fns, _mean(costs), others.measure)
        except VectorEnvError as error:
            print(f"{prog}: {error}", file=sys.stderr)
            return 1
        if (warning := others.warning_during()) is not None:
            print(warning)
        print(verdict(costs, rates))
    return 0


def measure_rates(
    env_fns: Sequence[EnvFactory], cost: StepCost, between: Callable[[], object] = lambda: None
) -> dict[Division, float]:
    """Environment steps per second by division of work: first the one "auto" chooses, then others as time allows.

    between: called after each measurement, while the environments are idle.
    """
    rates: dict[Division, float] = {}
    deadline = time.monotonic() + _RATES_S
    division, rate = measure_rate(env_fns, "auto")
    rates[division] = rate
    print(f"{_flag(division)}: {rate:,.0f} steps/s, which auto chooses", flush=True)
    between()
    start_s = _START_S
    for n_workers, step_s in counts_to_try(len(env_fns), usable_cores(), cost, wake_s=measure_wake()).items():
        if (Division(n_workers, steps_here=False) if n_workers else HERE) in rates:
            continue
        begin, turns_s = time.monotonic(), _TURNS * max(step_s, _TURN_S)
        if begin + n_workers * start_s + turns_s > deadline:
            print(f"--n-workers {n_workers}: not measured, for want of time; no more than {len(env_fns) / step_s:,.0f}")
            continue
        division, rate = measure_rate(env_fns, n_workers)
        rates[division] = rate
        print(f"{_flag(division)}: {rate:,.0f} steps/s", flush=True)
        if n_workers:
            start_s = max(start_s, (time.monotonic() - begin - turns_s) / n_workers)
        between()
    return rates


def counts_to_try(num_envs: int, cores: float, cost: StepCost, *, wake_s: float) -> dict[int, float]:
    """Numbers of workers to measure, and the time of a step of all environments that "auto" expects with each, in s.

    The most promising numbers come first, after 0 if stepping in this process is quickly measured. wake_s: the time to
    wake a worker.

    >>> list(counts_to_try(8, 2.0, StepCost(cpu_s=1e-3, wait_s=0.0), wake_s=6e-5))
    [0, 2, 4, 8, 1]
    >>> list(counts_to_try(64, 2.0, StepCost(cpu_s=3e-6, wait_s=0.0), wake_s=6e-5))
    [0, 2, 4, 8, 1, 64]
    >>> list(counts_to_try(8, 2.0, StepCost(cpu_s=0.0, wait_s=0.1), wake_s=6e-5))
    [8, 4, 2, 0, 1]
    """
    whole = max(1, int(cores))
    counts = {n for n in (0, 1, whole, 2 * whole, 4 * whole, num_envs) if n <= num_envs}
    divisions = {n: Division(n, steps_here=False) if n else HERE for n in sorted(counts)}
    expected_s = {n: expected_step_s(each, cost, num_envs, cores, wake_s=wake_s) for n, each in divisions.items()}
    first = {0} if expected_s[0] < _TURN_S else set()
    return {n: expected_s[n] for n in sorted(counts, key=lambda n: (n not in first, expected_s[n]))}


def measure_costs(env_fns: Sequence[EnvFactory], *, budget_s: float = _COSTS_S) -> dict[int, StepCost]:
    """The cost of a step of each environment, by its index; of as many as time allows, at least one.

    Environments that raise on random actions that their masks allow are left out.
    """
    costs = {}
    deadline = time.monotonic() + budget_s
    for index, env_fn in enumerate(env_fns):
        if index and time.monotonic() > deadline:
            break
        with closing(env_fn()) as env:
            cost = measure_step(env, budget_s=budget_s / len(env_fns))
        if cost is not None:
            costs[index] = cost
    return costs


def measure_rate(env_fns: Sequence[EnvFactory], n_workers: int | Literal["auto"]) -> tuple[Division, float]:
    """The division of work with n_workers, and the median of its environment steps per second over short turns."""
    with ParallelEnv(env_fns, num_workers=n_workers, copy=False) as envs:
        envs.action_space.seed(0)
        envs.single_action_space.seed(0)
        actions = [envs.action_space.sample() for _ in range(16)]
        observations, infos = envs.reset(seed=0)
        is_masked = reported_mask(None, observations, infos) is not None
        rates = []
        for _ in range(_TURNS):
            n_steps, stepping_s = 0, 0.0
            while stepping_s < _TURN_S:
                action = random_actions(envs, observations, infos) if is_masked else actions[n_steps % len(actions)]
                begin = time.perf_counter()
                observations, _, _, _, infos = envs.step(action)
                stepping_s += time.perf_counter() - begin
                n_steps += 1
            rates.append(n_steps * envs.num_envs / stepping_s)
        return Division(envs.num_workers, envs.steps_here), statistics.median(rates)


def verdict(costs: dict[int, StepCost], rates: dict[Division, float]) -> str:
    """The conclusion: where the time goes, and the flag to pass. Gains below 5 % do not justify more workers.

    >>> two, eight = Division(2, steps_here=False), Division(8, steps_here=False)
    >>> verdict({0: StepCost(1e-4, 0.0), 1: StepCost(4e-4, 0.0)}, {HERE: 1000.0, two: 1800.0})
    'environment 1 is 4x slower than the others; stepping computes all the time, 250 µs a step; --n-workers 2'
    >>> verdict({0: StepCost(1e-3, 3e-3)}, {HERE: 250.0, eight: 1500.0})
    'stepping waits 75 % of the time, 4.0 ms a step; --n-workers 8'
    """
    enough = 0.95 * max(rates.values())
    fast = [division for division, rate in rates.items() if rate >= enough]
    best = min(fast, key=lambda division: (division.n_workers, not division.steps_here))
    return "; ".join([*_slow_ones(costs), *_shares(costs), _flag(best)])


def _flag(division: Division) -> str:
    """The flag for a division of work; only "auto" lets the trainer's process step environments next to workers.

    >>> _flag(Division(2, steps_here=False)), _flag(Division(1, steps_here=True))
    ('--n-workers 2', '--n-workers auto (this process and 1 worker)')
    """
    n_workers = division.n_workers
    if not (n_workers and division.steps_here):
        return f"--n-workers {n_workers}"
    return f"--n-workers auto (this process and {counted(n_workers, 'worker')})"


def _slow_ones(costs: dict[int, StepCost]) -> list[str]:
    took_s = {index: cost.cpu_s + cost.wait_s for index, cost in costs.items()}
    slowest = max(took_s, key=lambda index: took_s[index], default=0)
    others_s = [one for index, one in took_s.items() if index != slowest]
    factor = took_s[slowest] / statistics.median(others_s) if others_s else 1.0
    return [f"environment {slowest} is {factor:.0f}x slower than the others"] if factor >= _SLOW else []


def _mean(costs: dict[int, StepCost]) -> StepCost:
    if not costs:
        return StepCost(cpu_s=1e-4, wait_s=0.0)  # any value will do: it only affects the order of measurements
    return StepCost(
        cpu_s=statistics.mean(cost.cpu_s for cost in costs.values()),
        wait_s=statistics.mean(cost.wait_s for cost in costs.values()),
    )


def _shares(costs: dict[int, StepCost]) -> list[str]:
    if not costs:
        return ["the environments raise on random actions, so their steps were not timed"]
    mean = _mean(costs)
    total_s = mean.cpu_s + mean.wait_s
    each = f"{total_s * 1e3:.1f} ms" if total_s >= 1e-3 else f"{total_s * 1e6:.0f} µs"
    share = f"waits {mean.wait_s / total_s:.0%}".replace("%", " %") + " of the time"
    return [f"stepping {share if mean.wait_s > _NOISE * total_s else 'computes all the time'}, {each} a step"]
