"""Serve the dashboard of a folder of runs from a thread, with controls if the training service serves it."""

import contextlib
import errno
import secrets
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.dashboard.curves.metrics_columns import load_table_reader

if TYPE_CHECKING:
    import uvicorn

    from ml_pipeline.dashboard.web.app import Controls

HOST, PORT = "127.0.0.1", 8765
_SHORTEST_TOKEN = 16
_PORTS_TRIED = 100
_START_S, _END_S, _LOOK_S = 30.0, 5.0, 0.1


class DashboardServer:
    """A server that runs in a thread until it is closed; a context manager.

    url: the address to open, including the token. port: the port in use. moved: True if the requested port was in use.
    token: None if every user of this machine may read.
    """

    def __init__(
        self, root: Path, *, sessions: Path | None, controls: "Controls | None", host: str, port: int, token: str | None
    ) -> None:
        uvicorn, access_module, make_app = _web()
        if token is None and not access_module.is_loopback(host):
            token = secrets.token_urlsafe(24)
        self.token = token
        self._loop: Any = None
        self._socket = _free_socket(host, port)
        try:
            self.port: int = self._socket.getsockname()[1]
            self.moved = bool(port) and self.port != port
            self.url = _url(host, self.port, token)
            access = access_module.Access(host, self.port, token)
            app, self._updates = make_app(root, access, controls, sessions=sessions)
            self._server = _server(uvicorn, app, access_module.LimitedConnection)
            self._thread = threading.Thread(target=self._serve, name="dashboard", daemon=True)
            self._thread.start()
            self._wait_for_start()
        except BaseException:
            self._socket.close()
            raise

    def wait(self) -> None:
        """Wait until the server ends."""
        # Short waits: a signal that another thread received is handled only when this thread wakes up.
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)

    def close(self) -> None:
        """End the server, including open pages; may be called twice."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._updates.close)
        self._server.should_exit = True
        self._thread.join(_END_S)
        self._socket.close()

    def __enter__(self) -> "DashboardServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        import asyncio

        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())

    def _wait_for_start(self) -> None:
        end = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > end:
                raise RuntimeError("The server of the dashboard did not start.")
            time.sleep(0.005)


def serve(
    root: Path,
    *,
    sessions: Path | None = None,
    controls: "Controls | None" = None,
    host: str = HOST,
    port: int = PORT,
    token: str | None = None,
) -> DashboardServer:
    """Serve the dashboard of the runs below `root`; returns once the page can be opened.

    sessions: the folder of trading sessions; None: the same folder. controls: object that stops, resumes and scales
    runs; None shows no buttons. port: the first to try; if it is in use, the next free port; 0: any port. token:
    password of at least 16 characters; None creates one if `host` is reachable from other machines. May be called in
    any thread; handles no signals.
    Raises UserError if the extra "dashboard" is missing, or the address is not available.
    """
    if not 0 <= port <= 65535:
        raise UserError(f"port must be from 0 to 65535, but got {port}.")
    if token is not None and (len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(
            f"token must have at least {_SHORTEST_TOKEN} letters, digits or signs; leave it out to get one."
        )
    return DashboardServer(root, sessions=sessions, controls=controls, host=host, port=port, token=token)


def _web() -> tuple[Any, Any, Any]:
    try:
        import uvicorn

        from ml_pipeline.dashboard.web import access
        from ml_pipeline.dashboard.web.app import make_app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise UserError(f"The page needs {error.name}, which is not installed: {install_extra('dashboard')}") from error
    load_table_reader()  # not in a thread: the process might end during the import
    return uvicorn, access, make_app


def _server(uvicorn: Any, app: Any, connection: Any) -> "uvicorn.Server":
    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            limit_concurrency=500,
            http=connection,
            ws="none",
        )
    )


def _free_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on the port, or on the next free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f'"{host}" is not an address of this machine: {error}.') from error
    last = min(port + _PORTS_TRIED, 65536) if port else 1
    for each in range(port, last):
        found = socket.socket(family, kind, protocol)
        if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((address[0], each, *address[2:]))
            found.listen(128)
        except OSError as error:
            found.close()
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or (error.errno == errno.EACCES and each >= 1024):
                raise UserError(f"The page cannot be served on {host}:{each}: {error.strerror}.") from error
            continue
        return found
    raise UserError(f"Ports {port} to {last - 1} of {host} are all in use; choose another with --port.")


def _url(host: str, port: int, token: str | None) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/" + (f"?token={quote(token, safe='')}" if token is not None else "")
