"""Command: check in under a minute that the parallel environments of the installed package work on this machine.

cd ml_pipeline && python test_parallel_env.py
python -m ml_pipeline.test_parallel_env
"""

import argparse
import multiprocessing
import os
import random
import signal
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: put the repository on the path instead of this folder
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv, TimedEnv
from ml_pipeline.models.rl.core.stepping.errors import EnvRaisedError, WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.global_random import find_global_random

Check = tuple[str, Callable[[], str | None]]
PROG = "test_parallel_env.py"
NUM_ENVS = 8


def main(argv: Sequence[str] = (), *, prog: str = PROG) -> int:
    """Run every check and print one line for each; return the exit code."""
    argparse.ArgumentParser(prog, description=COMMANDS["check"].sentence).parse_args(argv)
    with entry(prog), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="start_method='fork'")  # fork is among the methods to check
        return _run_checks()


def _run_checks() -> int:
    started = time.perf_counter()
    failed = [name for name, check in _checks() if not _passes(name, check)]
    print(f"{time.perf_counter() - started:.0f} s on {usable_cores():g} cores")
    if failed:
        print(f"❌ {len(failed)} failed: {'; '.join(failed)}")
        return 1
    print("✅ ALL TESTS PASSED!")
    print("🎉 All tests completed successfully!")
    return 0


def _checks() -> Iterator[Check]:
    methods = multiprocessing.get_all_start_methods()
    for method in methods:
        yield f"start method {method} equals serial", partial(_equals_serial, method)
    yield "in-process equals serial", partial(_equals_serial, None, num_workers=0)
    yield "environment i is seeded by seed + i", _is_seeded_by_index
    yield "autoreset keeps the final observation", _keeps_final_observations
    yield "states continue bit for bit", _states_continue
    yield "an environment that draws from a global generator is named", _global_random_is_named
    yield "a raising environment is named", _raising_is_named
    yield "a killed worker is named", _killed_is_named
    yield "a killed worker is replaced on request", _killed_is_replaced
    yield "nothing is left behind", _leaves_nothing
    yield "speed-up on a step of 1 ms", _speed_up
    yield "a short training run, whatever the workers", _trains


def _passes(name: str, check: Callable[[], str | None]) -> bool:
    started = time.perf_counter()
    try:
        remark = check()
    except Exception as error:  # show any error, and run the remaining checks
        traceback.print_exc()
        print(f"✗ {name}: {error}")
        return False
    print(f"✓ {name} ({remark or f'{time.perf_counter() - started:.1f} s'})", flush=True)
    return True


def _counting(num_envs: int = NUM_ENVS) -> list[Callable[[], gymnasium.Env]]:
    return [partial(CountingEnv, length=2 + i, spread=3) for i in range(num_envs)]


def _equals_serial(method: Any, num_workers: int = 3) -> None:
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        with (
            SerialEnv(_counting(), autoreset_mode=mode) as serial,
            ParallelEnv(_counting(), start_method=method, num_workers=num_workers, autoreset_mode=mode) as parallel,
        ):
            _expect_equal(parallel.reset(seed=1), serial.reset(seed=1))
            for _ in range(25):
                actions = serial.action_space.sample()
                _expect_equal(parallel.step(actions), serial.step(actions))


def _is_seeded_by_index() -> None:
    expected = [CountingEnv(spread=90).reset(seed=40 + i)[0].copy() for i in range(4)]
    with ParallelEnv([lambda: CountingEnv(spread=90)] * 4, num_workers=2) as envs:
        _expect_equal(envs.reset(seed=40)[0], np.array(expected))
        _expect_equal(envs.reset(seed=[40, 41, 42, 43])[0], np.array(expected))


def _keeps_final_observations() -> None:
    with ParallelEnv([lambda: CountingEnv(length=2)] * 4, num_workers=2) as envs:
        envs.reset(seed=0)
        envs.step([0] * 4)
        observations, _, terminated, _, infos = envs.step([0] * 4)
        _expect(bool(terminated.all()), "every episode ends in its second step")
        _expect_equal([tuple(final[:2]) for final in infos["final_obs"]], [(1, 2)] * 4)
        _expect_equal(observations[:, :2].tolist(), [[2, 0]] * 4)


def _states_continue() -> None:
    with ParallelEnv(_counting(4), num_workers=2) as envs:
        envs.reset(seed=0)
        states = envs.get_states()
        first = [envs.step([1, 2, 3, 0]) for _ in range(9)]
        envs.set_states(states)
        _expect_equal([envs.step([1, 2, 3, 0]) for _ in range(9)], first)


