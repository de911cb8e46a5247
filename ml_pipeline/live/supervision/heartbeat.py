"""The heartbeat of a session: a file that is touched while its loop runs, and the function that reads it.

If systemd started the session, it also gets the heartbeat, as datagrams to the socket in NOTIFY_SOCKET (see
sd_notify(3)).
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.live.session_files import HEARTBEAT_FILE
from ml_pipeline.runtime.files import open_regular, written_whole
from ml_pipeline.runtime.process_identity import ProcessIdentity, identity_from, is_alive, this_process


class ServiceManager:
    """The service manager that started this process, if any."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET") or None
        self.watchdog_s = _watchdog_s(environment) if self._address else None
        """Watchdog timeout in seconds, after which it restarts the process; None: no watchdog."""

    def ready(self) -> None:
        """The session trades."""
        self._send("READY=1")

    def alive(self) -> None:
        """Reset the watchdog."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def says(self, sentence: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={in_one_line(sentence)}")

    def stopping(self) -> None:
        """The session is ending."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if self._address is None or not hasattr(socket, "AF_UNIX"):
            return
        # An address that begins with @ is in the abstract namespace, where the @ is a zero byte.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # a manager that does not read must not block trading
            sender.connect(address)
            sender.send(text.encode())


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """WATCHDOG_USEC in seconds, if WATCHDOG_PID is unset or names this process."""
    try:
        pid = int(environment.get("WATCHDOG_PID") or os.getpid())
        micros = int(environment.get("WATCHDOG_USEC") or 0)
    except ValueError:
        return None
    return micros / 1e6 if micros > 0 and pid == os.getpid() else None


_MOST_BYTES = 10_000


class Heartbeat:
    """Touches the file and notifies the service manager every few seconds, from a thread, while the loop runs.

    The loop calls `beat` in each round. If it does not for `patience_s`, because it hangs, the thread stops: the file
    gets old and systemd's watchdog restarts the process. Use it as a context manager around the session; `close` may
    be called twice.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every_s: float = 5.0,
        patience_s: float = 60.0,
        manager: ServiceManager | None = None,
    ) -> None:
        self._path = folder / HEARTBEAT_FILE
        self._manager = ServiceManager() if manager is None else manager
        watchdog_s = self._manager.watchdog_s
        # Three beats per watchdog timeout, so that one late beat does not end the process.
        self._every_s = every_s if watchdog_s is None else min(every_s, watchdog_s / 3)
        self._patience_s = patience_s
        self._last = time.monotonic()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Heartbeat":
        self.start()
        return self

    def start(self) -> None:
        """Write the file and begin, if it has not begun. Raises UserError if the file cannot be written."""
        if self._thread is not None:
            return
        try:
            with written_whole(self._path, "w", encoding="utf-8") as file:
                json.dump(this_process()._asdict(), file)
        except OSError as error:
            raise UserError(f"{shown_path(self._path)} cannot be written: {error.strerror}.") from error
        self.beat()
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)
        self._thread.start()
        self._manager.ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def beat(self) -> None:
        """Called once per round of the loop; costs nothing."""
        self._last = time.monotonic()

    def is_beating(self) -> bool:
        """Whether the loop called `beat` within `patience_s`."""
        return time.monotonic() - self._last <= self._patience_s

    def close(self) -> None:
        """Stop touching the file. It stays, and its time is the last sign of life."""
        if self._thread is not None:
            self._manager.stopping()
            self._ends.set()
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        self._show_life()
        while not self._ends.wait(self._every_s):
            self._show_life()

    def _show_life(self) -> None:
        if self.is_beating():
            with contextlib.suppress(OSError):  # a full or missing disk must not end trading
                os.utime(self._path)
            self._manager.alive()


class Pulse(NamedTuple):
    """A heartbeat as read from its file. age_s: seconds since the last beat, by this machine's clock.

    alive: whether the process still runs; None if unknown, for example if it runs on another machine.
    """

    age_s: float
    process: ProcessIdentity
    alive: bool | None

    def in_words(self, *, late_s: float = 60.0) -> str:
        """The state of the process, in words.

        >>> Pulse(3.2, ProcessIdentity("host", 7, None, None), True).in_words()
        'process 7 on host runs; its last heartbeat was 3 s ago'
        """
        who = f"process {self.process.pid} on {self.process.host}"
        ago = f"its last heartbeat was {max(self.age_s, 0.0):,.0f} s ago"
        if self.alive is False:
            return f"{who} is gone; {ago}"
        if self.age_s > late_s:
            return f"{who} hangs; {ago}" if self.alive else f"{who} is gone or hangs; {ago}"
        return f"{who} runs; {ago}"


def read_pulse(folder: Path) -> Pulse | None:
    """The heartbeat of the session in a folder; None if there is none, or the file is invalid."""
    try:
        with open_regular(folder / HEARTBEAT_FILE) as file:
            touched = os.fstat(file.fileno()).st_mtime
            values = json.loads(file.read(_MOST_BYTES))
        process = identity_from(*(values[name] for name in ProcessIdentity._fields))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Pulse(time.time() - touched, process, is_alive(process))
