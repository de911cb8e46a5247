"""Tells systemd that the session is ready, alive or ending, where systemd started it.

A datagram to the socket that NOTIFY_SOCKET names, as sd_notify(3) describes; elsewhere nothing happens.
"""

import contextlib
import os
import socket
from collections.abc import Mapping

from ml_pipeline.config.wording import in_one_line


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