def _global_random_is_named() -> None:
    class DrawingEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            random.random()
            return super().step(action)

    _expect_equal(find_global_random(CountingEnv), None)
    _expect("global random in step 1" in str(find_global_random(DrawingEnv)), "the generator and the step are named")


def _raising_is_named() -> None:
    with ParallelEnv([lambda: FaultyEnv("raise", armed=False)] * 4, num_workers=2) as envs:
        envs.set_attr("armed", [False, False, False, True])
        envs.reset(seed=7)
        try:
            envs.step([0, 0, 0, 2])
        except EnvRaisedError as error:
            _expect_equal((error.index, error.seed, error.step, int(error.action)), (3, 10, 1, 2))
            _expect("no such step: 1" in str(error), "its own traceback is in the message")
        else:
            raise AssertionError("nothing was raised")


def _killed_is_named() -> str:
    envs = ParallelEnv([CountingEnv] * 4, num_workers=2)
    envs.reset(seed=0)
    _kill_a_worker()
    started = time.perf_counter()
    try:
        envs.step([0] * 4)
    except WorkerDiedError:
        _expect(envs.closed, "it is closed")
        return f"after {time.perf_counter() - started:.2f} s"
    raise AssertionError("nothing was raised")


def _killed_is_replaced() -> str:
    with ParallelEnv([CountingEnv] * 4, num_workers=2, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        _kill_a_worker()
        truncated = envs.step([0] * 4)[3]
        _expect_equal((int(truncated.sum()), envs.num_restarts), (2, 1))
        _expect_equal(envs.step([0] * 4)[1].tolist(), np.where(truncated, 1.0, 2.0).tolist())
        return "the run continued"


def _kill_a_worker() -> None:
    pid = multiprocessing.active_children()[0].pid
    assert pid is not None
    os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _leaves_nothing() -> None:
    _expect_equal(multiprocessing.active_children(), [])
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.exists() else set()
    with ParallelEnv([CountingEnv] * 4, num_workers=2) as envs:
        envs.reset()
        named = set(shared.iterdir()) - before if shared.exists() else set()
        _expect(not any("pym" in path.name for path in named), f"shared memory has no name, but there is {named}")
    _expect_equal(multiprocessing.active_children(), [])


def _speed_up() -> str:
    env_fns = [lambda: TimedEnv(busy_s=1e-3)] * NUM_ENVS
    with SerialEnv(env_fns) as serial, ParallelEnv(env_fns) as parallel:
        rates: dict[str, list[float]] = {"serial": [], "parallel": []}
        for _ in range(3):  # alternate, so that a busy machine slows both
            for name, envs in (("serial", serial), ("parallel", parallel)):
                rates[name].append(_steps_per_second(envs, n_steps=40))
        slow, fast = statistics.median(rates["serial"]), statistics.median(rates["parallel"])
        return f"{fast / slow:.2f}x: {fast:.0f} steps/s by {counted(parallel.num_workers, 'worker')}, {slow:.0f} serial"


def _steps_per_second(envs: Any, n_steps: int) -> float:
    envs.reset(seed=0)
    actions = [0] * envs.num_envs
    started = time.perf_counter()
    for _ in range(n_steps):
        envs.step(actions)
    return n_steps * envs.num_envs / (time.perf_counter() - started)


def _trains() -> str:
    weights = [_train_briefly(num_workers) for num_workers in (0, 1, 2)]
    _expect(bool(np.isfinite(weights[0]).all()), "weights are finite")
    _expect_equal(weights[1], weights[0])
    _expect_equal(weights[2], weights[0])
    return f"{weights[0].size:,} weights, the same bits"


def _train_briefly(num_workers: int) -> np.ndarray:
    import torch

    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

    config = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=2, hidden_sizes=(16, 16))
    with ParallelEnv([lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS, num_workers=num_workers) as envs:
        trainer = PPOTrainer(envs, config, seed=1)
        for _ in range(4):
            statistics = trainer.train_episode_vectorized()
        _expect_equal((statistics.n_envs, statistics.global_step), (NUM_ENVS, 4 * 32 * NUM_ENVS))
        _expect(statistics.n_completed_episodes > 0, "episodes were completed")
        return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.network.parameters()]).numpy()


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(f"expected that {what}")


def _expect_equal(received: Any, expected: Any) -> None:
    """Equal values, arrays bit for bit, in structures of tuples, lists and dicts."""
    np.testing.assert_equal(_plain(received), _plain(expected))


def _plain(value: Any) -> Any:
    """The value with object arrays converted to lists."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)) or (isinstance(value, np.ndarray) and value.dtype == object):
        return [_plain(part) for part in value]
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
