"""Identifies a process by host, pid and start time, and checks whether it is still alive.

A pid alone does not identify a process, because the system reuses it. Temporary folders record their owner in this way,
so the next process can remove folders of processes that were killed.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from ml_pipeline.runtime.files import read_regular

_PROC = Path("/proc")
_STATE_FIELD, _START_FIELD = 0, 19  # in /proc/PID/stat after the name: fields 3 and 22 in proc(5)
_LARGEST_PID = 2**32 - 1  # on Windows; other systems allow less
_DEAD = frozenset("ZX")  # a zombie has ended but was not reaped by its parent


class ProcessIdentity(NamedTuple):
    """A process of any machine.

    started: its start time in the format of its system; None if the system does not report it. namespace: its PID
    namespace; each container of a machine has its own.
    """

    host: str
    pid: int
    started: str | None
    namespace: str | None


def identity_from(host: object, pid: object, started: object, namespace: object) -> ProcessIdentity:
    """An identity from values read from a file. Raises ValueError if they are invalid."""
    is_text = all(each is None or isinstance(each, str) for each in (started, namespace))
    is_pid = isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid <= _LARGEST_PID
    if not (isinstance(host, str) and is_pid and is_text):
        raise ValueError(f"{host!r:.100}, {started!r:.100} and {namespace!r:.100} do not identify a process.")
    return ProcessIdentity(host, pid, started, namespace)  # type: ignore[arg-type]


def this_process() -> ProcessIdentity:
    """The identity of this process; a forked child has its own."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> ProcessIdentity:
    """The identity of the running process with this pid. Raises ProcessLookupError if there is none."""
    return ProcessIdentity(socket.gethostname(), pid, _start_of(pid), _namespace())


def is_alive(process: ProcessIdentity) -> bool | None:
    """Whether the process still runs; None if this machine or container cannot know."""
    if process.host != socket.gethostname() or process.started is None:
        return None
    boot, _, _ = process.started.rpartition("/")
    if boot and boot != _boot_id():
        return False  # the machine has rebooted since then
    if process.namespace != _namespace():
        return None
    try:
        started = _start_of(process.pid)
    except (ProcessLookupError, OverflowError):  # OverflowError: larger than any pid of this system
        return False
    except PermissionError:
        return None
    return None if started is None else started == process.started


def _start_of(pid: int) -> str | None:
    """The start time of a process; None if the system does not report it. Raises ProcessLookupError if it is dead."""
    if (_PROC / "self" / "stat").exists():
        return _start_in_proc(pid)
    return _start_by_ps(pid) if os.name == "posix" else None


def _start_in_proc(pid: int) -> str:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        os.kill(pid, 0)  # if /proc hides processes of other users, a living one raises PermissionError here
        raise ProcessLookupError(pid) from None
    fields = stat.rpartition(")")[2].split()  # the name may contain blanks and parentheses
    if fields[_STATE_FIELD] in _DEAD:
        raise ProcessLookupError(pid)
    return f"{_boot_id()}/{fields[_START_FIELD]}"


def _start_by_ps(pid: int) -> str | None:
    """The start time, to the second, on macOS and BSD, which have no /proc."""
    command = ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)]
    same_for_all = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False, env=same_for_all)
    except (OSError, subprocess.SubprocessError):
        return None
    state, _, started = done.stdout.strip().partition(" ")
    if not state or state[0] in _DEAD:
        raise ProcessLookupError(pid)
    return " ".join(started.split())


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _namespace() -> str | None:
    try:
        return os.readlink(_PROC / "self/ns/pid")
    except OSError:
        return None


_OWNER_FILE = "owner.json"
_MOST_BYTES = 1_000


def new_owned_folder(prefix: str, parent: str | None = None) -> Path:
    """Create a folder owned by this process, named `prefix` plus random characters, in `parent` (default: TMPDIR).

    First removes folders with this prefix whose owner has ended. Folders of other users, of other machines and
    containers that share `parent`, and folders without an owner file are kept. Raises OSError.
    """
    parent = tempfile.gettempdir() if parent is None else parent
    for left in Path(parent).glob(f"{prefix}*"):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        (folder / _OWNER_FILE).write_text(json.dumps(this_process()))
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def owner_of(folder: Path) -> ProcessIdentity | None:
    """The process that created a folder; None if the folder has no valid owner file."""
    try:
        host, pid, started, namespace = json.loads(read_regular(folder / _OWNER_FILE, most_bytes=_MOST_BYTES))
        return ProcessIdentity(str(host), int(pid), started and str(started), namespace and str(namespace))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def _is_abandoned(folder: Path) -> bool:
    """Whether the folder belongs to this user, and its owner has certainly ended."""
    try:
        if hasattr(os, "geteuid") and folder.lstat().st_uid != os.geteuid():
            return False
    except OSError:
        return False
    owner = owner_of(folder)
    return owner is not None and is_alive(owner) is False
