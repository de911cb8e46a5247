import json
import os
import re
import sys
from itertools import pairwise

import numpy as np
import pytest

from ml_pipeline.dashboard.server import serve
from tests.dashboard.run_folders import append, lines_of, make_run, row
from tests.dashboard.session_folders import make_session
from tests.dashboard.study_folders import make_study
from tests.dashboard.test_run_files import OUTSIDE


@pytest.fixture
def root(tmp_path):
    make_run(tmp_path / "runs", "a", seed=1)
    make_run(tmp_path / "runs", "b", seed=2, status="failed", reason="Worker 1 died.", n_rows=3)
    return tmp_path / "runs"


@pytest.fixture
def client(served, root):
    return served(root)[1]


def get(client, path, status=200, **parameters):
    answer = client.get(path, params=parameters)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def unchanged(served_once, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "a")
    make_run(root, "b")
    return served_once(root)[1]


# What is shown


def test_the_list_tells_each_run(client):
    found = {run["name"]: run for run in get(client, "/api/runs")["runs"]}
    assert found.keys() == {"a", "b"}
    assert (found["b"]["status"], found["b"]["reason"]) == ("failed", "Worker 1 died.")
    assert (found["a"]["progress"], found["a"]["seed"]) == (0.5, 1)


def test_an_empty_folder_has_no_runs(served, tmp_path):
    assert get(served(tmp_path)[1], "/api/runs")["runs"] == []


def test_two_hundred_runs_are_listed(served, tmp_path):
    for i in range(200):
        make_run(tmp_path, f"run-{i}", n_rows=1)
    _, client = served(tmp_path)
    assert len(get(client, "/api/runs")["runs"]) == 200


def test_metrics_are_named(client):
    names = get(client, "/api/metrics", run=["a", "b"])["names"]
    assert names["a"] == list(row(1)) == names["b"]


def test_curves_of_several_runs_come_at_once(client):
    found = get(client, "/api/curves", run=["a", "b"], metric=["train/policy_loss", "nothing"])["runs"]
    assert found["b"]["metrics"] == {
        "train/policy_loss": {"x": [100.0, 200.0, 300.0], "y": [-0.01, -0.02, -0.03], "n_points": 3}
    }
    assert found["a"]["n_rows"] == 5
    by_time = get(client, "/api/curves", run="a", metric="train/policy_loss", axis="time")["runs"]["a"]
    assert by_time["metrics"]["train/policy_loss"]["x"] == [2.0, 4.0, 6.0, 8.0, 10.0]


def test_100_000_points_come_as_their_smallest_and_largest_values(served, tmp_path):
    y = np.random.default_rng(5).normal(size=100_000).cumsum()
    make_run(tmp_path, "long", rows=[{"time/global_step": i + 1, "y": value} for i, value in enumerate(y.tolist())])
    _, client = served(tmp_path)
    found = get(client, "/api/curves", run="long", metric="y", width=500)["runs"]["long"]["metrics"]["y"]
    assert found["n_points"] == 100_000
    assert len(found["x"]) <= 1002
    drawn_x, drawn_y = np.array(found["x"]), np.array(found["y"])
    edges = np.linspace(1, 100_000, 501)
    for i, (left, right) in enumerate(pairwise(edges)):
        last = i == 499
        here = y[int(np.ceil(left)) - 1 : int(np.floor(right)) if last else int(np.ceil(right)) - 1]
        drawn = drawn_y[(drawn_x >= left) & ((drawn_x <= right) if last else (drawn_x < right))]
        assert (drawn.min(), drawn.max()) == (here.min(), here.max())
    zoomed = get(client, "/api/curves", run="long", metric="y", width=500, low=500, high=700)
    part = zoomed["runs"]["long"]["metrics"]["y"]
    assert (part["x"], part["y"]) == (list(range(499, 702)), y[498:701].tolist())


def test_a_smoothed_curve_comes_beside_the_raw_one(client):
    found = get(client, "/api/curves", run="a", metric="rollout/mean_return_100", smoothing=0.5)
    curve = found["runs"]["a"]["metrics"]["rollout/mean_return_100"]
    assert curve["y"] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert curve["smooth"]["y"][:2] == pytest.approx([1.0, (0.25 * 1 + 0.5 * 2) / 0.75])


