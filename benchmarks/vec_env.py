"""Environment steps per second, beside other vectorizers: interleaved, in one run, by medians.

    pip install -e '.[bench]' && python benchmarks/vec_env.py          # all tables, about half an hour
    python benchmarks/vec_env.py --short                               # 8 environments, some rows, one minute
    python benchmarks/vec_env.py --only growth --plot growth.png

All contestants of a row are open at once and take turns within each round, so a change in the speed of the machine
affects all of them. The ratio of a row is the median of the ratios of its rounds. Run nothing else on the machine
meanwhile.
"""

import argparse
import importlib.util
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.core.probe_envs import TimedEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.runtime.cores import usable_cores

EnvFactory = Callable[[], gymnasium.Env]
Step = Callable[[Any], Any]
TABLES = ("speed", "auto", "growth", "overlap", "start", "memory")

ROWS: dict[str, EnvFactory] = {
    "CartPole-v1": partial(gymnasium.make, "CartPole-v1"),
    "empty step": TimedEnv,
    "busy 100 µs": partial(TimedEnv, busy_s=1e-4),
    "busy 1 ms": partial(TimedEnv, busy_s=1e-3),
    "lognormal busy, mean 300 µs, sigma 1": partial(TimedEnv, busy_s=3e-4, sigma=1.0),
    "waits 2 ms": partial(TimedEnv, wait_s=2e-3),
    "84x84x4 frames": partial(TimedEnv, shape=(84, 84, 4), dtype=np.uint8),
}
SHORT_ROWS = ("CartPole-v1", "busy 100 µs", "waits 2 ms")


@dataclass
class Contestant:
    """An open vectorizer. `step` takes int64 actions (N,)."""

    step: Step
    close: Callable[[], Any]
    note: str = ""


def ours(env_fns: list[EnvFactory], num_workers: Any = "auto", **options: Any) -> Contestant:
    envs = ParallelEnv(env_fns, num_workers=num_workers, **options)
    envs.reset(seed=0)
    return Contestant(envs.step, envs.close, counted(envs.num_workers, "worker") if envs.num_workers else "in-process")


def gymnasium_sync(env_fns: list[EnvFactory]) -> Contestant:
    envs = gymnasium.vector.SyncVectorEnv(env_fns)
    envs.reset(seed=0)
    return Contestant(envs.step, envs.close)


def gymnasium_async(env_fns: list[EnvFactory]) -> Contestant:
    envs = gymnasium.vector.AsyncVectorEnv(env_fns, context="forkserver")
    envs.reset(seed=0)
    return Contestant(envs.step, envs.close)


def stable_baselines3(env_fns: list[EnvFactory]) -> Contestant:
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = SubprocVecEnv(env_fns, start_method="forkserver")
    envs.reset()
    return Contestant(envs.step, envs.close)


def tianshou(env_fns: list[EnvFactory]) -> Contestant:
    from tianshou.env import ShmemVectorEnv

    envs = ShmemVectorEnv(env_fns)
    envs.reset()

    def step(actions: np.ndarray) -> None:
        _, _, terminated, truncated, _ = envs.step(actions)
        done = np.flatnonzero(terminated | truncated)
        if len(done):
            envs.reset(done)

    return Contestant(step, envs.close)


def torchrl(env_fns: list[EnvFactory]) -> Contestant:
    import torch
    from torchrl.envs import GymWrapper
    from torchrl.envs import ParallelEnv as TorchRLParallelEnv

    def make(env_fn: EnvFactory) -> Any:
        return GymWrapper(env_fn(), categorical_action_encoding=True)

    envs = TorchRLParallelEnv(len(env_fns), [partial(make, env_fn) for env_fn in env_fns], mp_start_method="fork")
    state = envs.reset()

    def step(actions: np.ndarray) -> None:
        nonlocal state
        state["action"] = torch.as_tensor(actions)
        _, state = envs.step_and_maybe_reset(state)

    return Contestant(step, envs.close)


PEERS: dict[str, tuple[str, Callable[[list[EnvFactory]], Contestant]]] = {
    "SyncVectorEnv": ("gymnasium", gymnasium_sync),
    "AsyncVectorEnv": ("gymnasium", gymnasium_async),
    "SubprocVecEnv": ("stable_baselines3", stable_baselines3),
    "Tianshou ShmemVectorEnv": ("tianshou", tianshou),
    "TorchRL ParallelEnv": ("torchrl", torchrl),
}


def installed_peers(names: Iterable[str] = PEERS) -> dict[str, Callable[[list[EnvFactory]], Contestant]]:
    """The peers that are installed; prints which are not."""
    found = {}
    for name in names:
        package, make = PEERS[name]
        if importlib.util.find_spec(package) is None:
            print(f"{name} is left out: {package} is not installed.\n")
        else:
            found[name] = make
    return found


Rates = dict[str, list[float]]


