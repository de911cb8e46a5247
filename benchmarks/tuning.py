"""Trials per hour of `ml-pipeline tune` beside rl-baselines3-zoo's --optimize, and with two jobs beside one.

    make bench-tuning                               # installs rl_zoo3 into .venv-zoo, and runs this; about six minutes
    python benchmarks/tuning.py --rounds 1 --n-trials 4

Both train the same settings: the study of rl-zoo begins with those that ours drew by the random sampler from rl-zoo's
own space, in the same order. CartPole, 8 environments, as many steps and evaluations per trial, no pruner. rl-zoo runs
as its documentation has it (threads of one process) and as two processes on one journal, with one torch thread each;
it is compared by its faster way. An hour's trials follow from the time between the begin of the first trial and the end
of the last one, so that imports count for nobody; what ours compiles once for all studies is compiled before. Ours with
one job and with two is measured with more trials, which rl-zoo would take too long for. Interleaved, medians. What a
machine that does other work prints is worth nothing.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from ml_pipeline.tuning.search.space import read_space
from ml_pipeline.tuning.study_files import JOURNAL_FILE

SPACE = Path(__file__).with_name("zoo_ppo_space.yaml")
ENV_ID, N_ENVS, EVAL_EPISODES, N_EVALUATIONS = "CartPole-v1", 8, 5, 10
OURS = [sys.executable, "-m", "ml_pipeline", "tune"]
THEIRS = [sys.executable, "-m", "rl_zoo3.train"]
BESIDE, TWO_JOBS, ONE_JOB = "ours, 2 jobs", "ours alone, 2 jobs", "ours alone, 1 job"
_NETWORKS = {"[64]": "tiny", "[64, 64]": "small", "[256, 256]": "medium"}


def our_trials(n_jobs: int, *, n_trials: int, steps: int, folder: Path) -> list[FrozenTrial]:
    """The trials of a study of ours."""
    flags = {
        **{"study-name": "study", "root": folder, "space": SPACE, "sampler": "random", "pruner": "none"},
        **{"n-trials": n_trials, "n-jobs": n_jobs, "env-id": ENV_ID, "n-envs": N_ENVS, "total-timesteps": steps},
        **{"eval-episodes": EVAL_EPISODES},
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    words += ["--no-normalize-obs", "--no-normalize-rewards"]  # as rl-zoo on CartPole
    subprocess.run([*OURS, *words], check=True, capture_output=True, cwd=folder)
    return trials_in(folder / "study" / JOURNAL_FILE)


def their_trials(like: list[FrozenTrial], n_processes: int, *, steps: int, folder: Path) -> list[FrozenTrial]:
    """The trials of a study of rl-zoo with the settings of `like`, by two threads, or by so many processes."""
    journal = folder / "zoo.log"
    study = optuna.create_study(storage=_storage(journal), study_name="study", direction="maximize")
    for trial in like:
        study.enqueue_trial(zoo_params(trial))
    words = [
        *("--algo", "ppo", "--env", ENV_ID, "-n", str(steps), "--optimize-hyperparameters", "--seed", "0"),
        *("--sampler", "random", "--pruner", "none", "--n-evaluations", str(N_EVALUATIONS)),
        *("--eval-episodes", str(EVAL_EPISODES), "--study-name", "study", "--storage", str(journal)),
        *("--num-threads", "1", "--device", "cpu", "--no-optim-plots", "--verbose", "0", "-f", str(folder)),
        *("--n-jobs", "2" if n_processes == 1 else "1", "--n-trials", str(len(like) // n_processes)),
    ]
    running = [
        subprocess.Popen([*THEIRS, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=folder)
        for _ in range(n_processes)
    ]
    for process in running:
        _, said = process.communicate()
        assert process.returncode == 0, said.decode()
    return trials_in(journal)


def zoo_params(trial: FrozenTrial) -> dict[str, Any]:
    """The parameters of rl-zoo for the settings of one of our trials."""
    names = {"log2_minibatch_size": "batch_size_pow", "log2_n_steps": "n_steps_pow", "activation": "activation_fn"}
    params = {names.get(name, name): value for name, value in trial.params.items()}
    network = _NETWORKS[params.pop("hidden_sizes")]
    return {**params, "net_arch": network}


def _storage(journal: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(journal)))


def trials_in(journal: Path) -> list[FrozenTrial]:
    """The trials of a study that were trained: all but those whose settings were impossible."""
    study = optuna.load_study(storage=_storage(journal), study_name="study")
    return [trial for trial in study.trials if trial.state == TrialState.COMPLETE]


def per_hour(trials: list[FrozenTrial]) -> float:
    """Trials per hour between the begin of the first and the end of the last."""
    began = min(trial.datetime_start for trial in trials if trial.datetime_start)
    ended = max(trial.datetime_complete for trial in trials if trial.datetime_complete)
    return 3600 * len(trials) / (ended - began).total_seconds()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--n-trials", type=int, default=6, help="beside rl-zoo, an even number (default: 6)")
    parser.add_argument("--n-trials-alone", type=int, default=16, help="of ours with one job and two (default: 16)")
    parser.add_argument("--steps", type=int, default=5_000, help="of a trial (default: 5,000)")
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    read_space(SPACE)
    steps = arguments.steps
    rates: dict[str, list[float]] = {}
    like: list[FrozenTrial] = []

    def ours(n_jobs: int, n_trials: int) -> Callable[[Path], list[FrozenTrial]]:
        return lambda folder: our_trials(n_jobs, n_trials=n_trials, steps=steps, folder=folder)

    def theirs(n_processes: int) -> Callable[[Path], list[FrozenTrial]]:
        return lambda folder: their_trials(like, n_processes, steps=steps, folder=folder)

    ways = {
        BESIDE: ours(2, arguments.n_trials),
        "rl-zoo, 2 threads": theirs(1),
        "rl-zoo, 2 processes": theirs(2),
        TWO_JOBS: ours(2, arguments.n_trials_alone),
        ONE_JOB: ours(1, arguments.n_trials_alone),
    }
    with tempfile.TemporaryDirectory() as folder:  # compiles what is compiled once for all studies
        our_trials(1, n_trials=1, steps=2_000, folder=Path(folder))
    for _ in range(arguments.rounds):
        for way, run in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                trials = run(Path(folder))
            like = like or trials
            rates.setdefault(way, []).append(per_hour(trials))
            print(f"{way}: {rates[way][-1]:,.0f} trials per hour", flush=True)
            assert set(_settings(like)) <= set(_settings(trials)), "the settings differ"
    median = {way: statistics.median(each) for way, each in rates.items()}
    zoo = max(rate for way, rate in median.items() if way.startswith("rl-zoo"))
    print(f"ours, 2 jobs: {median[BESIDE] / zoo:.1f} times as many as rl-zoo by its faster way (medians)")
    print(f"ours: 2 jobs {median[TWO_JOBS] / median[ONE_JOB]:.2f} times as many as 1 job (medians)")


def _settings(trials: list[FrozenTrial]) -> list[str]:
    """The parameters of each trial, as rl-zoo names them."""
    params = [each.params if "net_arch" in each.params else zoo_params(each) for each in trials]
    return [json.dumps(each, sort_keys=True) for each in params]


if __name__ == "__main__":
    main()
