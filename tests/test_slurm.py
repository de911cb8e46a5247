"""The batch file of examples/ on a Slurm cluster of one node: it trains, goes back into the queue, and goes on."""

import os
import sys
from pathlib import Path

import pytest

from tests.slow_module import N_ITERATIONS, SETTINGS, n_iterations, wait_for, write_module
from tests.slurm_cluster import missing_for_slurm, slurm_cluster
from tests.training_commands import REPOSITORY, TRAIN, run, weights_in

BATCH_FILE = REPOSITORY / "examples" / "train.sbatch"
ARGUMENTS = ["--env-id", "my_module:SlowEnv-v0", "--n-envs", "8", *SETTINGS]


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(missing_for_slurm()), reason=str(missing_for_slurm()))
def test_a_job_that_goes_back_into_the_queue_ends_with_the_weights_of_one_process(tmp_path, monkeypatch):
    write_module(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PATH": path, "RANKS_PER_NODE": "2", "TMPDIR": str(tmp_path)}  # where torchrun leaves folders
    with slurm_cluster(tmp_path / "slurm", n_cpus=2) as slurm:
        command = ["sbatch", "--parsable", "--nodes=1", "--cpus-per-task=2", BATCH_FILE, *ARGUMENTS]
        job = slurm.run(*command, cwd=tmp_path, **variables).strip()
        folder, output = tmp_path / "checkpoints" / f"slurm-{job}", tmp_path / f"train-{job}.out"

        def told():
            return f"{slurm.state(job)} {output.read_text() if output.exists() else slurm.logs()}"

        wait_for(lambda: n_iterations(folder) >= 2, told)
        slurm.run("scancel", "--signal=USR1", "--batch", job)  # as Slurm does before the job's time is up
        wait_for(lambda: slurm.state(job) == "PENDING", told)
        assert "Saved" in output.read_text()
        assert 2 <= n_iterations(folder) < N_ITERATIONS
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")  # which Slurm would wait two minutes for
        wait_for(lambda: slurm.state(job) in {"COMPLETED", "FAILED"}, told)
        assert slurm.state(job) == "COMPLETED", told()
    assert n_iterations(folder) == N_ITERATIONS
    run([*TRAIN, *ARGUMENTS, "--normalize-update", "rollout", "--checkpoint-dir", tmp_path / "alone"], cwd=tmp_path)
    assert weights_in(folder / "latest.pt").equal(weights_in(tmp_path / "alone" / "latest.pt"))
