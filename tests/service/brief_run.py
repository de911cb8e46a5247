"""A run that takes a moment and needs no torch, in the place of `ml-pipeline train`.

Its folder gets a line in begun.txt when it begins, and one in ended.txt when it has ended. Its seed is how many
milliseconds it takes, but for those named below.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

import yaml

from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.service import run_process
from ml_pipeline.service.processes import SpawnedProcesses

DIES_AT_FIRST, DEAF, REFUSED = 900_001, 900_002, 900_003  # by SIGKILL; to SIGTERM; with a sentence
LONG = 800_000


def main(argv, *, prog):
    words = dict(zip(argv[::2], argv[1::2], strict=True))
    folder = Path(words.get("--checkpoint-dir") or words["--resume"])
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    stopped = []
    signal.signal(signal.SIGTERM, signal.SIG_IGN if seed == DEAF else lambda *_: stopped.append(True))
    if seed == REFUSED:
        print(f"{prog}: there is no such thing", file=sys.stderr)
        raise SystemExit(2)
    claim = FolderClaim(folder)
    with (folder / "begun.txt").open("a") as file:
        file.write(" ".join(argv) + "\n")
    (folder / "latest.pt").touch()
    if seed == DIES_AT_FIRST and "--resume" not in words:
        print("out of luck", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + seed / 1000
    while time.monotonic() < end and not stopped:
        time.sleep(0.01)
    with (folder / "ended.txt").open("a") as file:
        file.write("ended\n")
    claim.end("stopped" if stopped else "finished", None, global_step=1, iterations=1, best_score=None)
    return 143 if stopped else 0


def brief_processes(log, on_event):
    """For AgentTrainingService(processes=...)."""
    return SpawnedProcesses((sys.executable, str(Path(__file__).resolve())))


if __name__ == "__main__":
    module = ModuleType("brief_run")
    module.main = main
    sys.modules["brief_run"] = module
    run_process._TRAIN = "brief_run"
    sys.exit(run_process._main())
