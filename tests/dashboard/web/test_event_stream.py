import asyncio
import contextlib
import json
import threading

import pytest

from ml_pipeline.dashboard.web import updates
from ml_pipeline.dashboard.web.updates import Choice, EventStream, Position, Updates
from tests.dashboard.run_folders import append, lines_of, make_run, row
from tests.dashboard.study_folders import make_study, study_values, write_study

LOSS = "train/policy_loss"


class Events:
    """The events of one connection, read one after another."""

    def __init__(self, response):
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        self._lines = response.iter_lines()
        self.last_id = None

    def next(self):
        fields = {}
        for line in self._lines:
            if not line and "data" in fields:
                break
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
        self.last_id = fields["id"]
        return json.loads(fields["data"])

    def rows(self, run):
        """The next that tells new rows of a run."""
        while True:
            if run in (message := self.next()).get("rows", {}):
                return message["rows"][run]


@contextlib.contextmanager
def connected(client, *, after="", last_event_id=None, **choice):
    headers = {} if last_event_id is None else {"last-event-id": last_event_id}
    with client.stream("GET", "/api/events", params={**choice, "after": after}, headers=headers) as response:
        yield Events(response)


@pytest.fixture
def root(tmp_path):
    make_run(tmp_path, "a", status="running")
    make_run(tmp_path, "b")
    return tmp_path


def test_first_comes_the_whole_list_and_then_what_changes(served, root):
    _, client = served(root)
    with connected(client) as events:
        first = events.next()
        assert {run["name"] for run in first["runs"]} == set(first["order"]) == {"a", "b"}
        make_run(root, "c", began="2026-01-06T10:00:00+00:00")
        second = events.next()
        assert [run["name"] for run in second["runs"]] == ["c"]
        assert second["order"] == ["a", "c", "b"]
        append(root / "a", [row(6)])
        third = events.next()
        assert [(run["name"], run["global_step"]) for run in third["runs"]] == [("a", 600)]
        assert "order" not in third


def test_a_run_that_is_deleted_is_told(served, root):
    _, client = served(root)
    with connected(client, run=["a", "b"], metric=[LOSS]) as events:
        events.next()
        for path in (root / "b").iterdir():
            path.unlink()
        (root / "b").rmdir()
        while not (message := events.next()).get("removed"):
            pass
        assert message["removed"] == ["b"]


def test_of_a_chosen_run_only_new_rows_of_chosen_metrics_come(served, root):
    _, client = served(root)
    curve = client.get("/api/curves", params={"run": "a", "metric": LOSS}).json()["runs"]["a"]
    version = client.get("/api/runs").json()["position"].split(";")[0]
    position = f"{version};{curve['generation']}.{curve['n_rows']}.{len(curve['names'])}"
    with connected(client, run=["a"], metric=[LOSS], after=position) as events:
        append(root / "a", [row(6), row(7)])
        assert events.rows("a") == {
            "from": 5, "to": 7, "step": [600.0, 700.0], "time": [12.0, 14.0], "metrics": {LOSS: [-0.06, -0.07]},
        }  # fmt: skip


def test_a_torn_line_comes_when_it_is_whole(served, root):
    _, client = served(root)
    with connected(client, run=["a"], metric=[LOSS]) as events:
        assert events.rows("a") == {"reload": True, "names": list(row(1))}
        line = lines_of([row(6)])
        with (root / "a" / "metrics.jsonl").open("a") as file:
            file.write(line[:20])
            file.flush()
            file.write(line[20:])
            file.flush()
            assert events.rows("a")["step"] == [600.0]


def test_a_page_that_comes_back_gets_what_it_missed_and_nothing_twice(served, root):
    _, client = served(root)
    with connected(client, run=["a", "b"], metric=[LOSS]) as events:
        events.rows("a")
        append(root / "a", [row(6)])
        assert events.rows("a")["step"] == [600.0]
        last = events.last_id
    append(root / "a", [row(7)])
    make_run(root, "c")
    with connected(client, run=["a", "b"], metric=[LOSS], last_event_id=last, after="0-0") as events:
        told, steps = set(), []
        while not (told >= {"a", "c"} and steps):
            message = events.next()
            told |= {run["name"] for run in message.get("runs", [])}
            steps += message.get("rows", {}).get("a", {}).get("step", [])
            assert "b" not in message.get("rows", {})
        assert steps == [700.0]
        assert told == {"a", "c"}


