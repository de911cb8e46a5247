"""Which pruner wastes fewest steps: the share of a study's steps that each uses, and the best value that it finds.

    python benchmarks/pruners.py              # the table of docs/guides/tune-settings.md; ten minutes on two cores
    python benchmarks/pruners.py --seeds 1 --n-trials 10

The same space (PPO's), sampler (TPE), seeds and length of trials on CartPole. The figures depend on no clock, so that
they are the same on a machine that does other work.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, get_args

import optuna

from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.tuning.config import ObjectiveConfig
from ml_pipeline.tuning.search.pruners import PrunerName, make_pruner
from ml_pipeline.tuning.search.samplers import make_sampler
from ml_pipeline.tuning.search.space import read_space
from ml_pipeline.tuning.trials.trial_run import TrialRuns, report_interval

BASE: dict[str, Any] = {
    "env_id": "CartPole-v1", "n_envs": 8, "total_timesteps": 20_000, "vec_env": "serial", "eval_episodes": 5
}  # fmt: skip


class Study(NamedTuple):
    """steps: of all trials together. best: the highest mean return in an evaluation."""

    steps: int
    best: float


def run_study(pruner: str, *, seed: int, n_trials: int) -> Study:
    """A study of `n_trials` that are possible, one after another."""
    space = read_space("ppo")
    budget, every = BASE["total_timesteps"], report_interval(BASE)
    with tempfile.TemporaryDirectory() as folder:
        trials = TrialRuns(BASE, ObjectiveConfig(), Path(folder))
        study = optuna.create_study(
            study_name=f"{seed}",
            sampler=make_sampler("tpe", seed, space),
            pruner=make_pruner(pruner, budget=budget, report_every=every),
            direction="maximize",
        )
        steps, bests = 0, []
        while len(bests) < n_trials:
            trial = study.ask()
            outcome = trials.train(trial, space.suggest(trial), stop=StopRequest(), say=lambda line: None)
            assert outcome.state in {"complete", "pruned", "impossible"}, outcome
            is_complete = outcome.state == "complete"
            state = optuna.trial.TrialState.COMPLETE if is_complete else optuna.trial.TrialState.PRUNED
            study.tell(trial, outcome.value if is_complete else None, state=state)
            if outcome.state != "impossible":
                steps += outcome.global_step
                bests.append(outcome.value or 0.0)
        return Study(steps, max(bests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n-trials", type=int, default=30)
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seeds, whole = range(arguments.seeds), arguments.n_trials * BASE["total_timesteps"]
    print("| pruner | steps used, of those of whole trials | best value, median over seeds | of each seed |")
    print("| --- | --- | --- | --- |")
    for pruner in get_args(PrunerName):
        studies = [run_study(pruner, seed=seed, n_trials=arguments.n_trials) for seed in seeds]
        share = statistics.median(study.steps / whole for study in studies)
        bests = [study.best for study in studies]
        each = ", ".join(f"{best:.0f}" for best in bests)
        print(f"| {pruner} | {share:.0%} | {statistics.median(bests):.0f} | {each} |", flush=True)


if __name__ == "__main__":
    main()
