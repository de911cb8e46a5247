"""The server of the page: where it listens, and how it ends."""

import contextlib
import socket
import sys
import threading
import time

import httpx
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.server import serve
from ml_pipeline.dashboard.web import access
from tests.dashboard.run_folders import make_run


@pytest.fixture
def root(tmp_path):
    make_run(tmp_path, "a")
    return tmp_path


def test_it_can_be_used_in_a_thread_and_ended_from_another(root):
    opened = []
    thread = threading.Thread(target=lambda: opened.append(serve(root, port=0)))
    thread.start()
    thread.join()
    (server,) = opened
    assert httpx.get(f"{server.url}api/runs", trust_env=False).status_code == 200
    server.close()
    server.close()
    server.wait()
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url, trust_env=False)


def test_where_a_port_is_in_use_the_next_free_one_is_taken(root):
    with serve(root, port=0) as first, serve(root, port=first.port) as second:
        assert (first.moved, second.moved) == (False, True)
        assert first.port < second.port < first.port + 100
        assert httpx.get(f"{second.url}api/runs", trust_env=False).status_code == 200


def test_without_any_free_port_it_is_told(root, monkeypatch):
    def refuse(self, address):
        raise OSError(98, "Address already in use")

    monkeypatch.setattr("ml_pipeline.dashboard.server.errno.EADDRINUSE", 98)
    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(UserError, match=r"Ports 9000 to 9099 of 127\.0\.0\.1 are all in use"):
        serve(root, port=9000)


def test_it_ends_though_a_page_is_open(root):
    server = serve(root, port=0)
    with (
        httpx.Client(trust_env=False, timeout=30) as client,
        client.stream("GET", f"{server.url}api/events") as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        closing = threading.Thread(target=server.close)
        closing.start()
        assert list(lines)  # the stream ends, in place of being cut
        closing.join()
    assert not server._thread.is_alive()


def test_another_address_needs_a_token_which_is_made(root):
    with serve(root, host="0.0.0.0", port=0) as server:
        assert server.token is not None
        assert server.url.endswith(f"?token={server.token}")
        address = f"http://127.0.0.1:{server.port}/api/runs"
        assert httpx.get(address, trust_env=False).status_code == 401
        right = {"authorization": f"Bearer {server.token}"}
        assert httpx.get(address, headers=right, trust_env=False).status_code == 200
        by_name = {**right, "host": f"{socket.gethostname()}:{server.port}"}
        assert httpx.get(address, headers=by_name, trust_env=False).status_code == 200
        assert httpx.get(address, headers={**right, "host": "192.168.1.5"}, trust_env=False).status_code == 200
        assert httpx.get(address, headers={**right, "host": "evil.example"}, trust_env=False).status_code == 403


def test_this_machine_needs_none_unless_one_is_given(root):
    with serve(root, port=0) as server:
        assert (server.token, "token" in server.url) == (None, False)
    with serve(root, port=0, token="with sixteen & more") as server:
        assert server.url.endswith("?token=with%20sixteen%20%26%20more")
        with httpx.Client(trust_env=False) as client:
            assert client.get(server.url).status_code == 200
            assert client.get(f"http://127.0.0.1:{server.port}/api/runs").status_code == 200


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"port": 65536}, "port must be from 0 to 65535"),
        ({"port": -1}, "port must be from 0 to 65535"),
        ({"token": "short"}, "at least 16"),
        ({"token": "sixteen\nor more letters"}, "at least 16"),
        ({"host": "not a host"}, '"not a host" is not an address'),
        ({"host": "192.0.2.1"}, "cannot be served on 192.0.2.1"),
    ],
)
def test_what_cannot_be_served_is_told(root, options, sentence):
    with pytest.raises(UserError, match=sentence):
        serve(root, **{"port": 0, **options})


def test_without_its_extra_it_says_which(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[dashboard\]"'):
        serve(root, port=0)


HALF_SENT = {
    "nothing": b"",
    "half_a_line": b"GET / HT",
    "half_of_the_headers": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
    "half_of_the_body": b"POST /api/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{",
    "the_second_request": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET ",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("sent", HALF_SENT.values(), ids=HALF_SENT)
def test_a_request_that_is_half_sent_is_not_waited_for_long(root, monkeypatch, sent):
    monkeypatch.setattr(access, "REQUEST_S", 0.3)
    with serve(root, port=0) as server, socket.create_connection(("127.0.0.1", server.port)) as held:
        held.settimeout(30)
        held.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            while held.recv(1 << 16):
                pass


@pytest.mark.timeout(60)
def test_a_request_that_comes_byte_by_byte_gets_no_more_time(root, monkeypatch):
    monkeypatch.setattr(access, "REQUEST_S", 0.3)
    with (
        serve(root, port=0) as server,
        socket.create_connection(("127.0.0.1", server.port)) as held,
        contextlib.suppress(ConnectionError),
    ):
        while True:
            held.sendall(b"G")
            time.sleep(0.01)


@pytest.mark.timeout(60)
def test_connections_that_are_held_idle_keep_nobody_out(root, monkeypatch):
    monkeypatch.setattr(access, "MOST_OPEN", 20)
    with contextlib.ExitStack() as held, serve(root, port=0) as server:
        for _ in range(60):
            held.enter_context(socket.create_connection(("127.0.0.1", server.port))).sendall(b"GET ")
        for _ in range(3):
            assert httpx.get(f"{server.url}api/runs", trust_env=False).status_code == 200


@pytest.mark.timeout(60)
def test_a_page_that_is_open_stays_open(root, monkeypatch):
    monkeypatch.setattr(access, "REQUEST_S", 0.2)
    with (
        serve(root, port=0) as server,
        httpx.Client(trust_env=False, timeout=30) as client,
        client.stream("GET", f"{server.url}api/events") as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        time.sleep(0.6)
        make_run(root, "b")
        assert any('"b"' in line for line in lines)