@pytest.mark.parametrize("text", ["nonsense", "deadbeef-7;1.5.9", "", "-1;;;", "9" * 500])
def test_a_position_of_another_server_begins_anew(served, root, text):
    _, client = served(root)
    with connected(client, run=["a"], metric=[LOSS], last_event_id=text) as events:
        message = events.next()
        assert len(message["runs"]) == 2
        assert message["rows"]["a"]["reload"]


def test_a_file_that_is_replaced_is_asked_for_anew(served, root):
    _, client = served(root)
    with connected(client, run=["a"], metric=[LOSS]) as events:
        events.rows("a")
        (root / "a" / "metrics.jsonl").write_text(lines_of([row(1)]))
        assert events.rows("a")["reload"]


def test_a_name_that_is_new_is_told(served, root):
    _, client = served(root)
    with connected(client, run=["a"], metric=[LOSS]) as events:
        events.rows("a")
        append(root / "a", [row(6, **{"eval/score": 3.0})])
        assert events.rows("a")["names"][-1] == "eval/score"


def test_a_study_is_told_when_it_changes_and_only_then(served, root):
    folder = make_study(root, "s")
    _, client = served(root)
    with connected(client) as events:
        assert [study["finished"] for study in events.next()["studies"]] == [3]
        append(root / "a", [row(6)])
        assert "studies" not in events.next()
        write_study(folder, study_values(values=(1.0,) * 4))
        message = events.next()
        assert ([study["finished"] for study in message["studies"]], message["runs"]) == ([4], [])


def test_a_folder_that_cannot_be_read_is_told(served, root, monkeypatch):
    from ml_pipeline.config.errors import UserError

    _, client = served(root)
    with connected(client) as events:
        assert events.next()["problem"] is None

        def refuse(root):
            raise UserError("The disk is gone.")

        monkeypatch.setattr(updates, "read_summaries", refuse)
        message = events.next()
        assert (message["problem"], set(message["removed"])) == ("The disk is gone.", {"a", "b"})


def test_nothing_is_looked_at_while_no_page_is_open(served, root):
    server, client = served(root)
    updates = server._updates
    with connected(client) as events:
        events.next()
        assert (updates.pages, updates._task is not None) == (1, True)
    end = threading.Event()
    for _ in range(200):
        if updates.pages == 0:
            break
        end.wait(0.05)
    assert (updates.pages, updates._task) == (0, None)


def test_a_quiet_stream_says_that_it_is_still_there(served, root, monkeypatch):
    monkeypatch.setattr(updates, "HEARTBEAT_S", 0.05)
    _, client = served(root)
    with client.stream("GET", "/api/events") as response:
        assert ": still here" in response.iter_lines() or any(line == ": still here" for line in response.iter_lines())


def test_too_many_pages_are_refused(served, root, monkeypatch):
    from ml_pipeline.dashboard.web import app

    monkeypatch.setattr(app, "_MOST_PAGES", 1)
    _, client = served(root)
    with connected(client) as events:
        events.next()
        answer = client.get("/api/events")
        assert (answer.status_code, "1 pages are open" in answer.json()["error"]) == (503, True)


def test_a_page_that_takes_nothing_is_dropped(root, monkeypatch):
    monkeypatch.setattr(updates, "_SLOWEST_S", 0.05)

    async def forever(*_):
        await asyncio.Event().wait()

    async def run():
        updates = Updates(root)
        started = []

        async def send(message):
            started.append(message["type"])
            if message["type"] == "http.response.body":
                await forever()

        await EventStream(updates, Choice(), Position())({"type": "http"}, forever, send)
        return started, updates.pages

    assert asyncio.run(run()) == (["http.response.start", "http.response.body"], 0)
