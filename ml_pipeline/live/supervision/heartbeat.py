"""The heartbeat of a session: a file that is touched while its loop goes round, and how others read it.

systemd hears it as well, if it started the session: by datagrams to the socket that NOTIFY_SOCKET names, as
sd_notify(3) describes.
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
        """Within so many seconds it wants a sign of life, or starts the process anew; None: it does not watch."""

    def ready(self) -> None:
        """The session trades."""
        self._send("READY=1")

    def alive(self) -> None:
        """A sign of life for its watchdog."""
        if self.watchdog_s is not None:
            self._send("WATCHDOG=1")

    def says(self, sentence: str) -> None:
        """A line for `systemctl status`."""
        self._send(f"STATUS={in_one_line(sentence)}")

    def stopping(self) -> None:
        """The session ends."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if self._address is None or not hasattr(socket, "AF_UNIX"):
            return
        # A name that begins with @ is in the abstract namespace, where a zero byte stands for it.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # a manager that does not read must not hold up trading
            sender.connect(address)
            sender.send(text.encode())


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """As WATCHDOG_USEC says, where WATCHDOG_PID names this process or none."""
    try:
        pid = int(environment.get("WATCHDOG_PID") or os.getpid())
        micros = int(environment.get("WATCHDOG_USEC") or 0)
    except ValueError:
        return None
    return micros / 1e6 if micros > 0 and pid == os.getpid() else None


_MOST_BYTES = 10_000


class Heartbeat:
    """Touches the file every few seconds from a thread, and tells the service manager, while the loop shows life.

    The loop calls `beat` each time round. Where it did not for `patience_s`, because it hangs, the thread is silent:
    the file grows old, and systemd's watchdog starts the process anew. As a context manager it begins and ends with
    the session; `close` may be called twice.
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
        # Three signs of life fit into the watchdog's time, so that it does not end a process for a late one.
        self._every_s = every_s if watchdog_s is None else min(every_s, watchdog_s / 3)
        self._patience_s = patience_s
        self._last = time.monotonic()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Heartbeat":
        """Write the file. Raises UserError where it cannot be written."""
        try:
            with written_whole(self._path, "w", encoding="utf-8") as file:
                json.dump(this_process()._asdict(), file)
        except OSError as error:
            raise UserError(f"{shown_path(self._path)} cannot be written: {error.strerror}.") from error
        self.beat()
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)
        self._thread.start()
        self._manager.ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def beat(self) -> None:
        """The loop goes round; costs nothing."""
        self._last = time.monotonic()

    def close(self) -> None:
        """Touch no more. The file stays, and says when the process was last seen."""
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
        if time.monotonic() - self._last <= self._patience_s:
            with contextlib.suppress(OSError):  # a full or missing disk must not end trading
                os.utime(self._path)
            self._manager.alive()


class Pulse(NamedTuple):
    """What a heartbeat tells. age_s: since the loop last showed life, by this machine's clock.

    alive: whether the process still runs; None where that cannot be known from here, as on another machine.
    """

    age_s: float
    process: ProcessIdentity
    alive: bool | None

    def in_words(self, *, late_s: float = 60.0) -> str:
        """How the process is, for people.

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
    """The heartbeat of the session in a folder; None where there is none, or the file holds something else."""
    try:
        with open_regular(folder / HEARTBEAT_FILE) as file:
            touched = os.fstat(file.fileno()).st_mtime
            values = json.loads(file.read(_MOST_BYTES))
        process = identity_from(*(values[name] for name in ProcessIdentity._fields))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Pulse(time.time() - touched, process, is_alive(process))
