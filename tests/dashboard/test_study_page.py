"""Studies on the page, in Debian's Chromium."""

import pytest

from tests.dashboard.run_folders import append, make_run, row
from tests.dashboard.study_folders import make_study, study_values, trial, write_study

pytestmark = pytest.mark.system

EVIL = "<img src=x onerror=document.title='broken'>"


@pytest.fixture
def root(tmp_path):
    make_study(tmp_path / "runs", "eurusd", n_runs=4)
    make_run(tmp_path / "runs", "mine")
    return tmp_path / "runs"


@pytest.fixture
def page(served, browser_page, root):  # the browser ends before its server
    def opened(hash="", *, root=root, width=1440, height=900, **context):
        server, _ = served(root)
        found = browser_page(f"{server.url}{hash}", viewport={"width": width, "height": height}, **context)
        found.wait_for_selector("html[data-ready]")
        return found

    return opened


def names(page):
    return page.locator("#runs tbody .title").all_text_contents()


def trials(page):
    return page.locator(".trials tbody tr th").all_text_contents()


def test_a_study_is_one_row_and_its_trials_are_folded(page):
    shown = page()
    assert names(shown) == ["mine"]
    assert shown.locator("#studies tbody tr").inner_text().split() == [
        "eurusd",
        "running",
        "3",
        "of",
        "10",
        "57.5",
        "1h",
        "2m",
        "3",
        "mean",
        "return",
    ]
    chip = shown.locator("#states").get_by_role("button", name="trials")
    assert chip.inner_text().split() == ["trials", "4"]
    chip.click()
    assert len(names(shown)) == 5
    chip.click()
    assert names(shown) == ["mine"]


def test_studies_are_sorted_by_keys_and_stay_so_when_one_changes(page, root):
    make_study(root, "beta", values=(9.0,), n_trials=2, seconds_left=60.0)
    make_study(root, "alpha", values=(), n_trials=4, seconds_left=None)
    shown = page()
    listed = lambda: shown.locator("#studies tbody tr").evaluate_all("rows => rows.map((row) => row.dataset.name)")  # noqa: E731
    heading = lambda name: shown.locator("#studies thead").get_by_role("button", name=name)  # noqa: E731
    before = listed()
    heading("Study").focus()
    shown.keyboard.press("Enter")
    assert listed() == ["alpha", "beta", "eurusd"]
    shown.keyboard.press("Enter")
    assert listed() == ["eurusd", "beta", "alpha"]
    assert shown.locator("#studies th").first.get_attribute("aria-sort") == "descending"
    assert shown.evaluate("document.activeElement.textContent") == "Study"
    shown.keyboard.press("Enter")
    assert listed() == before
    heading("Best value").click()
    assert listed() == ["beta", "eurusd", "alpha"]  # without a value last
    make_study(root, "alpha", values=(20.0,), n_trials=4, seconds_left=None)
    shown.locator("#studies tbody tr", has_text="20").wait_for()
    assert listed() == ["alpha", "beta", "eurusd"]
    heading("Best value").click()
    assert listed() == ["eurusd", "beta", "alpha"]
    heading("Left").click()
    assert listed() == ["beta", "eurusd", "alpha"]


def test_a_study_shows_its_figures_and_a_trial_opens_its_run(page):
    shown = page()
    shown.locator("#studies tbody tr").click()
    shown.wait_for_selector('.study-chart[data-points="3"]')
    text = shown.locator("#study").inner_text()
    assert all(each in text for each in ("eurusd", "3 of 10", "57.5", "1h 2m", "trial 1", "learning_rate 0.002", "CPU"))
    assert shown.locator(".running li").inner_text().split()[:4] == ["trial", "3", "30", "%"]
    assert trials(shown) == ["2", "1", "0"]
    shown.locator(".trials").get_by_role("button", name="Value, mean return").click()
    assert trials(shown) == ["1", "2", "0"]
    assert shown.locator("#tabs").is_hidden()
    shown.reload()
    shown.wait_for_selector('.study-chart[data-points="3"]')
    shown.locator(".trials").get_by_role("button", name="2", exact=True).click()
    shown.wait_for_selector('[data-metric="rollout/mean_return_100"][data-points="3"]')
    assert names(shown) == ["mine", "eurusd/trial-0002"]
    assert shown.locator("#study").is_hidden()
    shown.get_by_role("button", name="A trial of the study eurusd").click()
    shown.locator("#study h2").get_by_text("eurusd").wait_for()


def test_pruned_trials_look_different_and_are_counted(page, root):
    values = study_values(values=(1.0, 3.0, 2.0), pruned=1, complete=2)
    values["trials"][2]["state"] = "pruned"
    write_study(root / "eurusd", values)
    shown = page("#study=eurusd")
    shown.wait_for_selector('.study-chart[data-points="3"]')
    keys = shown.locator("#study .keys").inner_text().replace("\n", " ")
    assert " ".join(keys.split()) == "complete 2 pruned, at its last value 1 best so far 3"
    kinds = """(canvas) => {
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), found = new Set();
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) found.add([...data.slice(i, i + 3)].join(" "));
        return [found.has("28 35 48"), found.has("154 98 0")]; // --ink, --warn
    }"""
    assert shown.locator("#study .study-chart canvas").evaluate(kinds) == [True, True]