def take_turns(contestants: dict[str, Contestant], num_envs: int, *, rounds: int, turn_s: float) -> Rates:
    """Environment steps per second of each contestant in each round."""
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 2, (32, num_envs))
    rates: Rates = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, contestant in contestants.items():
            n_steps, begin = 0, time.perf_counter()
            while (elapsed_s := time.perf_counter() - begin) < turn_s:
                contestant.step(actions[n_steps % len(actions)])
                n_steps += 1
            if turn:  # the first one warms up
                rates[name].append(n_steps * num_envs / elapsed_s)
    return rates


def measure(
    env_fn: EnvFactory, num_envs: int, makers: dict[str, Callable[[list[EnvFactory]], Contestant]], args: Any
) -> tuple[Rates, dict[str, str]]:
    """Rates and notes of the contestants with `num_envs` environments."""
    contestants: dict[str, Contestant] = {}
    try:
        for name, make in makers.items():
            contestants[name] = make([env_fn] * num_envs)
        rates = take_turns(contestants, num_envs, rounds=args.rounds, turn_s=args.turn_s)
        return rates, {name: contestant.note for name, contestant in contestants.items()}
    finally:
        for contestant in contestants.values():
            contestant.close()


def ratio(above: list[float], below: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(above, below, strict=True)):.2f}"


def print_row(cells: Iterable[Any]) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def print_head(*cells: Any) -> None:
    print_row(cells)
    print_row(["---"] * len(cells))


def speed(args: Any) -> None:
    """ParallelEnv and its peers; each rate is followed by ours over it."""
    peers = installed_peers()
    measured: dict[tuple[str, int], Rates] = {}
    for num_envs in args.num_envs:
        print(f"{num_envs} environments, {usable_cores():g} cores: steps per second (ours / theirs)\n")
        print_head("environment", "ParallelEnv", *peers)
        for row in args.rows:
            rates, notes = measure(ROWS[row], num_envs, {"ours": ours, **peers}, args)
            cells = [f"{statistics.median(rates[name]):,.0f} ({ratio(rates['ours'], rates[name])})" for name in peers]
            print_row([row, f"{statistics.median(rates['ours']):,.0f}, {notes['ours']}", *cells])
            measured[row, num_envs] = rates
        print()
    if args.plot and args.only == ["speed"]:
        _plot_speed(measured, args.plot)


