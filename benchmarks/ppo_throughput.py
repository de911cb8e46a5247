"""Training steps per second of this package, Stable-Baselines3 and plain PyTorch with the same settings, interleaved.

    pip install -e '.[bench]' && python benchmarks/ppo_throughput.py [--only cheetah]

Each measurement is a separate process on an otherwise idle machine: it trains for a warm-up, then for a fixed number of
rollouts and updates, and reports environment transitions over wall time. CartPole warms up until its episodes are long,
because the many resets of the first iterations are a small part of a training. A whole program is timed from start to
end, imports included; ours then also evaluates and writes its report. The contestants take turns within each round, so
a change in the speed of the machine affects all of them. The ratio of a round is to the faster contestant of
Stable-Baselines3 in that round and, if the job has a limit, to the limit. Figures are medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict

from throughput_contestants import CONTESTANTS
from throughput_jobs import JOBS, Job

COUNTED = 8  # iterations


def measure(contestant: str, job: Job) -> float:
    """Transitions per second after the warm-up; runs in a separate process."""
    train = CONTESTANTS[contestant](job)
    train(job.warm_up)
    started = time.perf_counter()
    train(COUNTED)
    return COUNTED * job.num_envs * job.n_steps / (time.perf_counter() - started)


COMPARISONS = (
    ("ours", "Stable-Baselines3", "x"),
    ("ours", "TorchRL", "x TorchRL"),
    ("ours", "rlox", "x rlox"),
    ("ours", "limit", "of the limit"),
    ("ours in bfloat16", "Stable-Baselines3", "x"),
    ("ours in bfloat16", "bfloat16 limit", "of the limit"),
)
"""(contestant, prefix of the names it is compared with, unit of the ratio); the fastest of those counts."""


def measure_apart(contestant: str, job: Job) -> float:
    request = json.dumps([contestant, asdict(job)])
    if job.total_timesteps is not None:
        return job.total_timesteps / program_s(contestant, job, request)
    command = [sys.executable, __file__, "--measure", request]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def program_s(contestant: str, job: Job, request: str) -> float:
    """Seconds for a whole training as a program: our command, or a script for the others.

    Python caches bytecode as usual, so a first round may take longer.
    """
    command = [sys.executable, __file__, "--train", request]
    if contestant == "ours":
        sizes = {"n-envs": job.num_envs, "total-timesteps": job.total_timesteps, "n-steps": job.n_steps}
        learning = {"minibatch-size": job.minibatch_size, "n-epochs": job.n_epochs}
        flags = [f"--{name}={value}" for name, value in {"env-id": job.environment, **sizes, **learning}.items()]
        command = [sys.executable, "-m", "ml_pipeline.train_ppo", *flags]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=True)
        return time.perf_counter() - began


def train_whole(contestant: str, job: Job) -> None:
    assert job.total_timesteps is not None
    CONTESTANTS[contestant](job)(job.total_timesteps // (job.num_envs * job.n_steps))


def compare(job: Job, rounds: int) -> str:
    """The rates of all contestants, and our ratio to the faster one of Stable-Baselines3 and to the limit."""
    rates: dict[str, list[float]] = {contestant: [] for contestant in job.contestants}
    for _ in range(rounds):
        for contestant, measured in rates.items():
            measured.append(measure_apart(contestant, job))
    cells = [f"{name} {statistics.median(measured):,.0f}" for name, measured in rates.items()]
    for own, kind, unit in COMPARISONS:
        others = [measured for name, measured in rates.items() if name.startswith(kind)]
        if others and own in rates:
            ratios = [mine / max(theirs) for mine, *theirs in zip(rates[own], *others, strict=True)]
            cells.append(f"{own}: {statistics.median(ratios):.2f} {unit} ({min(ratios):.2f}-{max(ratios):.2f})")
    return "; ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contestant takes (default: 5)")
    parser.add_argument("--only", default="", help="jobs whose description contains this")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        contestant, job = json.loads(arguments.train)
        train_whole(contestant, Job(**job))
        return
    if arguments.measure:
        contestant, job = json.loads(arguments.measure)
        print(measure(contestant, Job(**job)))
        return
    for name, job in JOBS.items():
        if arguments.only.lower() in name.lower():
            print(f"- {name}: {compare(job, arguments.rounds)}", flush=True)


if __name__ == "__main__":
    main()
