"""Commands reach the service of their root, and nobody else's requests are answered."""

import json
import shutil
import stat
import sys
import threading
from contextlib import closing, suppress
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.service import channel as module
from ml_pipeline.service.channel import NoService, ServiceChannel, ask_service, service_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="looks at sockets and modes of files")


@pytest.fixture
def root(tmp_path):
    (tmp_path / ".service").mkdir()
    return tmp_path


def answer(request):
    if request["do"] == "refuse":
        raise UserError("No.")
    if request["do"] == "break":
        raise KeyError("x")
    return request["do"].upper()


def test_a_request_is_answered_and_a_refusal_told(root):
    with closing(ServiceChannel(root, answer)):
        assert ask_service(root, {"do": "this"}) == "THIS"
        with pytest.raises(UserError, match=r"^No\.$"):
            ask_service(root, {"do": "refuse"})
        with pytest.raises(UserError, match="could not do this: KeyError: 'x'"):
            ask_service(root, {"do": "break"})
        assert ask_service(root, {"do": "still here"}) == "STILL HERE"


def test_without_a_service_a_sentence_says_how_to_start_one(root):
    for _ in range(2):
        assert service_of(root) is None
        with pytest.raises(NoService, match=f"No service works on {root}; start one: ml-pipeline serve --root {root}"):
            ask_service(root, {"do": "this"})
        ServiceChannel(root, answer).close()  # its address goes with it


@pytest.mark.parametrize(
    "changes",
    [
        {"process": ["h", 1, 5, 5]},
        *({"process": each} for each in (["h", "x", None, None], ["h", 10**30, "a/1", None], 5, "abcd", [])),
        *(
            {"address": each}
            for each in (5, [5], None, {}, "", "\0", "\ud800", ["127.0.0.1", 10**9], ["127.0.0.1", "x"])
        ),
        *({"key": each} for each in (5, "zz", None)),
        None,
        5,
        [],
    ],
    ids=lambda changes: f"{changes!a}"[:40],
)
def test_an_address_file_that_is_none_is_one_sentence(root, monkeypatch, changes):
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    good = {"address": str(root / "gone"), "key": "00" * 32, "process": this_process()}
    values = {**good, **changes} if isinstance(changes, dict) else changes
    (root / ".service" / module.ADDRESS_FILE).write_text(json.dumps(values))
    with pytest.raises(NoService, match=r"start one: ml-pipeline serve|only the user who started the service"):
        ask_service(root, {"do": "list"})


def test_only_its_user_can_read_the_key(root):
    with closing(ServiceChannel(root, answer)):
        assert stat.S_IMODE((root / ".service" / "service.json").stat().st_mode) == 0o600


def test_a_caller_without_the_key_is_not_answered(root):
    asked = []
    with closing(ServiceChannel(root, asked.append)):
        path = root / ".service" / "service.json"
        values = json.loads(path.read_text())
        path.write_text(json.dumps({**values, "key": "00" * 32}))
        with pytest.raises(NoService, match="cannot be reached"):
            ask_service(root, {"do": "this"})
    assert asked == []


def test_a_caller_that_says_nothing_keeps_nobody_waiting(root):
    with closing(ServiceChannel(root, answer)):
        address = json.loads((root / ".service" / "service.json").read_text())["address"]
        silent = [Client(address) for _ in range(3)]
        assert ask_service(root, {"do": "this"}) == "THIS"
        for each in silent:
            each.close()


def test_what_is_no_request_is_not_answered(root):
    with closing(ServiceChannel(root, answer)):
        address = json.loads((root / ".service" / "service.json").read_text())["address"]
        with suppress(OSError, EOFError), Client(address) as caller:
            caller.send_bytes(b"\x80\x04nonsense")
        assert ask_service(root, {"do": "this"}) == "THIS"


@pytest.mark.parametrize("shortest", [0, 60])
def test_a_long_path_has_its_socket_elsewhere(shortest, tmp_path, monkeypatch):
    """In TMPDIR or, where that is too long as well, at a port of this machine."""
    monkeypatch.setattr(module, "_LONGEST_PATH_BYTES", shortest)
    root = tmp_path / ("long" * 20)
    (root / ".service").mkdir(parents=True)
    with closing(ServiceChannel(root, answer)):
        assert ask_service(root, {"do": "this"}) == "THIS"
        address = json.loads((root / ".service" / "service.json").read_text())["address"]
        assert not str(address).startswith(str(root))


def test_an_answer_that_is_lost_is_asked_for_again(root, monkeypatch):
    asked = []

    def lost_once(request):
        asked.append(request)
        if len(asked) == 1:
            raise OSError("the connection broke")  # _serve then ends without an answer
        return "there"

    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    usual = ServiceChannel._serve

    def serve(self, caller):
        if not asked:
            asked.append(None)
            caller.close()
            return
        usual(self, caller)

    monkeypatch.setattr(ServiceChannel, "_serve", serve)
    with closing(ServiceChannel(root, lost_once)):
        assert ask_service(root, {"do": "this"}) == "there"


def test_many_callers_at_once_are_all_answered(root):
    got = []
    with closing(ServiceChannel(root, answer)):
        threads = [
            threading.Thread(target=lambda i=i: got.append(ask_service(root, {"do": f"x{i}"}))) for i in range(20)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert sorted(got) == sorted(f"X{i}" for i in range(20))


@pytest.mark.parametrize("what", ["socket", "folder"])
def test_it_ends_though_its_socket_is_gone(what, root):
    channel = ServiceChannel(root, answer)
    if what == "socket":
        Path(channel._address).unlink()  # not in the root where the path of a temporary folder is long
    else:
        shutil.rmtree(root)
    closing_it = threading.Thread(target=channel.close, daemon=True)
    closing_it.start()
    closing_it.join(20)
    assert not closing_it.is_alive()
    assert not channel._thread.is_alive()


def test_what_another_service_put_in_place_of_its_files_stays(root):
    with closing(ServiceChannel(root, answer)):
        shutil.rmtree(root / ".service")
        (root / ".service").mkdir()
        other = ServiceChannel(root, answer)
    with closing(other):
        assert ask_service(root, {"do": "this"}) == "THIS"
    assert [*(root / ".service").iterdir()] == []
