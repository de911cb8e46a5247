"""Compare vectorizers: speed, CPU, memory, GPU and time to learn; interleaved, by medians.

    python -m benchmarks.vectorizer_choice --write-docs     # all tables in about six minutes on 2 cores, and the page
    python -m benchmarks.vectorizer_choice --short          # one minute, only printed
    python -m benchmarks.vectorizer_choice --from-json      # write the page again from the stored figures

Needs Stable-Baselines3 (the extra sb3). All vectorizers of a row are open at once and take turns within each round, so
a change in the speed of the machine affects all of them. Run nothing else on the machine meanwhile.
"""

import argparse
import hashlib
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import psutil
from gymnasium.vector import AutoresetMode, VectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from benchmarks.vectorizer_page import FIGURES, printed, write_page
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.algorithms.callbacks import StopAtReturn
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.probe_envs import TimedEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

EnvFactory = Callable[[], gymnasium.Env]
SIZES = (1, 4, 8, 16)
_LEARNING_ENVS = 8
_MOST_STEPS = 200_000
"""Steps after which a training counts as not having reached its return."""


class SlowCartPole(gymnasium.Wrapper):
    """CartPole with 0.3 ms of computing per step, like a small simulator in Python."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._work = TimedEnv(busy_s=3e-4)

    def step(self, action: Any) -> Any:
        self._work.step(action)
        return self.env.step(action)


class FromStableBaselines3(VectorEnv):
    """A `VecEnv` of Stable-Baselines3 as a Gymnasium vector environment, for training with the same PPO."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, envs: VecEnv) -> None:
        self._sb3 = envs
        self.num_envs = envs.num_envs
        self.single_observation_space, self.single_action_space = envs.observation_space, envs.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._sb3.seed(seed)
        return self._sb3.reset(), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observations, rewards, dones, infos = self._sb3.step(actions)
        truncated = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        final = np.full(self.num_envs, None, dtype=object)
        for index in np.flatnonzero(dones):
            final[index] = infos[index]["terminal_observation"]
        return observations, rewards.astype(np.float64), dones & ~truncated, truncated, {"final_obs": final}

    def close_extras(self, **kwargs: Any) -> None:
        self._sb3.close()