def test_where_the_time_went_comes_by_stage(client):
    spent = get(client, "/api/time", run=["a"])["runs"]["a"]
    assert spent["total"]["time/stepping_s"] == 5.0
    assert spent["stages"]["time/acting_s"] == [0.5] * 5


def test_settings_stand_side_by_side(client):
    table = get(client, "/api/settings", run=["a", "b"])
    assert {each["name"]: each["values"] for each in table["rows"] if each["differs"]} == {"seed": ["1", "2"]}


def test_the_settings_of_one_run_stand_beside_the_defaults(client):
    rows = {each["name"]: each for each in get(client, "/api/settings", run="a")["rows"]}
    differing = {name: (each["values"], each["default"]) for name, each in rows.items() if each["differs"]}
    assert differing == {
        "env_id": (["CartPole-v1"], "none"),
        "n_envs": (["2"], "1"),
        "n_steps": (["50"], "256"),
        "total_timesteps": (["1000"], "none"),
        "seed": (["1"], "0"),
    }


def test_figures_that_no_page_can_draw_are_left_out(client, root):
    (root / "a" / "evaluation.json").write_text('{"a": 1' + "0" * 400 + ', "b": 1e999, "c": [1], "d": true, "e": 2.5}')
    assert get(client, "/api/evaluation", run="a")["rows"] == [{"name": "e", "is_share": False, "values": [2.5]}]


def test_a_setting_that_cannot_be_written_is_told(client, root):
    (root / "a" / "config.yaml").write_text("seed: 1" + "0" * 5000)
    assert "config.yaml is not valid YAML: Exceeds the limit" in get(client, "/api/settings", run="a")["notes"]["a"]


def test_a_text_that_utf8_cannot_write_is_shown_by_its_numbers(client, root):
    state = json.loads((root / "a" / "state.json").read_text())
    (root / "a" / "state.json").write_text(json.dumps({**state, "reason": "\ud800 <b>"}))
    assert {run["name"]: run["reason"] for run in get(client, "/api/runs")["runs"]}["a"] == "\\ud800 <b>"


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of files that are not UTF-8")
def test_a_folder_whose_name_is_not_utf8_is_listed(served, tmp_path):
    root = tmp_path / "r\udcff"
    make_run(root, "good")
    make_run(root, "bad\udcff")
    _, client = served(root)
    assert {run["name"] for run in get(client, "/api/runs")["runs"]} == {"good", "bad\\udcff"}
    assert client.get("/").status_code == 200
    assert "has no run" in get(client, "/api/log", 404, run="bad\\udcff")["error"]


def test_the_figures_of_evaluations_stand_side_by_side(client, root):
    (root / "a" / "evaluation.json").write_text('{"mean_return": 20.0, "returns": [20.0]}')
    (root / "b" / "evaluation.json").write_text(
        '{"fee": 1, "agent": {"total_return": 0.1, "sharpe": NaN}, "random": {"total_return": 0}}'
    )
    (root / "a" / "report.html").write_text("<p>")
    found = get(client, "/api/evaluation", run=["a", "b"])
    assert found["reports"] == ["a"]
    assert {each["name"]: each["values"] for each in found["rows"]} == {
        "Mean return": [20.0, None], "Total return": [None, 0.1], "Total return of random": [None, 0],
    }  # fmt: skip


def test_figures_are_named_as_the_report_of_trading_does():
    from ml_pipeline.dashboard import run_details
    from ml_pipeline.trading.evaluation.report import _ROWS

    for name, title, factor, *_ in _ROWS:
        assert (run_details._SHARES if factor == 100 else run_details._TITLES)[name] == title


def test_logs_are_read_and_followed(client, root):
    (root / "b" / "run.log").write_text("began\n")
    (root / "b" / "output.log").write_text("Traceback\n")
    first = get(client, "/api/log", run="b")
    assert (first["name"], first["text"]) == ("run.log", "began\n")
    with (root / "b" / "run.log").open("a") as file:
        file.write("failed\n")
    assert get(client, "/api/log", run="b", after=first["end"])["text"] == "failed\n"
    assert get(client, "/api/log", run="b", file="output")["text"] == "Traceback\n"
    assert get(client, "/api/log", run="a")["text"] == ""


def test_a_report_runs_as_a_site_of_its_own_without_a_network(client, root):
    (root / "a" / "report.html").write_text("<script>1</script>")
    answer = client.get("/report", params={"run": "a", "framed": "1"}, follow_redirects=True)
    assert answer.text == "<script>1</script>"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policy
    assert "http" not in policy
    assert client.get("/report", params={"run": "b"}).status_code == 404


