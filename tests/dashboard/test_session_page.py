"""Trading sessions on the page, in Debian's Chromium."""

import pytest

from tests.dashboard.run_folders import make_run
from tests.dashboard.session_folders import make_session
from tests.dashboard.test_sessions import DECISION

pytestmark = pytest.mark.system

EVIL = "<img src=x onerror=document.title='broken'>"


@pytest.fixture
def page(served, browser_page, tmp_path):  # the browser ends before its server
    def opened(hash="", **context):
        server, _ = served(tmp_path / "runs", sessions=tmp_path / "live")
        found = browser_page(f"{server.url}{hash}", **{"viewport": {"width": 1440, "height": 900}, **context})
        found.wait_for_selector("html[data-ready]")
        return found

    return opened


@pytest.fixture
def session(tmp_path):
    make_run(tmp_path / "runs", "mine")
    events = [{"event": "refusal", "bar": "2024-03-01T14:35:00", "at": "x", "sentence": f"Too large {EVIL}."}]
    return make_session(tmp_path / "live", "eurusd", events=events, decision=DECISION)


def test_a_session_is_opened_by_a_click_and_shows_its_account(page, session):
    shown = page()
    row = shown.locator("#sessions tbody tr")
    assert row.inner_text().split() == ["eurusd", "running", "eurusd", "v3", "10,250", "+2.50", "%"]
    row.click()
    shown.wait_for_selector("#session .study-chart[data-points='3']")
    text = shown.locator("#session").inner_text()
    for part in ("began with 10,000", "5750.5", "order size", "Too large", "training saw 0.001 to 0.05", "4ms"):
        assert part in text
    assert shown.locator("#session .features tbody tr").first.get_attribute("class") == "beyond"
    assert "session=eurusd" in shown.url
    assert not shown.locator("#panel").is_visible()
    shown.locator("#runs tbody tr").first.click()
    shown.wait_for_selector("#session", state="hidden")
    assert shown.locator("#panel").is_visible()
    assert shown.title() != "broken"


def test_sessions_are_sorted_by_keys(page, session, tmp_path):
    make_session(tmp_path / "live", "alpha", equity=9_000.0)
    make_session(tmp_path / "live", "gold", equity=20_000.0)
    shown = page()
    listed = lambda: shown.locator("#sessions tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.name)")  # noqa: E731
    for name, order in (("Session", ["alpha", "eurusd", "gold"]), ("Equity", ["gold", "eurusd", "alpha"])):
        shown.locator("#sessions thead").get_by_role("button", name=name).focus()
        shown.keyboard.press("Enter")
        assert listed() == order
        shown.keyboard.press("Enter")
        assert listed() == order[::-1]
    assert shown.locator("#sessions th[aria-sort=ascending]").inner_text().startswith("Equity")


def test_an_order_is_one_row_and_a_position_has_value_and_profit(page, tmp_path):
    make_run(tmp_path / "runs", "mine")
    order = {"client_order_id": "a", "symbol": "GOLD", "bar": "2024-03-01T14:35:00", "at": "x"}
    events = [
        {"event": "order", "quantity": 20.0, "limit_price": None, **order},
        {"event": "update", "status": "accepted", "reason": "", **order},
        {"event": "fill", "quantity": 20.0, "price": 10.0, "costs": 0.5, **order},
        {"event": "update", "status": "filled", "reason": "", **order},
    ]
    ledger = "time,equity,cash,close_GOLD,position_GOLD,filled_GOLD,fill_price_GOLD\n"
    ledger += "2024-03-01T14:35:00,1000,1000,10,0,0,10\n2024-03-01T14:36:00,1100,800,15,20,20,10\n"
    make_session(
        tmp_path / "live", "gold", events=events, ledger_text=ledger, positions={"GOLD": 20.0}, symbols=["GOLD"]
    )
    shown = page("#session=gold")
    shown.wait_for_selector("#session .study-chart[data-points='2']")
    (row,) = shown.get_by_role("region", name="Orders").locator("tbody tr").all_inner_texts()
    assert row.split("\t")[1:] == ["GOLD", "buy", "20", "market", "sent → accepted → filled", "20", "10", "0.5"]
    (row,) = shown.get_by_role("region", name="Positions").locator("tbody tr").all_inner_texts()
    assert row.split("\t") == ["GOLD", "long", "20", "15", "300", "100 (+50.00 %)"]
    keys = shown.locator("#session .study-chart .keys").inner_text()
    assert all(each in keys for each in ("1,100 (+10.00 %)", "buy and hold", "1,500 (+50.00 %)"))
    assert shown.get_by_text("fill", exact=True).count() == 0  # not told again among what happened


def test_a_session_is_followed_while_it_trades(page, session, tmp_path):
    shown = page("#session=eurusd")
    shown.wait_for_selector("#session .study-chart[data-points='3']")
    with open(session / "ledger.csv", "a") as ledger:
        ledger.write("2024-03-01T14:36:00.000000000,10300.0,4000.0,0.0\n")
    make_session(tmp_path / "next", "eurusd", equity=10_300.0, state="finished")
    for name in ("state.json", "live.json"):
        (tmp_path / "next" / "eurusd" / name).replace(session / name)
    shown.wait_for_selector("#session .study-chart[data-points='4']")
    shown.wait_for_selector("#session h2 .state[data-state='finished']")
    assert "10,300" in shown.locator("#session .study-figures").inner_text()


def test_rows_of_sessions_are_reached_by_keys(page, session, tmp_path):
    make_session(tmp_path / "live", "second")
    shown = page()
    shown.locator("#sessions tbody tr").first.focus()
    shown.keyboard.press("ArrowDown")
    second = shown.evaluate("document.activeElement.dataset.name")
    shown.keyboard.press("Enter")
    shown.wait_for_selector(f'#sessions tr.current[data-name="{second}"]')


def test_a_page_without_sessions_shows_no_list_of_them(page, tmp_path):
    make_run(tmp_path / "runs", "mine")
    assert not page().locator("#sessions-part").is_visible()


def test_reports_of_a_session_are_linked_once_they_are_there(page, session):
    (session / "report.html").write_text("<p>report</p>")
    shown = page("#session=eurusd")
    assert shown.locator("#session").get_by_role("link", name="Report").is_visible()
    assert not shown.locator("#session").get_by_role("link", name="Backtest against live").is_visible()