class ThreadedEnvs(VectorEnv):
    """One thread per environment in this process: they wait at the same time, but compute one after another.

    Observations must be a Box.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, env_fns: Sequence[EnvFactory]) -> None:
        self._envs = [make() for make in env_fns]
        self._threads = ThreadPoolExecutor(len(self._envs))
        self.num_envs = len(self._envs)
        self.single_observation_space = self._envs[0].observation_space
        self.single_action_space = self._envs[0].action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        started = self._threads.map(lambda env, own: env.reset(seed=own)[0], self._envs, seeds)
        return np.stack(list(started)), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        steps = self._threads.map(self._stepped, self._envs, actions)
        observations, rewards, terminated, truncated, last = zip(*steps, strict=True)
        final = np.full(self.num_envs, None, dtype=object)
        for index, observation in enumerate(last):
            final[index] = observation
        numbers = np.array(rewards, dtype=np.float64)
        return np.stack(observations), numbers, np.array(terminated), np.array(truncated), {"final_obs": final}

    @staticmethod
    def _stepped(env: gymnasium.Env, action: Any) -> tuple[Any, float, bool, bool, Any]:
        """A step with autoreset; the last item is the final observation of an episode that ended."""
        observation, reward, terminated, truncated, _ = env.step(action)
        if not (terminated or truncated):
            return observation, float(reward), terminated, truncated, None
        return env.reset()[0], float(reward), terminated, truncated, observation

    def close_extras(self, **kwargs: Any) -> None:
        self._threads.shutdown()
        for env in self._envs:
            env.close()


@dataclass
class Kind:
    """An environment to compare vectorizers with. batched: makes all environments in one, if possible."""

    env_fns: Callable[[int], list[EnvFactory]]
    waits: bool = False
    batched: Callable[[int], VectorEnv] | None = None


@dataclass
class Contestant:
    """An open vectorizer and its worker processes."""

    envs: VectorEnv
    workers: list[psutil.Process] = field(default_factory=list)
    note: str = ""


def kinds() -> dict[str, Kind]:
    """The environments by name."""
    task = TradingTask(TradingConfig(action_mode="discrete"))
    return {
        "trading": Kind(task.train_env_fns, batched=task.batched_train_env),
        "busy 1 ms": Kind(lambda n: [partial(TimedEnv, busy_s=1e-3)] * n),
        "waits 2 ms": Kind(lambda n: [partial(TimedEnv, wait_s=2e-3)] * n, waits=True),
    }


def vectorizers(kind: Kind, n: int) -> dict[str, Callable[[], VectorEnv]]:
    """Vectorizers for n environments. "workers" has one per core, or one per environment if steps wait."""
    workers = n if kind.waits else min(n, max(1, int(usable_cores())))
    env_fns = kind.env_fns(n)
    found: dict[str, Callable[[], VectorEnv]] = {
        "in-process": partial(ParallelEnv, env_fns, num_workers=0),
        "workers": partial(ParallelEnv, env_fns, num_workers=workers),
        "auto": partial(ParallelEnv, env_fns),
        "threads": partial(ThreadedEnvs, env_fns),
        "SB3 Dummy": lambda: FromStableBaselines3(DummyVecEnv(env_fns)),
        "SB3 Subproc": lambda: FromStableBaselines3(SubprocVecEnv(env_fns)),
    }
    if kind.batched is not None:
        found["batched"] = partial(kind.batched, n)
    return found


def opened(make: Callable[[], VectorEnv], stack: ExitStack) -> Contestant:
    """Make and reset a vectorizer; closing the stack closes it."""
    this = psutil.Process()
    before = {child.pid for child in this.children(recursive=True)}
    envs = stack.enter_context(closing(make()))
    envs.reset(seed=0)
    workers = [child for child in this.children(recursive=True) if child.pid not in before]
    n_workers = getattr(envs, "num_workers", 0)
    return Contestant(envs, workers, counted(n_workers, "worker") if n_workers else "")


def throughput(settings: Any, gpu: Callable[[], float | None]) -> Iterator[dict[str, Any]]:
    """Steps per second of each vectorizer at each size, with CPU, memory and GPU usage."""
    for name, kind in kinds().items():
        for n in settings.sizes:
            with ExitStack() as stack:
                contestants = {each: opened(make, stack) for each, make in vectorizers(kind, n).items()}
                for each, turns in _turns(contestants, n, settings, gpu).items():
                    yield {"kind": name, "n_envs": n, "vectorizer": each, "note": contestants[each].note, **turns}


def _turns(
    contestants: dict[str, Contestant], n: int, settings: Any, gpu: Callable[[], float | None]
) -> dict[str, dict[str, float | None]]:
    figures: dict[str, list[dict[str, float | None]]] = {name: [] for name in contestants}
    actions = np.random.default_rng(0).integers(0, 2, (32, n))
    for turn in range(settings.rounds + 1):
        for name, contestant in contestants.items():
            processes = [psutil.Process(), *contestant.workers]
            used_s, begin, n_steps = -_cpu_s(processes), time.perf_counter(), 0
            while (elapsed_s := time.perf_counter() - begin) < settings.turn_s:
                contestant.envs.step(actions[n_steps % len(actions)])
                n_steps += 1
            used_s += _cpu_s(processes)
            if turn:  # the first one warms up
                figures[name].append(
                    {
                        "steps_per_second": n_steps * n / elapsed_s,
                        "cpu_percent": 100.0 * used_s / elapsed_s,
                        "memory_mb": sum(process.memory_info().rss for process in processes) / 1e6,
                        "gpu_percent": gpu(),
                    }
                )
    return {name: _medians(turns) for name, turns in figures.items()}


def _medians(turns: list[dict[str, float | None]]) -> dict[str, float | None]:
    known = {key: [turn[key] for turn in turns if turn[key] is not None] for key in turns[0]}
    return {key: statistics.median(values) if values else None for key, values in known.items()}  # type: ignore[type-var]


def _cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def learning(settings: Any) -> Iterator[dict[str, Any]]:
    """Seconds that PPO with the same seed needs with each vectorizer to reach a return."""
    task = TradingTask(TradingConfig(action_mode="discrete"))
    jobs = {
        "trading": (Kind(task.train_env_fns, batched=task.batched_train_env), settings.trading_return),
        "CartPole, 0.3 ms a step": (Kind(lambda n: [SlowCartPole] * n), settings.cartpole_return),
    }
    ppo = PPOConfig(n_steps=256, n_epochs=4, learning_rate=1e-3)
    for name, (kind, target) in jobs.items():
        makers = vectorizers(kind, _LEARNING_ENVS)
        runs: dict[str, list[dict[str, Any]]] = {each: [] for each in makers}
        for _ in range(settings.learning_rounds):
            for each, make in makers.items():
                runs[each].append(_learned(make, ppo, target))
        for each, results in runs.items():
            seconds = statistics.median(result["seconds"] for result in results)
            yield {"task": name, "target": target, "vectorizer": each, **results[0], "seconds": seconds}


def _learned(make: Callable[[], VectorEnv], ppo: PPOConfig, target: float) -> dict[str, Any]:
    with closing(make()) as envs:
        PPOTrainer(envs, ppo, total_timesteps=1).train(progress=False)  # compiles, which is not timed
        trainer = PPOTrainer(envs, ppo, total_timesteps=_MOST_STEPS)
        began = time.perf_counter()
        policy = trainer.train(callbacks=[StopAtReturn(target)], progress=False)
        seconds = time.perf_counter() - began
    weights = b"".join(weight.detach().numpy().tobytes() for weight in policy.network.parameters())
    return {
        "seconds": seconds,
        "steps": trainer.global_step,
        "reached": not trainer.finished,
        "weights": hashlib.sha256(weights).hexdigest()[:12],
    }


def gpu_load() -> Callable[[], float | None]:
    """A function that returns the utilization of the first GPU in percent, or None without a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # any error of the library if there is no driver
        return lambda: None
    return lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)


