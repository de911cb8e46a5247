"""Speedup by several ranks and machines: groups of ranks and a single process, interleaved in one run.

    python -m benchmarks.scale_out --write-docs     # all tables, seven minutes on 2 cores as root, and the page
    python -m benchmarks.scale_out --short          # two minutes, only printed
    python -m benchmarks.scale_out --from-json      # write the page again from the stored figures

Each rank has one core. Machines are network namespaces with a delay between them, which need Linux and root. Waits
stand for steps that compute, because two cores cannot compute four steps at once. Groups take turns within a round.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmarks.scale_out_group import Job, Timing, exchanged, trained
from benchmarks.scale_out_page import FIGURES, printed, write_page
from benchmarks.slow_network import machines
from ml_pipeline.runtime.cores import usable_cores

DELAY_S, BITS_PER_S = 5e-4, 1e9
CLUSTER = 4
_CLUSTER_JOB = Job(step="waits", step_s=1e-3, num_envs=256, n_steps=32, ranks=1, iterations=2)
_BUSY_JOB = Job(step="busy", step_s=1e-3, num_envs=8, n_steps=256, ranks=0, n_workers=2)

# In each comparison, the first group is the baseline.
COMPARISONS: dict[str, dict[str, Job]] = {
    "steps that wait 2 ms": {
        "1 rank, 8 environments": Job(step="waits", step_s=2e-3, num_envs=8, n_steps=256, ranks=1, n_workers="auto"),
        "2 ranks, 16 environments": Job(step="waits", step_s=2e-3, num_envs=16, n_steps=256, ranks=2, n_workers="auto"),
    },
    "steps that compute 1 ms": {
        "1 process, 2 workers, 8 environments": _BUSY_JOB,
        "2 ranks, 8 environments": replace(_BUSY_JOB, ranks=2, n_workers=0),
    },
    "CartPole": {
        "1 process, 16 environments": Job(step="CartPole", num_envs=16, n_steps=256, ranks=0, n_workers="auto"),
        "2 ranks, 16 environments": Job(step="CartPole", num_envs=16, n_steps=256, ranks=2, n_workers=0),
    },
}
ON_MACHINES = {
    "a cluster, steps that wait 1 ms": {
        f"{n} machine{'s' if n > 1 else ''}, 256 environments": replace(_CLUSTER_JOB, ranks=n) for n in (1, 2, CLUSTER)
    }
}
_LEARNING = Job(step="waits", num_envs=256, n_steps=32, ranks=1, iterations=5)
"""Measures the time for learning on one core."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--short", action="store_true", help="one round: two minutes")
    parser.add_argument("--write-docs", action="store_true", help="write the page and its figures")
    parser.add_argument("--from-json", action="store_true", help="write the page again from the stored figures")
    parser.add_argument("--rounds", type=int, help="turns that each group takes (default: 3, short: 1)")
    settings = parser.parse_args()
    if settings.from_json:
        write_page(json.loads(FIGURES.read_text()))
        return
    rounds = settings.rounds or (1 if settings.short else 3)
    began = time.perf_counter()
    figures = measure(rounds)
    print(printed(figures))
    print(f"Measured in {time.perf_counter() - began:.0f} s.")
    if settings.write_docs:
        write_page(figures)


def measure(rounds: int) -> dict[str, Any]:
    """All figures."""
    with machines(CLUSTER, delay_s=DELAY_S, bits_per_s=BITS_PER_S) as cluster:
        learning = {**asdict(_LEARNING), **asdict(trained(_LEARNING))}
        exchanges = {
            "one machine": {"2": exchanged(2)},
            "machines": {str(n): exchanged(n, cluster) for n in (2, CLUSTER)},
        }
        compared = [*_compare(COMPARISONS, rounds, None), *_compare(ON_MACHINES, rounds, cluster)]
    return {
        "machine": _machine(),
        "network": {"delay_s": DELAY_S, "bits_per_s": BITS_PER_S},
        "learning": learning,
        "exchanges": exchanges,
        "groups": compared,
    }


def _compare(comparisons: dict[str, dict[str, Job]], rounds: int, cluster: Any) -> Iterator[dict[str, Any]]:
    for name, groups in comparisons.items():
        timings: dict[str, list[Timing]] = {group: [] for group in groups}
        for _ in range(rounds):
            for group, job in groups.items():
                timings[group].append(trained(job, cluster))
        for group, job in groups.items():
            rates = [job.num_envs * job.n_steps / timing.iteration_s for timing in timings[group]]
            medians = {
                key: statistics.median(asdict(timing)[key] for timing in timings[group])
                for key in asdict(timings[group][0])
            }
            yield {"comparison": name, "group": group, "on_machines": cluster is not None, **asdict(job),
                   "steps_per_second": rates, **medians}  # fmt: skip


def _machine() -> dict[str, Any]:
    return {
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
    }


if __name__ == "__main__":
    main()