def test_what_changes_appears_without_being_asked_for(page, root):
    shown = page("#study=eurusd")
    shown.wait_for_selector('.study-chart[data-points="3"]')
    shown.locator(".trials tbody button").first.focus()
    failures = [{"reason": "Worker 1 died.", "times": 1, "numbers": [9]}]
    write_study(root / "eurusd", study_values(values=(1.0, 2.0, 3.0, 4.0), running=(), failed=1, failures=failures))
    shown.wait_for_selector('.study-chart[data-points="4"]')
    assert trials(shown) == ["3", "2", "1", "0"]
    assert shown.evaluate("document.activeElement.textContent") == "2"  # the keyboard stays where it was
    assert "1 × Worker 1 died. trial 9" in shown.locator(".failures").inner_text()
    assert shown.locator(".running").count() == 0
    append(root / "mine", [row(6)])
    make_study(root, "second", state="stopped")
    shown.wait_for_selector('#studies tr[data-name="second"]')


def test_with_studies_alone_the_first_is_shown(page, tmp_path):
    make_study(tmp_path / "only", "s", n_runs=2)
    shown = page(root=tmp_path / "only")
    shown.wait_for_selector('.study-chart[data-points="3"]')
    shown.get_by_text("All runs here are trials of studies").wait_for()


def test_a_study_that_is_deleted_leaves_the_page(page, root):
    shown = page("#study=eurusd")
    shown.wait_for_selector('.study-chart[data-points="3"]')
    (root / "eurusd" / "study.json").unlink()
    shown.locator("#studies-part").wait_for(state="hidden")
    shown.locator("#study").wait_for(state="hidden")


def test_studies_are_walked_through_by_keys(page, root):
    make_study(root, "second", state="stopped")
    shown = page()
    shown.locator('#studies tr[data-name="eurusd"]').focus()
    shown.keyboard.press("ArrowDown")
    assert shown.evaluate("document.activeElement.dataset.name") == "second"
    shown.keyboard.press("Enter")
    shown.locator("#study h2").get_by_text("second").wait_for()
    reached = set()
    for _ in range(40):
        shown.keyboard.press("Tab")
        reached.add(shown.evaluate("document.activeElement.textContent.trim()"))
        outline = shown.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or shown.evaluate("document.activeElement === document.body")
    assert {"trial 1", "Trial", "Value", "learning_rate", "2", "1", "0"} <= reached


def test_text_of_a_study_stays_text(page, tmp_path):
    name = EVIL.replace("/", "")
    settings = {EVIL: EVIL}
    best = {"number": 0, "value": 1.0, "settings": settings, "folder": "trial-0000"}
    values = study_values(
        best=best,
        failures=[{"reason": EVIL, "times": 1, "numbers": [1]}],
        trials=[trial(0, value=1.0, settings=settings), trial(1, state=EVIL, reason=EVIL)],
    )
    values["running"][0]["host"] = EVIL
    write_study(tmp_path / "evil" / name, values)
    shown = page(root=tmp_path / "evil")
    shown.wait_for_selector('.trials tr[data-trial="1"]')
    assert shown.locator("#study").inner_text().count(EVIL) >= 6
    assert shown.locator("img").count() == 0
    assert shown.title() != "broken"


def test_the_report_of_a_study_is_linked_where_there_is_one(page, root):
    shown = page("#study=eurusd")
    shown.wait_for_selector('.study-chart[data-points="3"]')
    link = shown.locator("#study a")
    assert link.is_hidden()
    (root / "eurusd" / "report.html").write_text("<p>")
    link.wait_for()
    assert link.get_attribute("href") == "/study-report?study=eurusd"


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_narrow_screen_shows_a_study_in_one_column(page, root, scheme):
    values = study_values(values=tuple(float(i) for i in range(200)))
    for each in values["trials"]:
        each["settings"] = {f"a_setting_of_some_length_{i}": 0.123456 for i in range(12)}
    values["best"]["settings"] = values["trials"][0]["settings"]
    values["failures"] = [{"reason": "x" * 500, "times": 3, "numbers": [*range(100)]}]
    write_study(root / "eurusd", values)
    shown = page("#study=eurusd", width=390, height=844, color_scheme=scheme)
    shown.wait_for_selector('.study-chart[data-points="200"]')
    assert len(trials(shown)) == 200
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_few_very_bad_values_do_not_flatten_the_others(page):
    shown = page()
    low, high = shown.evaluate(
        "import('/assets/study_chart.js').then(({ heights }) => heights([...Array(50).keys(), -1e9]))"
    )
    assert -100 < low < 0
    assert 49 < high < 60