def machine() -> dict[str, Any]:
    """Description of the machine and the versions."""
    return {
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "stable_baselines3": version("stable_baselines3"),
        "gymnasium": version("gymnasium"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--short", action="store_true", help="sizes 1 and 4, short turns, easy returns: a minute")
    parser.add_argument("--write-docs", action="store_true", help="write the page, its picture and its figures")
    parser.add_argument("--from-json", action="store_true", help="write the page again from the stored figures")
    parser.add_argument("--rounds", type=int, help="turns that each vectorizer takes (default: 5, short: 2)")
    parser.add_argument("--turn-s", type=float, help="how long each turn takes (default: 0.25, short: 0.1)")
    settings = parser.parse_args()
    if settings.from_json:
        write_page(json.loads(FIGURES.read_text()))
        return
    settings.rounds = settings.rounds or (2 if settings.short else 5)
    settings.turn_s = settings.turn_s or (0.1 if settings.short else 0.25)
    settings.sizes = (1, 4) if settings.short else SIZES
    settings.learning_rounds = 1 if settings.short else 2
    settings.trading_return, settings.cartpole_return = (-0.05, 40.0) if settings.short else (0.2, 150.0)
    began = time.perf_counter()
    figures = {
        "machine": machine(),
        "throughput": list(throughput(settings, gpu_load())),
        "learning": list(learning(settings)),
    }
    print(printed(figures))
    print(f"Measured in {time.perf_counter() - began:.0f} s.")
    if settings.write_docs:
        write_page(figures)


if __name__ == "__main__":
    main()
