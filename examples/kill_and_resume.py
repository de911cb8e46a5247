"""Kill a training with SIGKILL, resume it, and compare its weights with those of an uninterrupted training.

    python examples/kill_and_resume.py

Both train in a temporary folder, with other numbers of worker processes. It takes about half a minute.
"""

import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from ml_pipeline import load_policy

TRAIN = [sys.executable, "-m", "ml_pipeline", "train", "--env-id", "CartPole-v1", "--n-envs", "8"]
LENGTH = ["--total-timesteps", "100000", "--checkpoint-interval", "5"]


def weights_of(run: Path) -> str:
    """SHA-256 of all weights and of the statistics that normalize observations."""
    digest = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, dict):
            for name in sorted(value):
                add(value[name])
        else:
            digest.update(value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())

    state = load_policy(run / "latest.pt").state_dict()
    add({name: state[name] for name in ("network", "normalizer", "value_normalizer")})
    return digest.hexdigest()[:32]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        subprocess.run([*TRAIN, *LENGTH, "--checkpoint-dir", str(whole)], check=True, stdout=subprocess.DEVNULL)
        training = subprocess.Popen(
            [*TRAIN, *LENGTH, "--n-workers", "2", "--checkpoint-dir", str(killed)], stdout=subprocess.DEVNULL
        )
        metrics = killed / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 12:  # a line per iteration
            time.sleep(0.01)
        training.kill()
        print(f"kill -9 {training.pid}: exit code {training.wait()}")
        resume = [*TRAIN[:4], "--resume", str(killed)]
        resumed = subprocess.run(resume, check=True, capture_output=True, text=True)
        print(next(line for line in resumed.stdout.splitlines() if "after iteration" in line))
        print(f"uninterrupted, in one process   {weights_of(whole)}")
        print(f"killed, resumed, with 2 workers {weights_of(killed)}")


if __name__ == "__main__":
    main()
