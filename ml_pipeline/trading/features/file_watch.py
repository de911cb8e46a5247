"""Record the files, programs and connections that a process and its children open, including native code.

On Linux, the child installs a filter of system calls (seccomp, since Linux 5.5, without privileges) and sends its
listener to the parent, which records each call and lets it continue. Elsewhere only Python's audit events are seen.
"""

import contextlib
import ctypes
import os
import platform
import select
import socket
import struct
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

_CODE = {".py", ".pyc", ".pyd", ".so", ".pyi", ".pth", ".dll", ".dylib", ".nbi", ".nbc"}
# System folders, and folders of installed packages; only files with the suffixes of _DATA hold data there.
_OF_THE_MACHINE = ("/proc/", "/sys/", "/etc/", "/lib/", "/lib64/", "/usr/lib", "/usr/share/", "/usr/bin/", "/bin/")
_DEVICES = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}
PACKAGES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_DATA = {".csv", ".parquet", ".feather", ".arrow", ".npy", ".npz", ".pkl", ".pickle", ".h5", ".hdf5", ".db", ".sqlite"}
_DATA |= {".gz", ".xz", ".zst", ".zip", ".tsv", ".mmap", ".bin"}

# System calls by machine: (architecture in the filter, numbers).
_MACHINES = {
    "x86_64": (0xC000003E, {"seccomp": 317, "open": 2, "openat": 257, "connect": 42, "execve": 59}),
    "aarch64": (0xC00000B7, {"seccomp": 277, "openat": 56, "connect": 203, "execve": 221}),
}
_OPENAT2, _IO_URING = 437, 425
_NOTIFY, _ALLOW, _NOT_THERE = 0x7FC00000, 0x7FFF0000, 0x00050000 | 38
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_HERE = -100
_PR_SET_NO_NEW_PRIVS = 38


def is_data(path: str) -> bool:
    """Whether a file may hold market data: it is not code and not a system file.

    >>> [is_data(path) for path in ("/data/a.csv", "/etc/hosts", "/home/me/module.py", "/dev/shm/bars", "/dev/null")]
    [True, False, False, True, False]
    """
    suffix = Path(path).suffix.lower()
    if suffix in _CODE or path in _DEVICES or path in sys.path:
        return False
    if path.startswith(PACKAGES):
        return suffix in _DATA
    return not path.startswith(_OF_THE_MACHINE) or (path.startswith("/usr/share/") and suffix in _DATA)


def watch_this_process(to_parent: socket.socket) -> bool:
    """Let the parent record what this process opens from now on; False if the system does not allow it."""
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        return False
    architecture, calls = machine
    watched = [*(number for name, number in calls.items() if name != "seccomp"), _OPENAT2]
    # Each row: code, jump if true, jump if false, operand. The program loads and compares architecture and number.
    n = len(watched)
    rows = [(0x20, 0, 0, 4), (0x15, 0, n + 2, architecture), (0x20, 0, 0, 0)]
    rows += [(0x15, n + 1 - i, 0, number) for i, number in enumerate(watched)]
    rows += [(0x15, 2, 0, _IO_URING), (0x06, 0, 0, _ALLOW), (0x06, 0, 0, _NOTIFY), (0x06, 0, 0, _NOT_THERE)]
    code = b"".join(struct.pack("=HBBI", *row) for row in rows)
    program = ctypes.create_string_buffer(code, len(code))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(rows), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            return False
        listener = libc.syscall(calls["seccomp"], 1, 8, header)
    except AttributeError:
        return False
    if listener < 0:
        return False
    socket.send_fds(to_parent, [b"l"], [listener])
    os.close(listener)
    return True


