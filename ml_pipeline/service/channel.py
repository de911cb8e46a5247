"""Requests from commands to the service: JSON over a local socket, with a key that only this user can read.

root/.service/service.json holds the address and the process of the service. Nothing is unpickled. Requests can be
repeated if an answer is lost, because the caller chooses the id of a run.
"""

import contextlib
import json
import multiprocessing
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Client, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.files import open_regular
from ml_pipeline.runtime.process_identity import (
    ProcessIdentity,
    identity_from,
    is_alive,
    new_owned_folder,
    this_process,
)
from ml_pipeline.service.store import SERVICE_FOLDER

ADDRESS_FILE = "service.json"
_SOCKET = "socket"
_LONGEST_PATH_BYTES = 103  # of a socket's path on every system; Linux allows 107
_MOST_BYTES = 1 << 22
_ANSWER_TIMEOUT_S = 60.0
_TRIES = 3
_PAUSE_S = 0.2
_END_S = 2.0

Answer = Callable[[Mapping[str, Any]], Any]


class NoService(UserError):
    """No service works on this root."""


class ServiceChannel:
    """The service's end: answers requests with a function, in one thread per caller. Close it after use."""

    def __init__(self, root: Path, answer: Answer) -> None:
        """answer: maps a request to a JSON value; the caller receives its UserErrors. Raises UserError if no address is
        available, or if the address file is not writable."""
        self._answer = answer
        self._file = root / SERVICE_FOLDER / ADDRESS_FILE
        self._key = secrets.token_bytes(32)
        self._closing = False
        with contextlib.ExitStack() as undo:
            self._listener, address = _listen(root / SERVICE_FOLDER, undo)
            try:
                _write_private(self._file, {"address": address, "key": self._key.hex(), "process": this_process()})
            except OSError as error:
                raise UserError(f"{self._file} cannot be written: {error.strerror}; choose another --root.") from error
            undo.callback(_unlink_ours, self._file, os.stat(self._file))
            self._undo = undo.pop_all()
        self._address = address
        self._thread = threading.Thread(target=self._accept, name="service-channel", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering. May be called twice."""
        if self._closing:
            return
        self._closing = True
        _end_accept(self._listener)
        self._thread.join(_PAUSE_S)
        if self._thread.is_alive():
            with contextlib.suppress(OSError, EOFError):
                Client(_plain(self._address)).close()  # makes accept() return if nothing else did
            self._thread.join(_END_S)  # a daemon thread: it ends with the process at the latest
        with contextlib.suppress(OSError):
            self._undo.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                caller = self._listener.accept()
            except OSError:
                if not self._closing:
                    time.sleep(_PAUSE_S)  # too many open files
                continue
            threading.Thread(target=self._serve, args=(caller,), name="service-caller", daemon=True).start()

    def _serve(self, caller: Any) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError, multiprocessing.AuthenticationError), caller:
            if self._closing:
                return
            deliver_challenge(caller, self._key)
            answer_challenge(caller, self._key)
            request = json.loads(caller.recv_bytes(_MOST_BYTES))
            try:
                reply = {"ok": self._answer(request)}
            except UserError as error:
                reply = {"error": str(error)}
            except Exception as error:  # a bug, or a request of another version
                reply = {"error": f"The service could not do this: {type(error).__name__}: {error}."}
            caller.send_bytes(json.dumps(reply).encode())


def ask_service(root: Path, request: Mapping[str, Any]) -> Any:
    """Send a request to the service of a root and return its answer. Requests must be repeatable: lost ones are resent.

    Raises NoService if no service works on the root, and UserError if the service refuses.
    """
    lost: Exception | None = None
    for _ in range(_TRIES):
        address, key = _address_of(root)
        try:
            with contextlib.closing(_connection(root, address)) as service:
                answer_challenge(service, key)
                deliver_challenge(service, key)
                service.send_bytes(json.dumps(dict(request)).encode())
                if not service.poll(_ANSWER_TIMEOUT_S):
                    raise UserError(f"The service of {root} does not answer; see {root / SERVICE_FOLDER}.")
                reply = json.loads(service.recv_bytes(_MOST_BYTES * 16))
        except (OSError, EOFError, multiprocessing.AuthenticationError) as error:
            lost = error
            time.sleep(_PAUSE_S)
            continue
        if "error" in reply:
            raise UserError(reply["error"])
        return reply["ok"]
    raise NoService(f"The service of {root} cannot be reached ({lost}); start one: ml-pipeline serve --root {root}")


def _connection(root: Path, address: Any) -> Any:
    """Raises OSError if the service does not answer, and NoService if the address is invalid."""
    try:
        return Client(address)
    except (ValueError, TypeError, OverflowError) as error:
        file = root / SERVICE_FOLDER / ADDRESS_FILE
        raise NoService(
            f"{file} names no address of a service ({error}); start one: ml-pipeline serve --root {root}"
        ) from None


def no_service_on(root: Path) -> str:
    """The message if no service works on a root, with the command that starts one."""
    return f"No service works on {root}; start one: ml-pipeline serve --root {root}"


def service_of(root: Path) -> ProcessIdentity | None:
    """The process of the service of a root; None if there is none."""
    try:
        process = identity_from(*_written_in(root / SERVICE_FOLDER / ADDRESS_FILE)["process"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return None if is_alive(process) is False else process


def _address_of(root: Path) -> tuple[Any, bytes]:
    path = root / SERVICE_FOLDER / ADDRESS_FILE
    if service_of(root) is None:
        raise NoService(no_service_on(root))
    try:
        values = _written_in(path)
        address, key = _plain(values["address"]), bytes.fromhex(values["key"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoService(
            f"{path} cannot be read ({error}); only the user who started the service can send requests to it."
        ) from None
    return address, key


def _written_in(path: Path) -> Any:
    with open_regular(path) as file:
        return json.loads(file.read(_MOST_BYTES))


def _listen(folder: Path, undo: contextlib.ExitStack) -> tuple[Listener, Any]:
    """A listener and its address: a pipe on Windows; else a socket in the folder or, if its path is too long or the
    file system has no sockets, in a temporary folder; else a local port."""
    for place in _places(folder, undo):
        try:
            listener = Listener(place, backlog=64)
        except OSError:
            continue
        _keep_file(listener)
        undo.callback(listener.close)
        if isinstance(place, str) and sys.platform != "win32":
            undo.callback(_unlink_ours, Path(place), os.stat(place))
        return listener, listener.address
    raise UserError("The service gets no address: neither a socket nor a local port is available.")


def _keep_file(listener: Listener) -> None:
    """Keep the listener from removing its socket file when it ends: another service may have replaced the file."""
    removal = getattr(getattr(listener, "_listener", None), "_unlink", None)
    if removal is not None:
        removal.cancel()


def _end_accept(listener: Listener) -> None:
    """Make accept() return, even if the socket file is gone and connections are impossible."""
    listening = getattr(getattr(listener, "_listener", None), "_socket", None)
    if listening is not None:
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def _unlink_ours(path: Path, made: os.stat_result) -> None:
    """Remove a file, unless it was replaced."""
    with contextlib.suppress(OSError):
        there = os.stat(path)
        # Compare the time as well: file systems reuse the inode of a removed file.
        if os.path.samestat(there, made) and there.st_mtime_ns == made.st_mtime_ns:
            path.unlink()


def _places(folder: Path, undo: contextlib.ExitStack) -> Iterator[Any]:
    if sys.platform == "win32":
        yield rf"\\.\pipe\ml-pipeline-{secrets.token_hex(16)}"
    else:
        with contextlib.suppress(OSError):
            (folder / _SOCKET).unlink()  # left by a service that was killed
        if _fits(folder / _SOCKET):
            yield str(folder / _SOCKET)
        with contextlib.suppress(OSError):
            short = new_owned_folder("ml-service-")
            undo.callback(shutil.rmtree, short, ignore_errors=True)
            if _fits(short / _SOCKET):
                yield str(short / _SOCKET)
    yield "127.0.0.1", 0


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= _LONGEST_PATH_BYTES


def _plain(address: Any) -> Any:
    """The address as multiprocessing needs it: JSON turns a (host, port) tuple into a list."""
    return tuple(address) if isinstance(address, list | tuple) else address


def _write_private(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file that only this user can read."""
    before = path.with_name(f"{path.name}.private")
    with contextlib.suppress(FileNotFoundError):
        before.unlink()
    descriptor = os.open(before, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        json.dump(values, file)
    os.replace(before, path)
