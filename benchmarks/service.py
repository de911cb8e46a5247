"""Four runs through the service, beside the same runs one after another as commands: interleaved, by medians.

    python benchmarks/service.py                      # CartPole, and trading; about ten minutes
    python benchmarks/service.py --rounds 1 --only cartpole

Times are from the first start to the last report: each command imports torch, the service does once. The hashes of the
weights are compared too. What a machine that does other work prints is worth nothing.
"""

import argparse
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.service.agent_training_service import AgentTrainingService

N_RUNS = 4
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {"env_id": "CartPole-v1", "n_envs": 8, "total_timesteps": 300_000},
    "trading": {"n_envs": 8, "total_timesteps": 200_000},
}


def one_after_another(settings: dict[str, Any], folder: Path) -> list[Path]:
    folders = []
    for seed in range(N_RUNS):
        flags = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        folders.append(folder / f"seed{seed}")
        command = [sys.executable, "-m", "ml_pipeline.train_ppo", *flags, "--seed", str(seed)]
        subprocess.run([*command, "--checkpoint-dir", str(folders[-1])], check=True, capture_output=True)
    return folders


def by_the_service(settings: dict[str, Any], folder: Path) -> list[Path]:
    with AgentTrainingService(folder) as service:
        runs = [service.submit({**settings, "seed": seed}) for seed in range(N_RUNS)]
        for run in service.wait(runs):
            assert run.status == "finished", run
    return [folder / run for run in runs]


def digest(folder: Path) -> str:
    network = load_checkpoint(folder / "latest.pt")["trainer"]["policy"]["network"]
    return hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in network.values())).hexdigest()


def measure(name: str, rounds: int) -> None:
    ratios = []
    for _ in range(rounds):
        taken, digests = [], []
        for way in (one_after_another, by_the_service):
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                folders = way(TASKS[name], Path(folder))
                taken.append(time.perf_counter() - began)
                digests.append([digest(each) for each in folders])
        ratios.append(taken[1] / taken[0])
        same = "same bits" if digests[0] == digests[1] else "OTHER BITS"
        print(f"{name}: one after another {taken[0]:.1f} s, by the service {taken[1]:.1f} s: {ratios[-1]:.2f}; {same}")
    print(
        f"{name}: {N_RUNS} runs on {usable_cores():g} cores take {statistics.median(ratios):.2f} of the time (median)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=TASKS)
    arguments = parser.parse_args()
    for name in [arguments.only] if arguments.only else TASKS:
        measure(name, arguments.rounds)


if __name__ == "__main__":
    main()