class FileWatch:
    """The parent's side: collects what the child opens until `close`.

    seen: paths, programs and "the network". is_watching: whether the child could be watched.
    """

    def __init__(self, from_child: socket.socket) -> None:
        self.seen: set[str] = set()
        self.is_watching = False
        self._closing = False
        self._from_child = from_child
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch; the child must have ended."""
        self._closing = True
        self._from_child.close()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._closing and not select.select([self._from_child], [], [], 0.1)[0]:
                pass
            _, listeners, _, _ = socket.recv_fds(self._from_child, 1, 1)
        except (OSError, ValueError):
            return
        if not listeners:
            return
        self.is_watching = True
        libc = ctypes.CDLL(None, use_errno=True)
        poll = select.poll()
        poll.register(listeners[0], select.POLLIN)
        try:
            while not self._closing:
                for _, event in poll.poll(100):
                    if event & select.POLLIN:
                        self._answer(libc, listeners[0])
                    elif event & (select.POLLHUP | select.POLLERR):
                        return
        finally:
            os.close(listeners[0])

    def _answer(self, libc: ctypes.CDLL, listener: int) -> None:
        request = ctypes.create_string_buffer(80)
        if libc.ioctl(listener, ctypes.c_ulong(_RECEIVE), request):
            return
        ident, pid, _, number, _, _, *arguments = struct.unpack("=QIIiIQ6Q", request.raw)
        # If the process ended or passed an invalid address, the call fails by itself.
        with contextlib.suppress(OSError, ValueError, struct.error):
            self._note(pid, number, arguments)
        libc.ioctl(
            listener, ctypes.c_ulong(_SEND), ctypes.create_string_buffer(struct.pack("=QqiI", ident, 0, 0, _CONTINUE))
        )

    def _note(self, pid: int, number: int, arguments: list[int]) -> None:
        _, calls = _MACHINES[platform.machine()]
        if number == calls["connect"]:
            family = struct.unpack("=H", _memory(pid, arguments[1], 2))[0]
            if family in {socket.AF_INET, socket.AF_INET6}:
                self.seen.add("the network")
            return
        if number == calls["execve"]:
            path = _path(pid, _HERE, arguments[0])
            if Path(path).is_file():
                self.seen.add(f"the program {path}")
            return
        if number == calls.get("open"):
            folder, address, flags = _HERE, arguments[0], arguments[1]
        else:
            folder, address, flags = arguments[0], arguments[1], arguments[2]
            if number == _OPENAT2:
                flags = struct.unpack("=Q", _memory(pid, flags, 8))[0]
        if flags & os.O_ACCMODE == os.O_WRONLY or flags & os.O_DIRECTORY:
            return
        path = _path(pid, ctypes.c_int(folder & 0xFFFFFFFF).value, address)
        if is_data(path) and Path(path).is_file():
            self.seen.add(path)


def _path(pid: int, folder: int, address: int) -> str:
    named = os.fsdecode(_memory(pid, address, 4096).split(b"\0", 1)[0])
    base = os.readlink(f"/proc/{pid}/cwd" if folder == _HERE else f"/proc/{pid}/fd/{folder}")
    return os.path.normpath(os.path.join(base, named))


def _memory(pid: int, address: int, most: int) -> bytes:
    """Up to `most` bytes; a text may end just before a page that is not mapped."""
    in_page = 4096 - address % 4096
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        read = memory.read(min(most, in_page))
        if most > in_page and b"\0" not in read:
            with contextlib.suppress(OSError):
                read += memory.read(most - in_page)
    return read


def audited(note: Callable[[str], None]) -> Callable[[str, tuple[object, ...]], None]:
    """A hook for Python's audit events that records what this process opens, for systems without seccomp."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        first = arguments[0] if arguments else None
        if event == "socket.connect" and isinstance(arguments[1], tuple):
            note("the network")
        elif event in {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.startfile"}:
            shown = os.fsdecode(first) if isinstance(first, str | bytes | os.PathLike) else str(first)
            note(f"the program {shown}")
        elif event in {"open", "sqlite3.connect"} and isinstance(first, str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(first))
            if is_data(path) and Path(path).is_file():
                note(path)

    return hook
