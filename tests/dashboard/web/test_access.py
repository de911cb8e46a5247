"""Who is refused: other sites in the user's browser, other names of this machine, and whoever has no token."""

import re

import pytest

from tests.dashboard.run_folders import make_run

TOKEN = "a token of many letters"
PATHS = ["/", "/api/runs", "/api/curves?run=a", "/api/events", "/report?run=a", "/assets/main.js"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "a")
    (root / "a" / "report.html").write_text("report")
    return root


@pytest.fixture(scope="module")
def open_server(served_once, root):
    return served_once(root)


def status(client, path, **headers):
    """Without the body, which an event stream never ends."""
    with client.stream("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}) as got:
        return got.status_code


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.evil.example", "", "a@localhost"]
)
def test_another_name_for_this_machine_is_refused(open_server, path, host):
    _, client = open_server
    assert status(client, path, host=host) in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9000", "[::1]:8765"])
def test_its_own_names_are_answered_at_any_port(open_server, host):
    _, client = open_server  # through a tunnel the port is another
    assert status(client, "/api/runs", host=host) == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", "https://evil.example:8765"])
def test_another_origin_is_refused(open_server, path, origin):
    assert status(open_server[1], path, origin=origin) == 403


def test_its_own_origin_is_answered(open_server):
    server, client = open_server
    assert status(client, "/api/runs", origin=f"http://127.0.0.1:{server.port}") == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_embeds_is_refused(open_server, site):
    _, client = open_server
    for path in PATHS:
        assert status(client, path, sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="script") == 403
        assert status(client, path, sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe") == 403
    # A link to the page is no harm: the other site sees nothing of it.
    assert status(client, "/", sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document") == 200
    assert status(client, "/report?run=a", sec_fetch_site=site, sec_fetch_mode="navigate") == 403


@pytest.mark.parametrize("action", ["stop", "resume", "scale"])
def test_what_changes_something_needs_the_token_of_the_page(served, root, controls, action):
    _, client = served(root, controls=controls)
    token = re.search(r'data-token="([^"]+)"', client.get("/").text)[1]
    body = {"run": "a", **({"n_envs": 2} if action == "scale" else {})}
    for headers in ({}, {"x-dashboard-token": token[:-1]}, {"authorization": "Bearer x"}):
        assert client.post(f"/api/{action}", json=body, headers=headers).status_code == 403
    right = {"x-dashboard-token": token}
    assert (
        client.post(f"/api/{action}", json=body, headers={**right, "origin": "http://evil.example"}).status_code == 403
    )
    as_form = {**right, "content-type": "text/plain"}
    assert client.post(f"/api/{action}", content="{}", headers=as_form).status_code == 415
    assert client.get(f"/api/{action}", headers=right).status_code == 405
    assert controls.asked == []
    assert client.post(f"/api/{action}", json=body, headers=right).status_code == 200
    assert len(controls.asked) == 1


def test_with_a_token_nothing_is_told_without_it(served, root):
    _, client = served(root, token=TOKEN)
    for path in [*PATHS, "/?token=wrong"]:
        assert status(client, path) == 401
    for headers in ({"authorization": "Bearer wrong"}, {"authorization": TOKEN}, {"cookie": "ml_pipeline_dashboard=x"}):
        assert status(client, "/api/runs", **headers) == 401
    assert status(client, "/api/runs", authorization=f"Bearer {TOKEN}") == 200


def test_the_token_of_the_address_is_kept_in_a_cookie_that_scripts_cannot_read(served, root):
    server, client = served(root, token=TOKEN)
    answer = client.get(server.url.replace("localhost", "127.0.0.1"))
    kept = answer.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=strict" in kept
    assert TOKEN not in answer.text
    assert 'content="0; url=/"' in answer.text
    assert client.get("/api/runs").status_code == 200  # by the cookie
    assert client.get("/api/runs", headers={"origin": "http://evil.example"}).status_code == 403


def test_a_token_that_nobody_asked_for_is_left_out_of_the_address(open_server):
    answer = open_server[1].get("/?token=old")
    assert (answer.status_code, answer.headers.get("set-cookie")) == (200, None)


@pytest.mark.parametrize("path", [*PATHS, "/api/nothing", "/api/curves?run=.."])
def test_every_answer_forbids_what_is_not_its_own(open_server, path):
    _, client = open_server
    with client.stream("GET", path) as answer:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors" in policy
        if "report" not in path:
            assert "unsafe" not in policy
        assert "access-control-allow-origin" not in answer.headers


def test_a_refusal_is_a_sentence(open_server):
    _, client = open_server
    answer = client.get("/api/runs", headers={"origin": "http://evil.example"})
    assert answer.json() == {"error": "Requests from other sites are refused."}
    assert "<p>This is not the address of this server" in client.get("/", headers={"host": "evil.example"}).text
