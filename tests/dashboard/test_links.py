"""Every link of every page leads somewhere, in Debian's Chromium."""

import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import optuna
import pytest
from optuna.trial import TrialState

from ml_pipeline.tuning.report.study_report import write_study_report
from tests.dashboard.run_folders import make_run
from tests.dashboard.session_folders import make_session
from tests.dashboard.study_folders import make_study
from tests.tuning.written_studies import add_trial, new_study, write_returns

pytestmark = pytest.mark.system

PAGE = "<!doctype html><html><body><p>A report</p>{}</body></html>"


@pytest.fixture
def places(tmp_path):
    """(folder of runs, folder of sessions): a run with a report, a study with its own, a session with both."""
    runs, live = tmp_path / "runs", tmp_path / "live"
    make_run(runs, "mine")
    (runs / "mine" / "report.html").write_text(PAGE.format('<a href="picture.png">picture</a>'))
    (runs / "mine" / "picture.png").write_bytes(_png())
    folder = make_study(runs, "eurusd", n_runs=4)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = new_study("eurusd")
    for number in range(4):
        value = write_returns(folder / f"trial-{number:04}", seed=number)
        add_trial(study, value, state=TrialState.PRUNED if number == 3 else TrialState.COMPLETE)
        if number != 2:  # one trial has no report
            back = '<a href="../report.html">the study</a> <a href="config.yaml">settings</a>'
            (folder / f"trial-{number:04}" / "report.html").write_text(PAGE.format(back))
    write_study_report(study, folder, n_trials=4)
    session = make_session(live, "eurusd")
    for name in ("report.html", "reconciliation.html"):
        (session / name).write_text(PAGE.format(""))
    return runs, live


def _png():
    from ml_pipeline.reporting.html_page import png_of

    plots = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed")
    return png_of(plots.Figure(figsize=(1, 1)))


def content_of(page):
    """What a page shows: of a report in a frame, the report."""
    page.wait_for_load_state()
    frames = [frame for frame in page.frames if frame.parent_frame is not None and "/files/" in frame.url]
    found = page.main_frame if "/#" in page.url or not frames else frames[0]
    found.wait_for_load_state()
    return found


def visit(page, address):
    """Load a page, and wait until it has drawn its content: links of an earlier drawing cannot be clicked."""
    page.goto("about:blank")  # a part after # alone does not load a page again
    page.goto(address)
    if "#" in address:
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(300)


def links_of(page):
    """The visible links of a page, once their number has stayed the same for a moment: scripts draw the tables."""
    found, before = [], None
    for _ in range(40):
        found = [each for each in content_of(page).locator("a[href]").all() if each.is_visible()]
        if before == len(found) > 0:
            break
        before = len(found)
        page.wait_for_timeout(250)
    return found


def follow(page, link):
    """Click a link; return the page that it leads to, which may be a tab of its own."""
    if link.get_attribute("target") == "_blank":
        with page.context.expect_page() as opened:
            link.click()
        return opened.value
    with page.expect_event("framenavigated"):
        link.click()
    return page


@pytest.mark.parametrize("token", [None, "a token of many letters"])
def test_every_link_of_every_page_leads_to_a_page(served, browser_page, places, token):
    runs, live = places
    server, _ = served(runs, sessions=live, token=token)
    base = server.url.partition("?")[0]
    page = browser_page(server.url)
    page.wait_for_selector("html[data-ready]")
    problems, answers = [], {}
    page.context.on("response", lambda response: answers.update({response.url: response.status}))
    page.context.on("console", lambda told: problems.append(told.text) if told.type == "error" else None)
    waiting = deque(f"{base}{each}" for each in ("#run=mine&view=report", "#study=eurusd", "#session=eurusd"))
    seen, clicked = set(waiting), 0
    while waiting:
        address = waiting.popleft()
        visit(page, address)
        links = links_of(page)
        hrefs = [(each.get_attribute("href"), each.inner_text()) for each in links]
        for i, (href, text) in enumerate(hrefs):
            if href.startswith("#"):
                continue
            visit(page, address)
            link = links_of(page)[i]
            opened = follow(page, link)
            found = content_of(opened)
            clicked += 1
            assert answers[found.url] in (200, 304), (address, href, found.locator("body").inner_text())
            kind = found.evaluate("document.contentType")
            assert kind != "application/json", (address, href)
            assert kind.startswith("image/") or found.locator("body").inner_text().strip(), (address, href, text)
            if found.url not in seen and kind == "text/html":
                seen.add(found.url)
                waiting.append(found.url)
            if opened is not page:
                opened.close()
    assert clicked > 15
    assert {each.rpartition("/")[2] for each in seen} >= {"report.html", "reconciliation.html", ""}
    assert problems == []


def test_links_of_a_report_within_the_page_are_followed_there(served, browser_page, places):
    runs, live = places
    (runs / "mine" / "more.html").write_text(PAGE.format("and more"))
    (runs / "mine" / "report.html").write_text(PAGE.format('<a href="more.html">further</a>'))
    server, _ = served(runs, sessions=live)
    page = browser_page(f"{server.url}#run=mine&view=report")
    frame = page.frame_locator("iframe")
    frame.get_by_text("further").click()
    frame.get_by_text("and more").wait_for()
    assert "view=report" in page.url


LEAVING = {
    "script": "<script>location.href = '{there}'</script>",
    "refresh": '<meta http-equiv="refresh" content="0; url={there}">',
    "link": '<a id="a" href="{there}">on</a><script>document.getElementById("a").click()</script>',
    "tab": "<script>open('{there}')</script>",
    "top": "<script>top.location = '{there}'</script>",
    "form": '<form action="{there}"></form><script>document.forms[0].submit()</script>',
    "data": "<script>location.href = 'data:text/html,<script>location.href=`{there}`</scr' + 'ipt>'</script>",
    "picture": '<svg xmlns="http://www.w3.org/2000/svg"><script>location.href = "{there}"</script></svg>',
}


@pytest.mark.parametrize("way", LEAVING)
def test_a_report_leads_to_no_other_site(served, browser_page, places, way):
    runs, live = places
    asked = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    elsewhere = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=elsewhere.serve_forever)
    thread.start()
    try:
        there = f"http://127.0.0.1:{elsewhere.server_port}/taken?secret=1"
        script = LEAVING[way].replace("{there}", there)
        (runs / "mine" / "report.html").write_text(PAGE.format("<p>the figures</p>" + script))
        (runs / "mine" / "picture.svg").write_text(script)
        server, _ = served(runs, sessions=live)
        page = browser_page(server.url).context.new_page()  # what is refused, the console calls an error
        page.goto(f"{server.url}report?run=mine")
        if way == "picture":
            address = page.locator("iframe").get_attribute("src").replace("report.html", "picture.svg")
            page.goto(server.url + address.removeprefix("/"))
        page.wait_for_timeout(1000)
        assert asked == []
        assert page.url.startswith(server.url)
    finally:
        elsewhere.shutdown()
        thread.join()
        elsewhere.server_close()
