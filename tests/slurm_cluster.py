"""A Slurm cluster of one node for tests: Debian's slurm-wlm and munge, below a temporary folder, as root."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ml_pipeline.runs.ranks.launcher import free_port

_PATIENCE_S = 30
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
_SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def missing_for_slurm() -> str | None:
    """Why no cluster can be had here, or None."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_SBIN) is None]
    if missing:
        return f"Slurm is not installed: {', '.join(missing)} (Debian: slurm-wlm and munge)"
    return None if os.geteuid() == 0 else "a Slurm of one's own takes root"


class SlurmCluster:
    """Its commands, run as the user whose jobs they are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.variables = {**os.environ, "PATH": _SBIN, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *command: object, cwd: Path | None = None, **variables: str) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(
            words,
            env={**self.variables, **variables},
            cwd=cwd or self._folder,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, ..."""
        fields = dict(field.partition("=")[::2] for field in self.run("scontrol", "show", "job", job).split())
        return fields["JobState"]

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(self._folder.glob("*.log")))


@contextmanager
def slurm_cluster(folder: Path, *, n_cpus: int) -> Iterator[SlurmCluster]:
    """One node with so many processors, real ones or not, that takes jobs until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname().partition(".")[0]
    controller_port, node_port = free_port(), free_port()
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    (folder / "slurm.conf").write_text(
        f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0,requeue_delay=1
KillWait=60
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={n_cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
    )
    cluster = SlurmCluster(folder)
    with contextlib.ExitStack() as stack:
        for command in (
            [
                *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"),
                *(f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log"),
                f"--seed-file={folder}/munge.seed",
            ],
            ["slurmctld", "-D", "-i"],
            ["slurmd", "-D", "-N", host],
        ):
            program = shutil.which(command[0], path=_SBIN)
            assert program is not None
            with open(folder / f"{command[0]}.out.log", "wb") as log:
                daemon = subprocess.Popen([program, *command[1:]], env=cluster.variables, stdout=log, stderr=log)
            stack.callback(_end, daemon)
        _wait_until_idle(cluster)
        yield cluster


def _wait_until_idle(cluster: SlurmCluster) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        done = subprocess.run(
            ["sinfo", "--noheader", "--format=%t"], env=cluster.variables, capture_output=True, text=True, check=False
        )
        if done.stdout.strip() == "idle":
            return
        assert time.monotonic() < end, f"No node became idle: {done.stdout}{done.stderr}{cluster.logs()}"
        time.sleep(0.2)


def _end(daemon: subprocess.Popen) -> None:
    daemon.terminate()
    try:
        daemon.wait(timeout=_PATIENCE_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
