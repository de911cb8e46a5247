"""How long it takes until workers can step: leased from a pool of warm ones, and started; interleaved, by medians.

    python benchmarks/env_pool.py                                   # 8 workers, 30 rounds, half a minute
    python benchmarks/env_pool.py --workers 4 --rounds 10

Each turn makes a `ParallelEnv` with one CartPole per worker, from the constructor until all environments are made, and
closes it again. Warm workers have been lent before, and all are idle when they are asked for. "started" is the default
start method, whose server runs since the first round, which does not count; "first start" includes that server, as
the first `ParallelEnv` of a process does. What a machine that does other work prints is worth nothing.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import gymnasium

from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.service.env_pool import EnvPool

_FIRST_STARTS = 5
_FIRST_START = """
import time, gymnasium
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
fns = [lambda: gymnasium.make("CartPole-v1")] * {n}
begin = time.perf_counter()
envs = ParallelEnv(fns, num_workers={n})
print(time.perf_counter() - begin)
envs.close()
"""


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def seconds_to_make(make: Callable[[], ParallelEnv]) -> float:
    """From the constructor's beginning to its end, when every worker has made its environments."""
    begin = time.perf_counter()
    envs = make()
    elapsed_s = time.perf_counter() - begin
    envs.close()
    return elapsed_s


def wait_until_idle(pool: EnvPool, n_workers: int) -> None:
    while pool.state().n_idle < n_workers:
        time.sleep(0.005)


def first_start_s(n_workers: int) -> float:
    """In a new process, whose imports do not count."""
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_START.format(n=n_workers)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8, help="how many workers, each with one environment")
    parser.add_argument("--rounds", type=int, default=30, help="how many turns each has")
    args = parser.parse_args()
    n, env_fns = args.workers, [cartpole] * args.workers
    leased, started = [], []
    with EnvPool(max_concurrent_envs=n) as pool:
        for turn in range(args.rounds + 1):
            times_s = seconds_to_make(lambda: pool.lease(env_fns, num_workers=n))
            wait_until_idle(pool, n)
            own_s = seconds_to_make(lambda: ParallelEnv(env_fns, num_workers=n))
            if turn:
                leased.append(times_s)
                started.append(own_s)
    first = [first_start_s(n) for _ in range(_FIRST_STARTS)]
    ratio = statistics.median(own / warm for own, warm in zip(started, leased, strict=True))
    print(f"{n} workers, one CartPole each, medians of {args.rounds} interleaved rounds")
    for name, times in (("leased", leased), ("started", started)):
        middle_s = statistics.median(times)
        print(f"{name:12} {middle_s * 1e3:7.1f} ms   ({min(times) * 1e3:.1f} to {max(times) * 1e3:.1f})")
    print(f"first start  {statistics.median(first) * 1e3:7.1f} ms   (median of {_FIRST_STARTS}, each in a new process)")
    print(f"started / leased: {ratio:.1f}")


if __name__ == "__main__":
    main()
