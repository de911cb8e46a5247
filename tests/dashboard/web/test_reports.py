"""Reports and what they link to: relative links lead where they lead on disk, and nowhere else."""

import os
from urllib.parse import urljoin

import pytest

from tests.dashboard.run_folders import make_run
from tests.dashboard.session_folders import make_session
from tests.dashboard.study_folders import make_study

AS_A_LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
"""What Chromium sends with a click on a link of a report, which has no origin."""


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    make_run(root, "a")
    make_study(root, "s", n_runs=2)
    (root / "s" / "report.html").write_text("the study")
    (root / "s" / "trial-0000" / "report.html").write_text("the trial")
    return root


@pytest.fixture
def client(served, root, tmp_path):
    make_session(tmp_path / "live", "eurusd")
    (tmp_path / "live" / "eurusd" / "report.html").write_text("the session")
    return served(root, sessions=tmp_path / "live")[1]


def address_of(client, path="/study-report?study=s", **headers):
    answer = client.get(f"{path}&framed=1", headers=headers)
    assert answer.status_code == 307
    return answer.headers["location"]


def test_a_report_is_served_under_an_address_that_mirrors_its_folder(client):
    address = address_of(client)
    assert address.endswith("/runs/s/report.html")
    answer = client.get(address)
    assert answer.text == "the study"
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert client.get(address_of(client, "/session-report?session=eurusd")).text == "the session"


def test_a_report_that_is_opened_by_itself_is_shown_in_a_frame_that_leads_nowhere_else(client):
    answer = client.get("/study-report?study=s")
    assert f'<iframe sandbox="allow-scripts" src="{address_of(client)}"' in answer.text
    policy = answer.headers["content-security-policy"].split("; ")
    assert {"default-src 'none'", "frame-src 'self'"} <= {*policy}
    assert not any(each.startswith(("script-src", "connect-src")) for each in policy)
    typed = {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert client.get(address_of(client), headers=typed).text == answer.text


def test_a_link_of_a_report_is_followed_though_the_browser_calls_it_foreign(client):
    address = urljoin(address_of(client), "./trial-0000/report.html")
    assert client.get(address, headers=AS_A_LINK).text == "the trial"
    assert client.get(urljoin(address, "../report.html"), headers=AS_A_LINK).text == "the study"


def test_a_link_is_followed_without_the_cookie_of_the_token(served, root):
    _, client = served(root, token="a token of many letters")
    address = address_of(client, authorization="Bearer a token of many letters")
    assert client.get(urljoin(address, "./trial-0000/report.html"), headers=AS_A_LINK).text == "the trial"
    assert client.get(address.replace("/s/", "/a/")).status_code == 401
    assert client.get("/api/runs").status_code == 401


def test_a_site_that_does_not_know_the_ticket_is_refused(client):
    address = address_of(client)
    ticket = address.split("/")[2]
    for path in (
        address.replace(ticket, ticket[::-1]),
        f"/files/{ticket}/runs/a/config.yaml",  # of another folder
        f"/files/{ticket}/sessions/s/report.html",
        "/files//runs/s/report.html",
        "/files/",
    ):
        answer = client.get(path, headers=AS_A_LINK)
        assert answer.status_code == 403, path
    assert client.get(address, headers={**AS_A_LINK, "host": "evil.example"}).status_code == 403
    assert client.get(address, headers={**AS_A_LINK, "origin": "null"}).status_code == 403
    assert client.get(address, headers={**AS_A_LINK, "sec-fetch-mode": "no-cors"}).status_code == 403
    assert client.post(address, headers=AS_A_LINK).status_code == 403


def test_a_folder_without_a_report_lists_its_texts_and_pictures(client, root):
    folder = root / "s" / "trial-0001"
    (folder / "a b#c.png").write_bytes(b"\x89PNG")
    (folder / "best.pt").write_bytes(b"weights")
    (folder / ".hidden.csv").write_text("hidden")
    (folder / "<b>.csv").write_text("1,2")
    address = urljoin(address_of(client), "./trial-0001/")
    text = client.get(address, headers=AS_A_LINK).text
    assert 'href="./config.yaml"' in text
    assert not any(each in text for each in ("best.pt", "hidden", "<b>"))
    assert client.get(address + "a%20b%23c.png", headers=AS_A_LINK).headers["content-type"] == "image/png"
    assert client.get(address + "%3Cb%3E.csv", headers=AS_A_LINK).headers["content-type"].startswith("text/plain")
    assert client.get(address + "best.pt").status_code == 404
    assert client.get(address + ".hidden.csv").status_code == 404
    assert client.get(address[:-1]).headers["location"] == "trial-0001/"
    assert client.get(urljoin(address, "../trial-0000/")).headers["location"] == "report.html"


def test_what_is_missing_is_a_page_with_a_sentence(client):
    answer = client.get(urljoin(address_of(client), "./trial-0009/report.html"), headers=AS_A_LINK)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (404, "text/html")
    assert "trial-0009/report.html" in answer.text


def test_links_and_odd_names_lead_nowhere(client, root, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "report.html").write_text("secret")
    (root / "s" / "out").symlink_to(tmp_path / "secret")
    (root / "s" / "linked.html").symlink_to(tmp_path / "secret" / "report.html")
    (root / "elsewhere").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "s" / "pipe.html")
    base = address_of(client).removesuffix("report.html")
    for name in ("out/report.html", "linked.html", "pipe.html", "%2e%2e/%2e%2e/secret/report.html", "%00.html"):
        assert client.get(base + name).status_code == 404, name
    assert client.get("/files/x/runs/elsewhere/report.html").status_code == 404
    assert client.get("/files/x/other/s/report.html").status_code == 404


def test_a_root_that_is_itself_a_study_goes_by_its_own_name(served, root):
    _, client = served(root / "s")
    address = address_of(client)
    assert client.get(address).text == "the study"
    assert client.get(urljoin(address, "./trial-0000/report.html"), headers=AS_A_LINK).text == "the trial"
    assert client.get(address_of(client, "/report?run=trial-0000")).text == "the trial"
