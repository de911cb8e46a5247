"""What a session of tests leaves behind: files in its temporary folder, processes, shared memory.

Others may use the machine meanwhile, other sessions of these tests among them: only what this session made counts.
"""

import contextlib
import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Collection, Iterator
from multiprocessing.util import get_temp_dir
from pathlib import Path

import psutil

from ml_pipeline.runtime.process_identity import owner_of

SHARED_MEMORY = Path("/dev/shm")
_GRACE_S = 10.0  # what was told to end may need a moment on a busy machine
_FOREIGN = {".ses"}  # onnxruntime keeps the number of its session there
_HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")  # end with the process they serve


class Leftovers:
    """The temporary folder of one session, which all of its processes get, and what is left in and of it.

    Use as a context manager: within it, `tempfile` and `TMPDIR` name the folder; it is removed at the end.
    """

    def __init__(self) -> None:
        self.first_seen_after: dict[str, str] = {}  # name of an entry of the folder: the test
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "Leftovers":
        get_temp_dir()  # multiprocessing keeps its own until this process exits: outside of the folder
        # A short name: the path of a socket may have 107 characters.
        self.folder = Path(self._undo.enter_context(tempfile.TemporaryDirectory(prefix="t-")))
        self._undo.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
        self._undo.enter_context(_environment_variable("TMPDIR", str(self.folder)))
        tempfile.tempdir = str(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def note(self, test: str) -> None:
        """Remembers which files are there after this test. Some may belong to a fixture that others still use."""
        for name in os.listdir(self.folder):
            self.first_seen_after.setdefault(name, test)

    def find(self, grace_s: float = _GRACE_S) -> list[str]:
        """A sentence for each thing that is left once `grace_s` have passed."""
        gc.collect()
        end = time.monotonic() + grace_s
        while (found := [*self._files(), *self._processes(), *self._shared_memory()]) and time.monotonic() < end:
            time.sleep(0.1)
        return found

    def _files(self) -> Iterator[str]:
        # This process removes at its exit: a market's arrays and its fork server's socket, whose folders it owns.
        for name in sorted(set(os.listdir(self.folder)) - _FOREIGN):
            owner = owner_of(self.folder / name)
            if owner is None or owner.pid != os.getpid():
                yield f"{name} in TMPDIR, first seen after {self.first_seen_after.get(name, 'the last test')}"

    def _processes(self) -> Iterator[str]:
        multiprocessing.active_children()  # takes note of those that have ended
        for process in self._processes_of_the_session():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline()) or process.name()
                if not (any(helper in command for helper in _HELPERS) and process.ppid() == os.getpid()):
                    yield f"process {process.pid} ({process.status()}): {command[:200]}"

    def _processes_of_the_session(self) -> Iterator[psutil.Process]:
        """Descendants of this process; and those whose parent has died, which are told by their TMPDIR."""
        children = psutil.Process().children(recursive=True)
        yield from children
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process not in children and process.environ().get("TMPDIR") == str(self.folder):
                    yield process

    def _shared_memory(self) -> Iterator[str]:
        of_this_session = {os.getpid(), *(process.pid for process in self._processes_of_the_session())}
        yield from (f"{name} in shared memory" for name in sorted(named_shared_memory(of_this_session)))


def named_shared_memory(pids: Collection[int], folder: Path = SHARED_MEMORY) -> set[str]:
    """The names of files there that these processes have open or mapped, and that would stay if they were killed.

    Not those that bear no name any more, nor semaphores, which multiprocessing removes. Empty where there is no /proc.
    """
    used: set[int] = set()  # by inode: what is mapped may have had another name
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                *_, inode, path = [*line.split(maxsplit=5), ""][:6]
                if path.startswith(f"{folder}/"):
                    used.add(int(inode))
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                if os.readlink(descriptor).startswith(f"{folder}/"):
                    used.add(descriptor.stat().st_ino)
    found = set()
    for name in os.listdir(folder) if used else ():
        with contextlib.suppress(OSError):
            if (folder / name).stat().st_ino in used and not name.startswith("sem."):
                found.add(name)
    return found


@contextlib.contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
