"""Trains with a group of ranks, one process and one core each, and times it for `scale_out`.

`trained` starts the processes of a group, which run this module. It times whole iterations after the first.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from benchmarks.slow_network import DEVICE, Machines
from ml_pipeline.runs.ranks.launcher import free_port

N_EPOCHS, MINIBATCH_SIZE = 10, 256  # the defaults of PPOConfig
_PORT = 29500  # in a namespace, where all are free
_SHORT_BYTES, _LONG_BYTES = 64, 2**20
_SHORT_EXCHANGES, _LONG_EXCHANGES = 41, 15


@dataclass(frozen=True, kw_only=True)
class Job:
    """The training of a group.

    step: "waits" and "busy" take step_s; "CartPole" is CartPole-v1. num_envs: of the whole group. ranks: number of
    processes; 0: one process without a group, on all cores. n_workers: of each rank.
    """

    step: Literal["waits", "busy", "CartPole"]
    step_s: float = 0.0
    num_envs: int
    n_steps: int
    ranks: int
    n_workers: int | Literal["auto"] = 0
    iterations: int = 3


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Median seconds per iteration. exchange_s: from the arrival of the last rank until it has the data."""

    iteration_s: float
    acting_s: float
    stepping_s: float
    learning_s: float
    exchange_s: float


def trained(job: Job, machines: Machines | None = None) -> Timing:
    """Run the group of a job and return its timing; with `machines`, each rank has its own namespace."""
    ranks = _run({"train": asdict(job)}, max(1, job.ranks), machines)
    exchanges_s = [min(of_ranks) for of_ranks in zip(*(rank["exchanges_s"] for rank in ranks), strict=True)]
    first = ranks[0]
    return Timing(**first["timing"], exchange_s=statistics.median(exchanges_s) if exchanges_s else 0.0)


def exchanged(ranks: int, machines: Machines | None = None) -> dict[str, float]:
    """Seconds for an exchange of a short payload among the ranks, and the additional seconds for a long one."""
    found = _run({"exchange": True}, ranks, machines)
    short_s, long_s = (
        statistics.median(map(min, zip(*(rank[key] for rank in found), strict=True))) for key in ("short_s", "long_s")
    )
    return {"short_s": short_s, "more_s": long_s - short_s, "more_bytes": _LONG_BYTES - _SHORT_BYTES}


def _run(what: dict[str, Any], size: int, machines: Machines | None) -> list[dict[str, Any]]:
    """Run a new group and return the output of each rank. Raises RuntimeError, and ends all ranks, if one fails."""
    port = _PORT if machines else free_port()
    with ExitStack() as stack:
        processes = []
        for rank in range(size):
            variables = {
                **os.environ,
                **{"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
                **{"MASTER_ADDR": machines.address(0) if machines else "127.0.0.1", "MASTER_PORT": str(port)},
                "GLOO_SOCKET_IFNAME": DEVICE if machines else "lo",
                "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns of addresses without a name, which namespaces have
            }
            command = [sys.executable, "-m", "benchmarks.scale_out_group", json.dumps(what)]
            inside = machines.inside(rank) if machines else []
            process = subprocess.Popen([*inside, *command], env=variables, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        printed = [process.communicate()[0] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(f"A rank of {what} failed; see above.")
    return [json.loads(text.splitlines()[-1]) for text in printed]


class TimedRanks:
    """A group that records the time of each exchange of rollouts."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.exchanges_s: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def gather_values(self, value: Any, what: str) -> list[Any]:
        began = time.perf_counter()
        try:
            return self._group.gather_values(value, what)
        finally:
            self.exchanges_s.append(time.perf_counter() - began)


def _train(job: Job) -> dict[str, Any]:
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
    from ml_pipeline.models.rl.core.vec_env import ParallelEnv
    from ml_pipeline.models.rl.distributed.rank_group import RankGroup
    from ml_pipeline.models.rl.ranks import OneRank, rows_of

    group = RankGroup.join(timeout_s=120.0) if job.ranks > 1 else OneRank()
    ranks = TimedRanks(group) if job.ranks else None
    rows = rows_of(group.rank, group.size, job.num_envs)
    config = PPOConfig(
        n_steps=job.n_steps,
        minibatch_size=MINIBATCH_SIZE,
        n_epochs=N_EPOCHS,
        normalize_update="rollout" if job.ranks else "step",
    )
    with closing(ParallelEnv([_env_fn(job)] * (rows.stop - rows.start), num_workers=job.n_workers, copy=False)) as envs:
        trainer = PPOTrainer(envs, config, total_timesteps=10**12, ranks=ranks)
        trainer.train_episode_vectorized()  # compiles, and fills caches
        if ranks is not None:
            ranks.exchanges_s.clear()
        took_s, spent = [], []
        for _ in range(job.iterations):
            began = time.perf_counter()
            spent.append(trainer.train_episode_vectorized().time_spent)
            took_s.append(time.perf_counter() - began)
    if job.ranks > 1:
        group.close()
    timing = {
        "iteration_s": statistics.median(took_s),
        "acting_s": statistics.median(each.acting_s for each in spent),
        "stepping_s": statistics.median(each.stepping_s + each.waiting_s for each in spent),
        "learning_s": statistics.median(each.learning_s for each in spent),
    }
    return {"timing": timing, "exchanges_s": ranks.exchanges_s if job.ranks > 1 else []}


def _env_fn(job: Job) -> Any:
    if job.step == "CartPole":
        import gymnasium

        return partial(gymnasium.make, "CartPole-v1")
    from ml_pipeline.models.rl.core.probe_envs import TimedEnv

    return partial(TimedEnv, **{"wait_s" if job.step == "waits" else "busy_s": job.step_s})


def _exchange() -> dict[str, list[float]]:
    from ml_pipeline.models.rl.distributed.rank_group import RankGroup

    took_s = []
    with RankGroup.join(timeout_s=60.0) as group:
        for n_bytes, times in ((_SHORT_BYTES, _SHORT_EXCHANGES), (_LONG_BYTES, _LONG_EXCHANGES)):
            payload, of_size = bytes(n_bytes), []
            for _ in range(times + 2):
                began = time.perf_counter()
                group.gather(payload, "a measurement")
                of_size.append(time.perf_counter() - began)
            took_s.append(of_size[2:])
    return {"short_s": took_s[0], "long_s": took_s[1]}


def main() -> None:
    what = json.loads(sys.argv[1])
    job = Job(**what["train"]) if "train" in what else None
    if (job is None or job.ranks) and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    print(json.dumps(_train(job) if job else _exchange()))


if __name__ == "__main__":
    main()