def test_what_grows_is_read_further_and_what_was_cut_anew(client, root):
    def steps():
        found = get(client, "/api/curves", run="a", metric="train/policy_loss")["runs"]["a"]
        return found["generation"], found["metrics"]["train/policy_loss"]["x"]

    generation, _ = steps()
    append(root / "a", [row(6)])
    assert steps() == (generation, [100.0, 200.0, 300.0, 400.0, 500.0, 600.0])
    (root / "a" / "metrics.jsonl").write_text(lines_of([row(1)]))
    assert steps()[1] == [100.0]
    assert steps()[0] != generation


# Studies


@pytest.fixture
def study_root(tmp_path):
    make_study(tmp_path / "runs", "s", n_runs=2)
    make_run(tmp_path / "runs", "mine")
    return tmp_path / "runs"


def test_studies_come_with_the_list_and_their_trials_are_told_as_such(served, study_root):
    found = get(served(study_root)[1], "/api/runs")
    assert [(each["name"], each["status"], each["progress"]) for each in found["studies"]] == [("s", "running", 0.3)]
    assert {run["name"]: run["study"] for run in found["runs"]} == {
        "mine": None,
        "s/trial-0000": "s",
        "s/trial-0001": "s",
    }


def test_a_study_is_told_with_its_trials(served, study_root):
    found = get(served(study_root)[1], "/api/study", study="s")
    assert [each["run"] for each in found["trials"]] == [f"s/trial-000{i}" for i in range(3)]
    assert [row[3] for row in found["history"]] == [1.0, 3.0, 3.0]


def test_the_use_of_the_machine_is_told(unchanged):
    use = get(unchanged, "/api/machine")
    assert use["n_cores"] >= 1
    assert 0.0 <= use["cpu_percent"] <= 100.0


def test_the_report_of_a_study_runs_as_a_site_of_its_own(served, study_root):
    _, client = served(study_root)
    assert client.get("/study-report", params={"study": "s"}).status_code == 404
    (study_root / "s" / "report.html").write_text("<script>1</script>")
    answer = client.get("/study-report", params={"study": "s", "framed": "1"}, follow_redirects=True)
    assert answer.text == "<script>1</script>"
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    assert get(client, "/api/runs")["studies"][0]["has_report"]


@pytest.mark.parametrize("path", ["/api/study", "/study-report"])
def test_no_name_of_a_study_leaves_the_folder_of_runs(served, study_root, tmp_path, path):
    make_study(tmp_path, "secret")
    (tmp_path / "secret" / "report.html").write_text("secret")
    (study_root / "s" / "report.html").symlink_to(tmp_path / "secret" / "report.html")
    (study_root / "out").symlink_to(tmp_path / "secret")
    _, client = served(study_root)
    for name in (*OUTSIDE[:-1], "out", "mine", "s/trial-0000"):
        answer = client.get(path, params={"study": name})
        assert answer.status_code == 404, answer.text
        assert "has no study" in answer.json()["error"]
    assert client.get("/study-report", params={"study": "s"}).status_code == 404
    assert client.get(path).status_code == 400


def test_a_broken_study_is_told_in_a_sentence(served, study_root):
    (study_root / "s" / "study.json").write_text("{")
    _, client = served(study_root)
    assert get(client, "/api/runs")["studies"][0]["status"] == "broken"
    assert "study.json cannot be read" in get(client, "/api/study", 400, study="s")["error"]


# The page itself


def test_the_page_names_what_it_shows_escaped(served, tmp_path):
    root = tmp_path / "<b>&\"'"
    root.mkdir()
    text = served(root)[1].get("/").text
    assert "&lt;b&gt;&amp;&quot;&#x27;" in text
    assert "<b>" not in text
    assert "{{" not in text


def test_every_file_that_the_page_names_is_there(client):
    names = re.findall(r'(?:src|href)="(/[^"]+)"', client.get("/").text)
    assert len(names) > 5
    seen = set()
    while names:
        name = names.pop()
        answer = client.get(name)
        assert answer.status_code == 200, name
        seen.add(name)
        imported = re.findall(r'from "\./([\w.]+)"', answer.text) if name.endswith("js") else []
        names += [f"/assets/{each}" for each in imported if f"/assets/{each}" not in seen]
    assert "/assets/chart.js" in seen


