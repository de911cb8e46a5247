"""What is asked of a run that goes on: nothing is lost, nonsense is told once, and no question costs no time."""

import json
import os
import subprocess
import sys
import threading

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.requests import REQUEST_FILE, Request, RequestHandling, Requests, write_request


def test_a_request_is_taken_once(tmp_path):
    requests = Requests(tmp_path)
    assert requests.take() is None
    assert write_request(tmp_path, n_workers=4) == Request(n_workers=4)
    assert requests.take() == Request(n_workers=4)
    assert requests.take() is None
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("n_workers", [0, 1, "auto", "dynamic"])
def test_workers_may_be_a_number_or_chosen_by_the_run(tmp_path, n_workers):
    write_request(tmp_path, n_workers=n_workers)
    assert Requests(tmp_path).take() == Request(n_workers=n_workers)


def test_a_second_request_joins_the_first_and_the_later_value_counts(tmp_path):
    write_request(tmp_path, n_workers=4)
    write_request(tmp_path, n_envs=16)
    assert write_request(tmp_path, n_workers=0) == Request(n_workers=0, n_envs=16)
    assert Requests(tmp_path).take() == Request(n_workers=0, n_envs=16)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "must name n_workers or n_envs"),
        ({"n_workers": -1}, "n_workers must be a whole number of at least 0, but got -1"),
        ({"n_workers": True}, "n_workers must be a whole number of at least 0, but got True"),
        ({"n_workers": "many"}, 'n_workers must be a whole number, "auto" or "dynamic", but got "many"'),
        ({"n_envs": 0}, "n_envs must be a whole number of at least 1, but got 0"),
        ({"n_envs": "auto"}, "n_envs must be a whole number"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_leaves_what_was_asked(tmp_path, asked, sentence):
    write_request(tmp_path, n_envs=2)
    with pytest.raises(UserError, match=sentence):
        write_request(tmp_path, **asked)
    assert Requests(tmp_path).take() == Request(n_envs=2)


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match=r"no run folder .*gone"):
        write_request(tmp_path / "gone", n_workers=1)
    assert Requests(tmp_path / "gone").take() is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "JSON object"),
        ("{", "JSON object"),
        ("[1]", "JSON object"),
        ("[" * 60_000, "JSON object"),
        ("\0\xff", "JSON object"),
        ('{"n_worker": 3}', 'asks for "n_worker". Did you mean "n_workers"'),
        ('{"n_workers": 3.5}', "whole number of at least 0, but got 3.5"),
        ('{"n_workers": null}', "names neither"),
        ('{"n_envs": "16"}', "whole number of at least 1"),
        (json.dumps({"n_workers": 1, "more": "x" * 100_000}), "JSON object"),
    ],
)
def test_nonsense_is_told_once_and_removed(tmp_path, text, sentence):
    (tmp_path / REQUEST_FILE).write_bytes(text.encode("latin-1"))
    requests = Requests(tmp_path)
    with pytest.raises(UserError, match=sentence):
        requests.take()
    assert requests.take() is None
    assert os.listdir(tmp_path) == []


def test_a_request_takes_the_place_of_nonsense(tmp_path):
    (tmp_path / REQUEST_FILE).write_text("nonsense")
    assert write_request(tmp_path, n_workers=2) == Request(n_workers=2)
    assert Requests(tmp_path).take() == Request(n_workers=2)


def folder(path):
    path.mkdir()
    (path / "file").touch()


def link(path):
    path.with_name("other").write_text('{"n_workers": 1}')
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize("make", [folder, os.mkfifo, link], ids=["folder", "pipe", "link"])
def test_what_is_no_file_is_told_once_and_neither_opened_nor_waited_for(tmp_path, make):
    make(tmp_path / REQUEST_FILE)
    requests = Requests(tmp_path)
    with pytest.raises(UserError, match="not a regular file"):
        requests.take()
    assert requests.take() is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove everything")
def test_a_request_that_cannot_be_removed_is_told_once(tmp_path):
    write_request(tmp_path, n_workers=1)
    tmp_path.chmod(0o500)
    requests = Requests(tmp_path)
    try:
        with pytest.raises(UserError, match="cannot be taken"):
            requests.take()
        assert requests.take() is None
    finally:
        tmp_path.chmod(0o700)


def test_a_request_that_cannot_be_renamed_is_told_once(tmp_path, monkeypatch):
    write_request(tmp_path, n_workers=1)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    requests = Requests(tmp_path)
    with pytest.raises(UserError, match="cannot be taken: Permission denied"):
        requests.take()
    assert requests.take() is None


def test_nothing_asked_costs_one_stat(tmp_path, monkeypatch):
    requests, seen = Requests(tmp_path), []
    monkeypatch.setattr(os, "lstat", lambda path: (seen.append(path), os.stat(path))[1])
    for name in ("open", "replace", "unlink", "listdir"):
        monkeypatch.setattr(os, name, lambda *_, name=name: pytest.fail(name))
    assert requests.take() is None
    assert seen == [tmp_path / REQUEST_FILE]


def test_each_setting_has_its_handler_and_what_has_none_is_refused(tmp_path):
    said, done = [], []

    def refuse(value):
        raise UserError("There is no room.")

    handling = RequestHandling(tmp_path, said.append, ranks=RankContext())
    handling.handlers["n_workers"] = done.append
    for _ in range(2):
        handling()
    write_request(tmp_path, n_workers=2, n_envs=4)
    for _ in range(2):
        handling()
    assert done == [2]
    assert said == ["The request for n_envs = 4 is refused: this run cannot change it while it trains."]
    handling.handlers["n_envs"] = refuse
    write_request(tmp_path, n_workers=3, n_envs=5)
    handling()
    assert done == [2, 3]
    assert said[1:] == ["The request for n_envs = 5 is refused: There is no room."]
    (tmp_path / REQUEST_FILE).write_text("nonsense")
    for _ in range(2):
        handling()
    assert len(said) == 3


ASK = """
import sys
from pathlib import Path
from ml_pipeline.runs.requests import write_request
print("ready", flush=True)
input()
for number in range(1, 31):
    write_request(Path(sys.argv[1]), **{sys.argv[2]: number})
"""


def test_two_writers_and_a_reader_at_once_lose_nothing(tmp_path):
    writers = [
        subprocess.Popen([sys.executable, "-c", ASK, str(tmp_path), name], stdin=-1, stdout=-1, text=True)
        for name in ("n_workers", "n_envs")
    ]
    requests, seen = Requests(tmp_path), []
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    ended = threading.Thread(target=lambda: [writer.communicate("\n") for writer in writers])
    ended.start()
    while ended.is_alive():
        seen.append(requests.take())
    seen.append(requests.take())
    assert all(writer.wait() == 0 for writer in writers)
    taken = [each for each in seen if each is not None]
    for name in ("n_workers", "n_envs"):
        numbers = [value for each in taken if (value := getattr(each, name)) is not None]
        assert numbers[-1] == 30
        assert numbers == sorted(numbers)
    assert os.listdir(tmp_path) == []


def test_a_request_that_is_taken_while_another_joins_it_is_no_error(tmp_path, monkeypatch):
    write_request(tmp_path, n_envs=8)
    there, taken = os.path.lexists, []

    def there_then_taken(path):
        found = there(path)
        taken.append(Requests(tmp_path).take())
        return found

    monkeypatch.setattr("ml_pipeline.runs.requests.os.path.lexists", there_then_taken)
    write_request(tmp_path, n_workers=2)
    assert taken == [Request(n_envs=8)]
    assert Requests(tmp_path).take() == Request(n_workers=2)
