"""Learning curves of this package and Stable-Baselines3 with the same settings: a table, a picture, one line per run.

    pip install -e '.[learn]' && python -m benchmarks.learning

This takes hours and may be stopped at any time: each finished run is a line of runs.jsonl, and the next call makes the
missing ones. Each core trains one run. Table and picture have the jobs that both have learned with equally many seeds.
The scores of a run, fixed before the runs were made, are the mean returns of 100 episodes after training, with
deterministic and with sampled actions, and of the last 5 % of the training.
"""

import argparse
import itertools
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.learning_contestants import CONTESTANTS, run_of
from benchmarks.learning_jobs import JOBS
from benchmarks.learning_page import compared, draw, table

FIRST_SEED = 100  # the scores were fixed after runs with lower ones had been looked at
Missing = tuple[str, str, int, int]
"""A run to do: job, contestant, seed and steps."""


def read_runs(path: Path) -> list[dict[str, Any]]:
    """Finished runs; a last line that was cut short is none."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS, metavar="JOB", help="all by default")
    parser.add_argument("--seeds", type=int, help="of each job, in place of its own 20, 10 or 5")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps to train for, for a try")
    parser.add_argument("--output", type=Path, default=Path("docs/learning"), help="folder (default: docs/learning)")
    arguments = parser.parse_args(argv)
    learn(arguments.jobs, arguments.seeds, arguments.scale, arguments.output)


def learn(names: Sequence[str], n_seeds: int | None, scale: float, output: Path) -> None:
    """Make the missing runs, then draw and print all of this scale."""
    output.mkdir(parents=True, exist_ok=True)
    path = output / "runs.jsonl"
    runs = read_runs(path)
    whole = path.with_suffix(".new")
    whole.write_text("".join(f"{json.dumps(run)}\n" for run in runs))  # less what was cut short
    whole.replace(path)
    steps_of = {name: max(1, round(job.total_steps * scale)) for name, job in JOBS.items()}
    runs = [run for run in runs if run["total_steps"] == steps_of[run["job"]]]
    finished = {(run["job"], run["who"], run["seed"], run["total_steps"]) for run in runs}
    wanted = [
        (name, who, FIRST_SEED + i, steps_of[name])
        for name in names
        for i, who in itertools.product(range(n_seeds or JOBS[name].n_seeds), CONTESTANTS)
    ]
    for run in _done([missing for missing in wanted if missing not in finished]):
        runs.append(run)
        with path.open("a") as file:
            file.write(f"{json.dumps(run)}\n")
        print(f"{run['job']}, {run['who']}, seed {run['seed']}: {run['stochastic']:,.1f}", flush=True)
    (output / "table.md").write_text(table(compared(runs)))
    draw(compared(runs), output / "curves.png")
    print(table(runs))


def _done(missing: Sequence[Missing]) -> Iterator[dict[str, Any]]:
    """The runs, each as it is finished; one at a time on each core."""
    cores = sorted(os.sched_getaffinity(0))
    spawning = multiprocessing.get_context("spawn")
    free: Any = spawning.Queue()
    for core in cores:
        free.put(core)
    n_processes = max(1, min(len(cores), len(missing)))
    with ProcessPoolExecutor(n_processes, spawning, initializer=_take_core, initargs=(free,)) as pool:
        try:
            for run in as_completed([pool.submit(run_of, *one) for one in missing]):
                yield run.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _take_core(free: Any) -> None:
    os.sched_setaffinity(0, {free.get()})


if __name__ == "__main__":
    main()