def test_the_icon_that_browsers_ask_for_by_themselves_is_that_of_the_page(client):
    answer = client.get("/favicon.ico", follow_redirects=True)
    assert (answer.status_code, answer.content) == (200, client.get("/assets/icon.svg").content)


@pytest.mark.parametrize("name", ["nothing.js", "..%2fserver.py", "..%2F..%2Fserver.py", "%2e%2e", "page.html"])
def test_no_other_file_is_served(unchanged, name):
    assert unchanged.get(f"/assets/{name}").status_code == 404


def test_no_file_of_the_page_names_another_machine(client):
    for name in ("page.css", "main.js", "chart.js", "server.js", "text_panels.js"):
        assert not re.search(r"(?<!w3\.org)https?://|//cdn|@import", client.get(f"/assets/{name}").text), name


# Bad input


@pytest.mark.parametrize("path", ["/api/curves", "/api/settings", "/api/log", "/report", "/api/evaluation"])
def test_no_request_leaves_the_folder_of_runs(client, tmp_path, path):
    make_run(tmp_path, "secret")
    for name in OUTSIDE[:-1]:
        answer = client.get(path, params={"run": name, "metric": "train/policy_loss"})
        assert answer.status_code == 404, answer.text
        assert "has no run" in answer.json()["error"]


def test_a_link_in_a_run_folder_is_not_followed(client, root):
    for name in ("run.log", "report.html", "evaluation.json"):
        (root / "a" / name).symlink_to("/etc/passwd")
    assert get(client, "/api/log", run="a")["text"] == ""
    assert client.get("/report", params={"run": "a"}).status_code == 404
    assert get(client, "/api/evaluation", run="a") == {"rows": [], "reports": []}


def test_a_pipe_in_a_run_folder_keeps_nobody_waiting(client, root):
    os.mkfifo(root / "a" / "run.log")
    os.mkfifo(root / "a" / "report.html")
    assert get(client, "/api/log", run="a")["text"] == ""
    assert client.get("/report", params={"run": "a"}).status_code == 404


@pytest.mark.parametrize(
    ("path", "parameters", "sentence"),
    [
        ("/api/curves", {}, "Name runs"),
        ("/api/curves", {"run": [f"r{i}" for i in range(25)]}, "At most 24 runs"),
        ("/api/curves", {"run": "a", "metric": [str(i) for i in range(101)]}, "At most 100 metrics"),
        ("/api/curves", {"run": "a", "axis": "epoch"}, "axis must be one of"),
        ("/api/curves", {"run": "a", "width": "1e9"}, "width must be a number from 10 to 8000"),
        ("/api/curves", {"run": "a", "width": "nan"}, "width must be a number"),
        ("/api/curves", {"run": "a", "smoothing": "1"}, "smoothing must be a number"),
        ("/api/curves", {"run": "a", "low": "x"}, "low must be a number"),
        ("/api/log", {"run": ["a", "b"]}, "Name one run"),
        ("/api/log", {"run": "a", "file": "../a"}, "file must be run or output"),
        ("/api/log", {"run": "a", "after": "-1"}, "after must be a number"),
    ],
)
def test_what_cannot_be_answered_is_told_in_a_sentence(unchanged, path, parameters, sentence):
    assert sentence in get(unchanged, path, 400, **parameters)["error"]


def test_an_unknown_path_is_told(client):
    assert get(client, "/api/nothing", 404)["error"] == "GET /api/nothing: Not Found."


# Stop, resume, scale


def page_token(client):
    return re.search(r'data-token="([^"]*)"', client.get("/").text)[1]