def _plot_speed(measured: dict[tuple[str, int], Rates], path: str) -> None:
    """A panel per row: the limit is a loop on one core times the cores, or times the environments if they wait."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.6), layout="constrained")
    panels = figure.subplots(1, len(measured), squeeze=False)[0]
    for axes, ((row, num_envs), rates) in zip(panels, measured.items(), strict=True):
        medians = {"ParallelEnv" if name == "ours" else name: statistics.median(each) for name, each in rates.items()}
        limit = medians["SyncVectorEnv"] * (num_envs if row.startswith("waits") else usable_cores())
        names = list(reversed(medians))
        bars = axes.barh(names, [medians[name] for name in names], color="#8a8f98")
        bars[-1].set_color("#1565c0")
        axes.axvline(limit, color="black", linewidth=1, linestyle="--")
        labels = [f"{medians[name]:,.0f} ({medians[name] / limit:.0%})" for name in names]
        axes.bar_label(bars, labels, padding=4, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
        axes.set_xlim(0, 1.5 * max(limit, *medians.values()))
        axes.set_title(f"{row}, {num_envs} environments", fontsize=9)
        axes.set_xlabel("steps per second; dashed: limit", fontsize=9)
        axes.set_xticks([])
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    print(f"Plot: {path}\n")


def auto(args: Any) -> None:
    """num_workers="auto" over the best fixed choice of each row."""
    for num_envs in args.num_envs:
        counts = sorted({0, 1, 2, 4, num_envs})
        print(f"{num_envs} environments: num_workers='auto' and fixed counts, steps per second\n")
        print_head("environment", "auto", *counts, "auto / best")
        for row in args.rows:
            makers = {"auto": ours} | {str(n): partial(ours, num_workers=n) for n in counts}
            rates, notes = measure(ROWS[row], num_envs, makers, args)
            medians = {name: statistics.median(values) for name, values in rates.items()}
            best = max((str(n) for n in counts), key=lambda name: medians[name])
            cells = [f"{medians[str(n)]:,.0f}" for n in counts]
            print_row([row, f"{medians['auto']:,.0f}, {notes['auto']}", *cells, ratio(rates["auto"], rates[best])])
        print()


def whole_batch(env_fns: list[EnvFactory], policy_s: float) -> Contestant:
    envs = ParallelEnv(env_fns)
    envs.reset(seed=0)

    def step(actions: np.ndarray) -> None:
        envs.step(actions)
        compute(policy_s * envs.num_envs)

    return Contestant(step, envs.close)


def two_halves(env_fns: list[EnvFactory], policy_s: float, num_workers: Any) -> Contestant:
    """One half of the environments steps while the policy computes actions for the other."""
    envs = ParallelEnv(env_fns, num_groups=2, num_workers=num_workers)
    envs.reset(seed=0)
    middle = (envs.num_envs + 1) // 2
    halves = (range(middle), range(middle, envs.num_envs))
    envs.send(np.zeros(middle, np.int64), halves[0])
    envs.send(np.zeros(envs.num_envs - middle, np.int64), halves[1])

    def step(actions: np.ndarray) -> None:
        for half in halves:
            envs.recv(env_ids=half)
            compute(policy_s * len(half))
            envs.send(actions[half.start : half.stop], half)

    def close() -> None:
        for half in halves:
            envs.recv(env_ids=half)
        envs.close()

    return Contestant(step, close)


def compute(time_s: float) -> None:
    end = time.perf_counter() + time_s
    while time.perf_counter() < end:
        pass


def overlap(args: Any) -> None:
    """Gain of stepping one half while a policy of a given cost computes actions for the other."""
    print("8 environments and a policy: steps per second, all at once, and in halves that overlap\n")
    print_head(
        "environment", "policy, per environment", "at once", "halves, 2 workers", "halves, 8 workers", "best gain"
    )
    for row in ("busy 100 µs", "busy 1 ms", "waits 2 ms"):
        for policy_s in (2e-5, 2e-4):
            makers: dict[str, Callable[[list[EnvFactory]], Contestant]] = {
                "at once": partial(whole_batch, policy_s=policy_s),
                "2": partial(two_halves, policy_s=policy_s, num_workers=2),
                "8": partial(two_halves, policy_s=policy_s, num_workers=8),
            }
            rates, _ = measure(ROWS[row], 8, makers, args)
            gain = max(ratio(rates[halves], rates["at once"]) for halves in ("2", "8"))
            cells = [f"{statistics.median(rates[name]):,.0f}" for name in makers]
            print_row([row, f"{policy_s * 1e6:.0f} µs", *cells, gain])
    print()


def growth(args: Any) -> None:
    """Steps per second per environment as environments are added."""
    sizes = [8, 64] if args.short else [8, 64, 256, 1024]
    print("Steps per second per environment, by the number of environments\n")
    print_head("environment", *sizes)
    curves = {}
    for row in args.rows:
        curves[row] = []
        for num_envs in sizes:
            rates, _ = measure(ROWS[row], num_envs, {"ours": ours}, args)
            curves[row].append(statistics.median(rates["ours"]) / num_envs)
        print_row([row, *(f"{rate:,.1f}" for rate in curves[row])])
    print()
    if args.plot:
        _plot(sizes, curves, args.plot)


def _plot(sizes: list[int], curves: dict[str, list[float]], path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    for row, rates in curves.items():
        axes.loglog(sizes, rates, marker="o", label=row)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="environments", ylabel="steps per second per environment", title=f"{usable_cores():g} cores")
    figure.legend(loc="outside right upper")  # where it covers no curve
    figure.savefig(path)
    print(f"Plot: {path}\n")


def start(args: Any) -> None:
    """Time from the constructor to the first observations, one worker per environment."""
    print("Start-up in s, one worker per environment; the first by forkserver also starts the server\n")
    print_head("start method", *args.num_envs)
    for method in multiprocessing.get_all_start_methods():
        cells = []
        for num_envs in args.num_envs:
            begin = time.perf_counter()
            contestant = ours([ROWS["empty step"]] * num_envs, num_envs, start_method=method)
            cells.append(f"{time.perf_counter() - begin:.2f}")
            contestant.close()
        print_row([method, *cells])
    print()


def memory(args: Any) -> None:
    """Memory that a worker does not share."""
    import psutil

    print("Memory of a worker's own (USS) in MB, after a step\n")
    print_head("start method", "largest of two workers")
    for method in multiprocessing.get_all_start_methods():
        before = {child.pid for child in multiprocessing.active_children()}
        contestant = ours([ROWS["empty step"]] * 8, 2, start_method=method)
        contestant.step(np.zeros(8, np.int64))
        pids = [child.pid for child in multiprocessing.active_children() if child.pid not in before]
        print_row([method, f"{max(psutil.Process(pid).memory_full_info().uss for pid in pids) / 1e6:.1f}"])
        contestant.close()
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=TABLES, action="append", help="one table; may be given more than once")
    parser.add_argument("--short", action="store_true", help="8 environments, three rows, short turns: a minute")
    parser.add_argument("--rounds", type=int, help="turns that each contestant takes (default: 7, short: 3)")
    parser.add_argument("--turn-s", type=float, help="how long each turn takes (default: 1, short: 0.15)")
    parser.add_argument("--num-envs", type=int, action="append", help="default: 8 and 64 (short: 8)")
    parser.add_argument("--row", choices=ROWS, action="append", dest="rows", help="may be given more than once")
    parser.add_argument("--plot", help="where to draw growth, or speed if it is the only table (needs matplotlib)")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="start_method='fork'")  # it is one of the things to be measured
    args.rounds = args.rounds or (3 if args.short else 7)
    args.turn_s = args.turn_s or (0.15 if args.short else 1.0)
    args.num_envs = args.num_envs or ([8] if args.short else [8, 64])
    args.rows = args.rows or list(SHORT_ROWS if args.short else ROWS)
    for name in args.only or TABLES:
        globals()[name](args)


if __name__ == "__main__":
    main()
