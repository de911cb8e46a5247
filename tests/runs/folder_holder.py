"""Another process that is the writer of a run folder."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CLAIM = "from pathlib import Path; from ml_pipeline.runs.folder_claim import FolderClaim, FolderInUse; import sys, os\n"
HOLD = f"{CLAIM}FolderClaim(Path(sys.argv[1])); print('held', flush=True); input()"


def python(code, *args):
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def folder_holder(folder) -> Iterator[subprocess.Popen]:
    with python(HOLD, folder) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()