def ask(client, action, body, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", "x-dashboard-token": page_token(client), **headers}
    return client.post(f"/api/{action}", content=content, headers=headers)


def test_the_page_asks_the_controls(served, root, controls):
    _, client = served(root, controls=controls)
    assert ask(client, "stop", {"run": "a"}).json() == {"done": "a saves and stops."}
    assert ask(client, "resume", {"run": "b"}).status_code == 200
    assert ask(client, "resume", {"run": "a", "total_timesteps": 2000}).status_code == 200
    assert ask(client, "scale", {"run": "a", "n_workers": "dynamic"}).status_code == 200
    assert ask(client, "scale", {"run": "a", "n_envs": 8, "n_workers": 0}).status_code == 200
    assert controls.asked == [
        ("stop", "a"), ("resume", "b", None), ("resume", "a", 2000), ("scale", "a", "dynamic", None),
        ("scale", "a", 0, 8),
    ]  # fmt: skip


def test_what_the_controls_refuse_is_told(served, root, controls):
    from ml_pipeline.config.errors import UserError

    controls.error = UserError("a has finished already.")
    answer = ask(served(root, controls=controls)[1], "stop", {"run": "a"})
    assert (answer.status_code, answer.json()) == (400, {"error": "a has finished already."})


@pytest.fixture
def changeable(served, root, controls):
    return served(root, controls=controls)[1], controls


@pytest.mark.parametrize(
    ("action", "body", "status", "sentence"),
    [
        ("stop", {"run": "nothing"}, 404, "has no run"),
        ("stop", b'{"run": "\\ud800"}', 404, "has no run"),
        ("stop", b'{"run": "a", "\\ud800": 1}', 400, "stop takes no"),
        ("stop", {"run": "../runs/a"}, 404, "has no run"),
        ("stop", {}, 400, "must name a run"),
        ("stop", ["a"], 400, "must name a run"),
        ("stop", b"{", 400, "not valid JSON"),
        ("stop", b"[" * 9000, 400, "not valid JSON"),
        ("stop", b" " * 20_000, 413, "too long"),
        ("stop", {"run": "a", "n_envs": 3}, 400, 'stop takes no "n_envs"'),
        ("resume", {"run": "a", "total_timesteps": "2k"}, 400, "total_timesteps must be a whole number from 1 on"),
        ("scale", {"run": "a"}, 400, "scale needs n_workers, n_envs, or both"),
        ("scale", {"run": "a", "n_env": 3}, 400, 'Did you mean "n_envs"'),
        ("scale", {"run": "a", "n_envs": 0}, 400, "n_envs must be a whole number, but got 0"),
        ("scale", {"run": "a", "n_envs": "auto"}, 400, "n_envs must be a whole number"),
        ("scale", {"run": "a", "n_workers": True}, 400, "n_workers must be a whole number, auto or dynamic"),
        ("scale", {"run": "a", "n_workers": -1}, 400, "n_workers must be a whole number"),
    ],
)
def test_a_request_that_means_nothing_changes_nothing(changeable, action, body, status, sentence):
    client, controls = changeable
    answer = ask(client, action, body)
    assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), answer.text
    assert controls.asked == []


def test_without_a_service_nothing_can_be_changed(client, root):
    assert page_token(client) == ""
    assert client.post("/api/stop", json={"run": "a"}).status_code == 403
    with serve(root, port=0, token="sixteen-or-more-letters") as server:
        import httpx

        with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as asking:
            answer = asking.post(
                "/api/stop", json={"run": "a"}, headers={"authorization": "Bearer sixteen-or-more-letters"}
            )
    assert (answer.status_code, "ml-pipeline serve" in answer.json()["error"]) == (400, True)


def test_a_failure_of_the_server_is_told(client, monkeypatch):
    from ml_pipeline.dashboard.web import app

    def fail(folders):
        raise RuntimeError("what a day")

    monkeypatch.setattr(app, "settings_table", fail)
    answer = client.get("/api/settings", params={"run": "a"})
    assert (answer.status_code, "RuntimeError: what a day" in answer.json()["error"]) == (500, True)
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_session_is_told_and_one_that_is_not_there_is_a_404(served, tmp_path):
    make_session(tmp_path / "live", "eurusd")
    (tmp_path / "runs").mkdir()
    _, client = served(tmp_path / "runs", sessions=tmp_path / "live")
    assert [each["name"] for each in get(client, "/api/runs")["sessions"]] == ["eurusd"]
    assert get(client, "/api/session", session="eurusd")["equity"][1] == [10_000.0, 10_100.0, 10_250.0]
    assert "has no session" in get(client, "/api/session", 404, session="../runs")["error"]
    assert "has no report yet" in client.get("/session-report", params={"session": "eurusd"}).json()["error"]
    (tmp_path / "live" / "eurusd" / "reconciliation.html").write_text("<script>1</script>")
    answer = client.get("/session-reconciliation", params={"session": "eurusd", "framed": "1"}, follow_redirects=True)
    assert (answer.status_code, "sandbox" in answer.headers["content-security-policy"]) == (200, True)
