"""How long it takes from the end of a trial's training to the first step of the next one, in one process.

python benchmarks/trial_gap.py
python benchmarks/trial_gap.py --data prices.csv --trials 30

In between lie the end of one run (its best policy loaded, its report and state written) and the setup of the next
(folder, environments, networks, files, the first checkpoint). Asking Optuna for the trial is not in it.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from unittest import mock

from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.tuning.config import ObjectiveConfig
from ml_pipeline.tuning.trials.trial_run import TrialRuns


class UnprunedTrial:
    def __init__(self, number: int) -> None:
        self.number = number

    def report(self, value: float, step: int) -> None: ...

    def should_prune(self) -> bool:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a market to trade in; CartPole-v1 without it")
    parser.add_argument("--trials", type=int, default=20)
    given = parser.parse_args()
    base = {"n_envs": 8, "n_steps": 64, "total_timesteps": 4096, "eval_episodes": 2, "n_workers": 0}
    base |= {"env_id": "CartPole-v1"} if given.data is None else {"data": given.data}
    gaps = measure(base, given.trials)[2:]  # the first ones load code and market
    print(
        f"{given.data or base['env_id']}: {statistics.median(gaps):.3f} s from one trial's last step to the next one's "
        f"first (median of {len(gaps)}; longest {max(gaps):.3f} s)"
    )


def measure(base: dict, n_trials: int) -> list[float]:
    """The gaps between so many trials, in s."""
    began, ended = [], []
    train = PPOTrainer.train

    def timed(trainer: PPOTrainer, **how: object) -> object:
        began.append(time.perf_counter())
        try:
            return train(trainer, **how)
        finally:
            ended.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(PPOTrainer, "train", timed):
        runs = TrialRuns(base, ObjectiveConfig(), Path(folder))
        for number in range(n_trials):
            settings = {"learning_rate": 1e-4 * (number + 1), "gamma": 0.9 + 0.005 * (number % 10)}
            outcome = runs.train(UnprunedTrial(number), settings, stop=StopRequest(), say=print)
            assert outcome.state == "complete", outcome
    return [start - end for end, start in zip(ended, began[1:], strict=False)]


if __name__ == "__main__":
    main()
