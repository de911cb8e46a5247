"""A Ray cluster of two machines that are processes of this one: python -m tests.runs.ranks.ray_machines CPUS GPUS.

Prints the cluster's address; for a line on stdin it kills the second machine, and prints "killed". Ends with its stdin.
It is a process of its own, because Ray's threads and warnings are no part of what is tested.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class RayMachines:
    def __init__(self, process: "subprocess.Popen[str]", variables: dict[str, str]) -> None:
        self._process = process
        self.variables = variables
        """The environment of a command that is to find the cluster."""

    def kill_second(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "killed\n"


@contextmanager
def ray_machines(n_cpus: int, n_gpus: int = 0) -> Iterator[RayMachines]:
    """Two machines of so many processors and GPUs each, real ones or not, until the end of the block."""
    # A short path, since that of a socket may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        variables = {**os.environ, "RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", __spec__.name, str(n_cpus), str(n_gpus)]
        with subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                variables["RAY_ADDRESS"] = process.stdout.readline().strip()
                assert variables["RAY_ADDRESS"], "the cluster did not start"
                yield RayMachines(process, variables)
            finally:
                process.stdin.close()
                process.wait(60)


def main(n_cpus: int, n_gpus: int) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    machine = {"num_cpus": n_cpus, "num_gpus": n_gpus}
    cluster = Cluster(initialize_head=True, head_node_args={**machine, "include_dashboard": False})
    second = cluster.add_node(**machine)
    try:
        print(cluster.address, flush=True)
        for _ in sys.stdin:
            cluster.remove_node(second, allow_graceful=False)
            print("killed", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
