"""A server on this machine that takes alerts and heartbeats, and misbehaves as told."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Behaviour = Literal["take", "hang", "drop", "redirect", "garbage"] | int


class Receiver:
    """behaviours: for each request one, the last for all others; a number is an HTTP status.

    seen: the bodies that were taken, JSON as data. calls: each request, as "GET /path".
    """

    def __init__(self, behaviours: list[Behaviour]) -> None:
        self.behaviours = behaviours
        self.seen: list[Any] = []
        self.calls: list[str] = []
        self.n_requests = 0
        self.arrived = threading.Semaphore(0)
        self.released = threading.Event()
        self.url = ""

    def waits_for(self, n: int) -> bool:
        """Whether so many more requests arrived, within a minute each."""
        return all(self.arrived.acquire(timeout=60) for _ in range(n))


@contextmanager
def receiving(*behaviours: Behaviour) -> Iterator[Receiver]:
    """A receiver at `url`, for the block."""
    receiver = Receiver([*behaviours] or ["take"])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            behaviour = receiver.behaviours[min(receiver.n_requests, len(receiver.behaviours) - 1)]
            receiver.n_requests += 1
            receiver.calls.append(f"{self.command} {self.path}")
            if behaviour == "take":
                receiver.seen.append(json.loads(data) if data.startswith("{") else data)
            receiver.arrived.release()
            if behaviour == "hang":
                receiver.released.wait(100)
                self.close_connection = True
            elif behaviour == "drop":
                self.close_connection = True
            elif behaviour == "garbage":
                self.wfile.write(b"nonsense\r\n\r\n")
            else:
                self.send_response({"take": 204, "redirect": 302}.get(behaviour, behaviour))
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_GET = do_POST  # noqa: N815 - the name that the library calls

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook/SECRET"
        try:
            yield receiver
        finally:
            receiver.released.set()
            server.shutdown()
            thread.join()
