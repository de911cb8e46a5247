"""Child processes that exchange lines of JSON with this process: `Child` in the parent, `serve` in the child.

A child leads its own session, so Ctrl-C in the terminal reaches only its parent, and `kill` ends it together with the
processes that it started. It receives orders on stdin and sends messages on stdout, one JSON object per line; output of
libraries goes to its stderr. Its stdin closes when the parent ends for any reason: the child then stops, and exits
after a grace period at the latest.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, BinaryIO, NamedTuple, NoReturn, Self

from ml_pipeline.config.errors import UserError

Message = Mapping[str, Any]

ABANDONED = 1
"""Exit code of a child whose parent has ended."""


class Event(NamedTuple):
    """A message of a child, or its end, which comes after all messages.

    message: empty at the end. exit_code: None before the end; -N means killed by signal N.
    """

    child: "Child"
    message: Message
    exit_code: int | None = None


def start_process(
    command: Sequence[str], *, purpose: str, environment: Mapping[str, str] | None = None, **streams: Any
) -> "subprocess.Popen[bytes]":
    """Start a process that leads its own session.

    purpose: for the error message. environment: variables in addition to those of this process. streams: stdin, stdout,
    stderr and pass_fds of `subprocess.Popen`. Raises UserError if the system cannot start a process.
    """
    own_session: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        own_session = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    variables = None if environment is None else {**os.environ, **environment}
    try:
        return subprocess.Popen(command, env=variables, **streams, **own_session)
    except OSError as error:
        raise UserError(f"No process can be started for {purpose}: {error.strerror}.") from error


def kill_group(pid: int) -> None:
    """Kill a process and, if it leads a process group, the whole group. Does nothing if it has ended."""
    with contextlib.suppress(OSError):
        if not hasattr(os, "killpg"):
            os.kill(pid, signal.SIGTERM)  # on Windows, this kills
        elif os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


class Child:
    """A process that runs a module which ends with `serve`. Closing it kills the process if it still runs."""

    def __init__(
        self,
        module: str,
        order: Message | None = None,
        *,
        purpose: str,
        environment: Mapping[str, str] | None = None,
        log: IO[Any] | None = None,
        pass_fds: Sequence[int] = (),
        on_event: Callable[[], None] = lambda: None,
        into: "queue.SimpleQueue[Event] | None" = None,
    ) -> None:
        """Start the process, and send its first order, if there is one.

        purpose, environment: as in `start_process`. log: file for its stderr; None: stderr of this process. pass_fds:
        additional descriptors. on_event: called after each event, from another thread. into: a queue for the events of
        several children. Raises UserError if the system cannot start a process.
        """
        command = [sys.executable, "-m", module]
        pipe = subprocess.PIPE
        self._process = start_process(
            command, purpose=purpose, environment=environment, stdin=pipe, stdout=pipe, stderr=log, pass_fds=pass_fds
        )
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue() if into is None else into
        self._on_event = on_event
        self._has_ended = False  # True once the event of its end was read
        self._reader = threading.Thread(target=self._read, name=f"{module} {self.pid}", daemon=True)
        self._reader.start()
        if order is not None:
            self.send(order)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N: killed by signal N."""
        return self._process.poll()

    def send(self, order: Message) -> None:
        """Send another order. Does nothing if the child has ended."""
        self._write({"order": order, "sys_path": sys.path})

    def stop(self) -> None:
        """Ask it to save and end. Does not wait."""
        self._write({"stop": True})

    def end_orders(self) -> None:
        """Close its stdin, as when this process ends; it still reads orders that were sent."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # an order was not read
            self._process.stdin.close()

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None after the timeout, and after the event of its end. Not for use with `into`."""
        if self._has_ended:
            return None
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._has_ended = event.exit_code is not None
        return event

    def events(self) -> Iterator[Message]:
        """Its messages, until its end."""
        while (event := self.next_event()) is not None and event.exit_code is None:
            yield event.message

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end, and return the exit code; None after the timeout."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def kill(self) -> None:
        """Kill it and all processes of its session. Does not wait."""
        if self.exit_code is None:
            kill_group(self.pid)

    def close(self) -> None:
        """Kill it, and wait until it is gone. May be called twice."""
        self.kill()
        self._process.wait()
        self._reader.join()
        self.end_orders()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = _message_in(line)
            if message is not None:
                self._put(Event(self, message))
        self._put(Event(self, {}, self._process.wait()))

    def _put(self, event: Event) -> None:
        self._events.put(event)
        self._on_event()

    def _write(self, message: Message) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            self._process.stdin.write(_line_of(message))
            self._process.stdin.flush()


class Parent:
    """The child's end: receives orders from the parent, and sends it messages."""

    def __init__(self, *, grace_s: float) -> None:
        orders, self._answers = take_streams()
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._is_gone: bool | None = None  # after a stop: True if the parent has ended, False if it sent a request
        self._on_stop: Callable[[bool], None] = lambda is_gone: None
        threading.Thread(target=self._read, args=(orders,), name="orders", daemon=True).start()

    def next_order(self) -> Message:
        """Wait for an order. If the parent ends first, this process exits."""
        message = self._orders.get()
        if message is None:
            os._exit(ABANDONED)
        sys.path[:] = message["sys_path"]  # to find the user's modules
        return dict(message["order"])

    def tell(self, **message: object) -> None:
        """Send the parent a message. Does nothing if it has ended."""
        line = _line_of(message)
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._answers.write(line)
            self._answers.flush()

    def on_stop(self, on_stop: Callable[[bool], None]) -> None:
        """Register a function that is called, from another thread, when the child must save and end.

        Its argument is True if the parent has ended. It is called for a request of the parent, and again for its end.
        """
        self._on_stop = on_stop
        if self._is_gone is not None:
            on_stop(self._is_gone)

    def _read(self, orders: BinaryIO) -> None:
        for line in orders:
            message = _message_in(line)
            if message is None:
                continue  # an incomplete line of a killed parent
            if "stop" in message:
                self._stop(is_gone=False)
            else:
                self._orders.put(message)
        self._orders.put(None)
        self._stop(is_gone=True)
        time.sleep(self._grace_s)
        os._exit(ABANDONED)

    def _stop(self, *, is_gone: bool) -> None:
        self._is_gone = is_gone
        self._on_stop(is_gone)


def serve(main: Callable[[Parent], int], *, grace_s: float = 0.0) -> NoReturn:
    """Call `main(parent)`, which reads orders, and exit with the code that it returns.

    grace_s: seconds after the parent's end until this process exits, whatever it does. If `main` raises, the traceback
    goes to stderr, and the code is 1. Threads and exit handlers of libraries do not delay the exit.
    """
    parent = Parent(grace_s=grace_s)
    code = 1
    try:
        code = main(parent)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return stdin and stdout for communication with the parent.

    For all other code, stdin is then empty, and output to stdout goes to stderr.
    """
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return orders, answers


def _line_of(message: Message) -> bytes:
    return json.dumps(message, default=str).encode() + b"\n"


def _message_in(line: bytes) -> Message | None:
    """The JSON object in a line; None if there is none, as in an incomplete line of a killed process."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
