"""A process of ours that works for this one, and lines of JSON between the two: `Child` here, `serve` in the child.

A child leads a session of its own, so Ctrl-C in the terminal reaches its parent alone, and `kill` ends it together
with the processes that it started. It receives orders on stdin and tells its parent on stdout, one JSON object per
line; what libraries print goes to its stderr. Its stdin closes when its parent ends, however that ends: then the child
stops, and after a time of grace it ends wherever it is.
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
    """What a child told, or its end, which comes after all that it told.

    message: empty at its end. exit_code: None before; -N means killed by signal N.
    """

    child: "Child"
    message: Message
    exit_code: int | None = None


def start_process(
    command: Sequence[str], *, purpose: str, environment: Mapping[str, str] | None = None, **streams: Any
) -> "subprocess.Popen[bytes]":
    """Start a process that leads a session of its own.

    purpose: what it is for, as in the sentence of the error. environment: variables besides those of this process.
    streams: stdin, stdout, stderr and pass_fds of `subprocess.Popen`. Raises UserError if the system starts none.
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
    """Kill a process and, if it leads a group, all others of that. Does nothing if it has ended."""
    with contextlib.suppress(OSError):
        if not hasattr(os, "killpg"):
            os.kill(pid, signal.SIGTERM)  # which nothing outlives there
        elif os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


class Child:
    """A process that runs a module of ours; the module ends with `serve`. Close it: that kills it if it still runs."""

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
        """Start the process, and send it its first order, if there is one.

        purpose, environment: as of `start_process`. log: takes its stderr; None: that of this process. pass_fds:
        descriptors that it has besides. on_event: called after each event, from another thread. into: takes the events,
        if one queue is to hold those of several children. Raises UserError if the system starts none.
        """
        command = [sys.executable, "-m", module]
        pipe = subprocess.PIPE
        self._process = start_process(
            command, purpose=purpose, environment=environment, stdin=pipe, stdout=pipe, stderr=log, pass_fds=pass_fds
        )
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue() if into is None else into
        self._on_event = on_event
        self._has_ended = False  # as far as its events were read
        self._reader = threading.Thread(target=self._read, name=f"{module} {self.pid}", daemon=True)
        self._reader.start()
        if order is not None:
            self.send(order)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it goes on; -N: killed by signal N."""
        return self._process.poll()

    def send(self, order: Message) -> None:
        """Send a further order. Does nothing if the child has ended."""
        self._write({"order": order, "sys_path": sys.path})

    def stop(self) -> None:
        """Ask it to save and end. Waits for nothing."""
        self._write({"stop": True})

    def end_orders(self) -> None:
        """Let it read what was sent, and then what it reads at the end of this process: that there is no more."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # of an order that was not read
            self._process.stdin.close()

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None if none comes for so long, and after that of its end. For a queue of its own."""
        if self._has_ended:
            return None
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._has_ended = event.exit_code is not None
        return event

    def events(self) -> Iterator[Message]:
        """What it tells, until its end."""
        while (event := self.next_event()) is not None and event.exit_code is None:
            yield event.message

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for its end, and return the exit code; None if it goes on for so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def kill(self) -> None:
        """End it at once, with all processes of its session. Waits for nothing."""
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
    """The other end, in the child: orders come from it, and it is told what the child does."""

    def __init__(self, *, grace_s: float) -> None:
        orders, self._answers = take_streams()
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._orders: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._is_gone: bool | None = None  # once a stop was asked for: whether by the end of the parent
        self._on_stop: Callable[[bool], None] = lambda is_gone: None
        threading.Thread(target=self._read, args=(orders,), name="orders", daemon=True).start()

    def next_order(self) -> Message:
        """Wait for an order; the process ends here if the parent ends before it sends one."""
        message = self._orders.get()
        if message is None:
            os._exit(ABANDONED)
        sys.path[:] = message["sys_path"]  # so that it finds the user's modules
        return dict(message["order"])

    def tell(self, **message: object) -> None:
        """Tell the parent; silent if it has ended."""
        line = _line_of(message)
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._answers.write(line)
            self._answers.flush()

    def on_stop(self, on_stop: Callable[[bool], None]) -> None:
        """Call a function, from another thread, when the child is to save and end.

        Its argument is whether the parent has ended. It is called for a request of the parent, and again for its end.
        """
        self._on_stop = on_stop
        if self._is_gone is not None:
            on_stop(self._is_gone)

    def _read(self, orders: BinaryIO) -> None:
        for line in orders:
            message = _message_in(line)
            if message is None:
                continue  # half a line of a parent that was killed
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
    """Call `main(parent)`, which reads its orders, and end this process with the exit code that it returns.

    grace_s: from the end of the parent to that of this process, wherever it is then. If `main` raises, the traceback
    goes to stderr, and the code is 1. Threads, and whatever libraries do at an exit, do not delay the end.
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
    """Take stdin and stdout for talking to the parent.

    From then on stdin is empty for others, and what they print on stdout goes to stderr.
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
    """The JSON object in a line; None if there is none, as in half a line of a process that was killed."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
