"""The page in Debian's Chromium, as its users see it."""

import json
import math
import re
from pathlib import Path

import pytest

from tests.dashboard.run_folders import append, lines_of, make_run, row

pytestmark = pytest.mark.system

RETURN, SCORE = "rollout/mean_return_100", "eval/score"
EVIL = "<img src=x onerror=document.title='broken'>"


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "runs"
    make_run(root, "first", status="running", seed=1, n_rows=8, began="2026-01-07T10:00:00+00:00")
    make_run(root, "second", seed=2, learning_rate=0.5, n_rows=5, began="2026-01-06T10:00:00+00:00")
    make_run(
        root, "third", status="failed", reason="Worker 1 died.", rows=[row(i, **{SCORE: 2.0 * i}) for i in range(1, 4)]
    )
    return root


@pytest.fixture
def page(served, browser_page, root):  # the browser ends before its server
    """`page(view=..., **context)`: the page over the runs, once it is drawn."""

    def opened(hash="", *, root=root, width=1440, height=900, controls=None, **context):
        server, _ = served(root, controls=controls)
        found = browser_page(f"{server.url}{hash}", viewport={"width": width, "height": height}, **context)
        found.wait_for_selector("html[data-ready]")
        return found

    return opened


def names(page):
    return page.locator("#runs tbody .title").all_text_contents()


def points(page, metric=RETURN):
    return int(page.locator(f'[data-metric="{metric}"]').get_attribute("data-points"))


def wait_for_points(page, n, metric=RETURN):
    page.wait_for_selector(f'[data-metric="{metric}"][data-points="{n}"]')


def test_all_runs_are_listed_with_their_state(page):
    shown = page()
    assert names(shown) == ["first", "second", "third"]
    text = shown.locator('tr[data-run="third"]').inner_text()
    assert all(each in text for each in ("failed", "Worker 1 died.", "30 %", "1.5"))
    assert shown.locator("#states").inner_text().split() == ["all", "3", "running", "1", "finished", "1", "failed", "1"]


def test_running_runs_are_chosen_at_first_and_a_click_shows_another(page):
    shown = page()
    wait_for_points(shown, 8)
    shown.locator('tr[data-run="second"]').click()
    wait_for_points(shown, 5)
    shown.locator('tr[data-run="first"] input').check()
    wait_for_points(shown, 13)
    assert shown.locator("#legend .chip-name").all_text_contents() == ["second", "first"]
    assert "run=second&run=first" in shown.url
    shown.reload()
    wait_for_points(shown, 13)


def test_a_new_line_appears_without_being_asked_for(page, root):
    shown = page()
    wait_for_points(shown, 8)
    append(root / "first", [row(9), row(10)])
    wait_for_points(shown, 10)
    shown.locator("tr[data-run=first] .share", has_text="100 %").wait_for()
    append(root / "first", [row(11, **{SCORE: 7.0})])
    wait_for_points(shown, 1, SCORE)
    make_run(root, "fourth")
    shown.wait_for_selector('tr[data-run="fourth"]')


def test_a_resumed_run_is_drawn_anew(page, root):
    shown = page()
    wait_for_points(shown, 8)
    (root / "first" / "metrics.jsonl").write_text(lines_of([row(1), row(2)]))
    wait_for_points(shown, 2)


def test_a_drag_zooms_every_chart_and_a_double_click_shows_all(page, tmp_path):
    many = [row(i, **{RETURN: math.sin(i / 50)}) for i in range(1, 8001)]
    make_run(tmp_path / "long", "a", rows=many)
    shown = page(root=tmp_path / "long")
    shown.wait_for_selector(".chart canvas")
    before = points(shown)
    assert 200 < before < 2500
    over = shown.locator(f'[data-metric="{RETURN}"] .u-over')
    box = over.bounding_box()
    shown.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    shown.mouse.down()
    shown.mouse.move(box["x"] + box["width"] * 0.52, box["y"] + 60, steps=4)
    shown.mouse.up()
    shown.locator(".chart").first.and_(shown.locator(f".chart:not([data-points='{before}'])")).wait_for()
    inside = points(shown)
    assert 140 < inside < 190  # 2 % of the rows, each of them
    assert points(shown, "train/policy_loss") == inside
    assert shown.locator("#whole").is_visible()
    over.dblclick()
    wait_for_points(shown, before)
    assert shown.locator("#whole").is_hidden()
    shown.locator(f'[data-metric="{RETURN}"]').focus()
    shown.keyboard.press("+")
    shown.locator("#whole").wait_for(state="visible")
    shown.keyboard.press("Escape")
    shown.locator("#whole").wait_for(state="hidden")


def test_smoothing_and_axis_are_asked_for_and_kept(page):
    shown = page()
    wait_for_points(shown, 8)
    with shown.expect_response(re.compile("smoothing=0.9")):
        shown.locator("#smoothing").fill("0.9")
    with shown.expect_response(re.compile("axis=time.*smoothing=0.9")):
        shown.get_by_role("button", name="Time", exact=True).click()
    shown.reload()
    shown.wait_for_selector("html[data-ready]")
    assert shown.locator("#smoothing-value").inner_text() == "0.90"
    assert shown.locator("[data-axis=time]").get_attribute("aria-pressed") == "true"


def test_charts_are_chosen_by_name_and_closed(page):
    shown = page()
    wait_for_points(shown, 8)
    shown.locator("#add-chart").select_option("time/stepping_s")
    wait_for_points(shown, 8, "time/stepping_s")
    shown.get_by_label("Close the chart of Policy loss").click()
    shown.locator('[data-metric="train/policy_loss"]').wait_for(state="detached")
    log = shown.locator(f'[data-metric="{RETURN}"] button', has_text="log")
    log.click()
    assert log.get_attribute("aria-pressed") == "true"
    shown.reload()
    wait_for_points(shown, 8, "time/stepping_s")
    assert shown.locator('[data-metric="train/policy_loss"]').count() == 0


def test_the_values_under_the_pointer_are_shown(page):
    shown = page("#run=first&run=second")
    wait_for_points(shown, 13)
    box = shown.locator(f'[data-metric="{RETURN}"] .u-over').bounding_box()
    shown.mouse.move(box["x"] + 2, box["y"] + 50)
    tip = shown.locator(f'[data-metric="{RETURN}"] .tip')
    tip.wait_for(state="visible")
    assert tip.inner_text().split() == ["100", "steps", "first", "1", "second", "1"]


def test_settings_stand_side_by_side(page):
    shown = page("#run=first&run=second&view=settings")
    rows = shown.locator(".settings tbody tr")
    rows.first.wait_for()
    assert rows.all_inner_texts() == ["seed\t1\t2", "learning_rate\t–\t0.5"]
    shown.get_by_label("Only what differs").uncheck()
    rows.filter(has_text="env_id").first.wait_for()
    assert "env_id\tCartPole-v1\tCartPole-v1" in rows.all_inner_texts()
    assert shown.locator(".settings tr.differs").count() == 2


def test_where_the_time_goes_and_the_machine(page, root):
    append(root / "first", [row(9, **{"system/cpu_percent": 80.0})])
    shown = page("#run=first&run=second&view=time")
    shown.wait_for_selector(".bar-row")
    assert shown.locator(".stack").first.get_attribute("aria-label") == "acting 25 %, stepping 50 %, learning 25 %"
    assert shown.locator(".wide-chart canvas").count() == 1
    shown.get_by_role("tab", name="Machine").click()
    wait_for_points(shown, 1, "system/cpu_percent")


def test_a_log_is_followed_and_a_failure_told(page, root):
    (root / "third" / "run.log").write_text("began\n")
    (root / "third" / "output.log").write_text("Traceback\n")
    shown = page("#run=third&view=log")
    shown.get_by_text("began").wait_for()
    shown.get_by_text("Traceback").wait_for()
    assert shown.locator("#current .message").inner_text() == "Worker 1 died."
    with (root / "third" / "run.log").open("a") as file:
        file.write("and more\n")
    shown.get_by_text("and more").wait_for()


def test_a_report_runs_its_scripts_and_reaches_nothing(page, root):
    script = (
        "document.body.dataset.reached = (() => { try { return parent.document.title } catch { return 'nothing' } })()"
    )
    (root / "second" / "report.html").write_text(f"<!doctype html><body><p>The report<script>{script}</script>")
    (root / "second" / "evaluation.json").write_text('{"mean_return": 12.5}')
    shown = page("#run=second&view=report")
    frame = shown.frame_locator("iframe")
    frame.get_by_text("The report").wait_for()
    assert frame.locator("body").get_attribute("data-reached") == "nothing"
    assert shown.locator(".figures").count() == 0  # the report itself shows them
    shown.locator('tr[data-run="first"] input').check()
    assert shown.locator(".figures tbody").inner_text().split() == ["Mean", "return", "12.5", "–"]


def test_a_failed_run_has_no_report(page):
    shown = page("#run=third&view=report")
    shown.get_by_text("third failed, and has no report.").wait_for()


def test_a_line_is_drawn_where_no_point_lies(page, tmp_path):
    rows = [row(i, **({SCORE: float(i)} if i in (1, 20) else {})) for i in range(1, 21)]
    make_run(tmp_path / "sparse", "a", rows=rows)
    shown = page(root=tmp_path / "sparse")
    wait_for_points(shown, 2, SCORE)
    box = shown.locator(f'[data-metric="{RETURN}"] .u-over').bounding_box()
    shown.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    shown.mouse.down()
    shown.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    shown.mouse.up()
    shown.locator("#whole").wait_for(state="visible")
    middle = """(canvas) => {
        const pixels = canvas.getContext("2d").getImageData(60, 0, canvas.width - 90, canvas.height - 40).data;
        let blue = 0;
        for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] > 100 && pixels[i + 2] > pixels[i] + 80) blue++;
        return blue;
    }"""
    assert shown.locator(f'[data-metric="{SCORE}"] canvas').evaluate(middle) > 100


def call(page, module, expression):
    return page.evaluate(f"import('/assets/{module}.js').then((found) => found.{expression})")


def test_parts_of_the_page_count_and_shorten_as_they_should(page):
    shown = page()
    assert call(shown, "chart", "valuesBetween([[[0, 10], [0, 100]]], 4, 6)") == [40, 60]
    assert call(shown, "chart", "valuesBetween([[[0, 1], [0, 100]]], 4, 6)") is None
    assert call(shown, "format", "marks([345, 345.5, 346])") == ["345", "345.5", "346"]
    long = "CartPole-v1-seed3-20261122-142033-6b2883"
    assert call(shown, "run_names", f"parts('{long}')") == ["CartPole-v1-seed3", "22 Nov 14:20:33"]
    assert call(shown, "run_names", "parts('eurusd/trial-0002')") == ["eurusd/trial-0002", ""]
    assert call(shown, "run_names", f"modelName('checkpoints/{long}/best.pt')") == long
    assert call(shown, "format", "logMarks(0.8, 120, 20)") == [1, 2, 5, 10, 20, 50, 100]
    assert call(shown, "format", "logMarks(1e-7, 1e7, 8)") == [1e-7, 1e-5, 1e-3, 0.1, 10, 1e3, 1e5, 1e7]
    assert call(shown, "format", "logMarks(310, 420, 4)") == [350, 400]
    raw = call(shown, "chart", "look({faint: true, isFocused: true, anyFocused: true})")
    others = call(shown, "chart", "look({faint: false, isFocused: false, anyFocused: true})")
    assert (raw["width"], others["width"], others["opacity"] > raw["opacity"]) == (1, 1.5, True)


def test_every_metric_of_the_docs_has_a_plain_name(page):
    shown = page()
    table = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    ids = re.findall(r"^\| `([a-z]+/\w+)` \|", table, re.MULTILINE)
    assert len(ids) > 25
    for each in ids:
        named = call(shown, "metric_names", f"metricName('{each}')")
        assert named["title"] != each
        assert named["unit"]


def test_a_chart_has_a_plain_name_its_axes_units_and_each_line_its_last_value(page):
    shown = page("#run=first&run=third")
    wait_for_points(shown, 11)
    chart = shown.locator(f'[data-metric="{RETURN}"]')
    assert chart.locator("h3").inner_text() == "Mean return, last 100 episodes"
    assert chart.locator(".ends").inner_text().split() == ["8", "3"]
    assert "reward" in chart.get_attribute("aria-label")
    scored = shown.locator(f'[data-metric="{SCORE}"]')
    assert "ends at 6 mean return" in scored.get_attribute("aria-label")
    assert "best 1.5 mean return" in shown.locator("#legend").inner_text()


def test_numbers_of_filters_count_what_matches_the_words(page):
    shown = page()
    shown.locator("#filter").fill("ir")  # first and third
    assert shown.locator("#states").inner_text().split() == ["all", "2", "running", "1", "failed", "1"]
    shown.locator("#states").get_by_role("button", name="failed").click()
    assert names(shown) == ["third"]
    shown.locator("#filter").fill("first")
    assert names(shown) == []
    assert shown.locator("#states").inner_text().split() == ["all", "1", "running", "1", "failed", "0"]
    shown.locator("#states").get_by_role("button", name="all").click()
    assert names(shown) == ["first"]


def test_a_run_that_waits_is_no_alarm_and_one_that_evaluates_says_so(page, root):
    make_run(root, "waits", status="queued", reason="It waits for memory.", n_rows=0)
    make_run(root, "ready", status="running", n_rows=10)
    shown = page("#run=ready")
    reason = shown.locator('tr[data-run="waits"] .reason')
    color = "getComputedStyle(document.querySelector('tr[data-run=\"{}\"] .reason')).color"
    assert reason.inner_text() == "It waits for memory."
    assert shown.evaluate(color.format("waits")) != shown.evaluate(color.format("third"))
    assert shown.locator('tr[data-run="ready"] .state').inner_text() == "evaluating"
    cell = shown.locator('tr[data-run="ready"] td.status')
    assert cell.evaluate("({scrollWidth, clientWidth}) => scrollWidth - clientWidth") == 0  # the word is whole
    assert shown.locator("#current h2 .state").inner_text() == "evaluating"
    assert "evaluating 1" in shown.locator("#states").inner_text().replace("\n", " ")


def test_settings_of_one_run_stand_beside_the_defaults(page, root):
    make_run(root, "usual", learning_rate=0.5, eval_interval=25)
    shown = page("#run=usual&view=settings")
    rows = shown.locator(".settings tbody tr")
    shown.get_by_text("settings differ from the defaults").wait_for()
    assert "learning_rate\t0.5\t0.0003" in rows.all_inner_texts()
    few = rows.count()
    shown.get_by_label("Only what differs").uncheck()
    assert rows.count() > few


def test_back_and_a_typed_address_show_what_they_name(page):
    shown = page("#run=first")
    wait_for_points(shown, 8)
    shown.locator('tr[data-run="second"]').click()
    wait_for_points(shown, 5)
    shown.get_by_role("tab", name="Settings").click()
    shown.locator("#panel .settings").wait_for()
    shown.go_back()
    wait_for_points(shown, 5)
    shown.go_back()
    wait_for_points(shown, 8)
    assert shown.url.endswith("#run=first")
    shown.go_forward()
    wait_for_points(shown, 5)
    shown.evaluate("location.hash = '#run=third&view=log'")  # as if typed into the open tab
    shown.locator("#tab-log[aria-selected=true]").wait_for()
    assert "third" in shown.locator("#current h2").inner_text()
    shown.evaluate("location.hash = '#run=nobody'")
    shown.get_by_text('has no run "nobody".').wait_for()
    shown.go_back()
    shown.locator("#tab-log[aria-selected=true]").wait_for()
    before = shown.url
    shown.locator(".skip").focus()
    shown.keyboard.press("Enter")
    shown.wait_for_timeout(200)
    assert shown.url == before


def test_columns_are_sorted_by_keys(page):
    shown = page()
    wait_for_points(shown, 8)
    shown.locator("th.name button").focus()
    shown.keyboard.press("Enter")
    assert shown.locator("th.name").get_attribute("aria-sort") == "ascending"
    shown.keyboard.press("Enter")
    assert names(shown) == ["third", "second", "first"]
    assert shown.evaluate("document.activeElement.textContent") == "Run"


def test_a_table_that_scrolls_says_so(page):
    shown = page("#run=first&run=second&run=third&view=settings", width=390, height=844)
    shown.locator("#panel .settings").wait_for()
    hint = shown.locator("#panel .scroll-hint")
    hint.get_by_text("More columns to the right").wait_for()
    shown.locator("#panel .scroll").evaluate("(node) => { node.scrollLeft = node.scrollWidth; }")
    hint.wait_for(state="hidden")


def test_text_from_files_stays_text(page, tmp_path):
    root = tmp_path / EVIL[:60].replace("/", "")
    rows = [row(1, **{EVIL: 1.0, RETURN: 1.0})]
    reason = f"{EVIL}<script>1</script>"
    run = make_run(root, EVIL.replace("/", ""), rows=rows, status="failed", reason=reason, env_id=EVIL, n_envs=EVIL)
    for name in ("run.log", "output.log"):
        (run / name).write_text(f"{EVIL}</pre>{EVIL}\n")
    (run / "evaluation.json").write_text(json.dumps({EVIL: 1.0}))
    shown = page(root=root)
    for view in ("Time", "Machine", "Settings", "Log", "Report", "Curves"):
        shown.get_by_role("tab", name=view).click()
        shown.wait_for_timeout(150)
        assert shown.locator("img").count() == 0, view
    assert EVIL in shown.locator("#current").inner_text()
    assert EVIL in shown.locator("#add-chart").inner_text()
    assert shown.title() != "broken"


def test_the_list_is_filtered_sorted_and_walked_through_by_keys(page):
    shown = page()
    wait_for_points(shown, 8)
    shown.keyboard.press("/")
    shown.keyboard.type("ir fi")
    assert names(shown) == ["first"]  # every word must be somewhere: "third" is failed, "second" has no "ir"
    shown.keyboard.press("Escape")
    assert names(shown) == ["first", "second", "third"]
    assert shown.evaluate("document.activeElement.dataset.run") == "first"
    shown.keyboard.press("ArrowDown")
    shown.keyboard.press("Enter")
    wait_for_points(shown, 5)
    shown.keyboard.press("End")
    shown.keyboard.press(" ")
    wait_for_points(shown, 8)
    assert shown.locator('tr[aria-selected="true"]').count() == 2
    shown.locator("th.name button").click()
    shown.locator("th.name button").click()
    assert names(shown) == ["third", "second", "first"]
    shown.locator("#states").get_by_role("button", name="failed").click()
    assert names(shown) == ["third"]
    shown.get_by_role("tab", name="Curves").focus()
    shown.keyboard.press("ArrowRight")
    assert shown.evaluate("document.activeElement.id") == "tab-time"


def test_every_control_is_reached_by_tab_and_seen(page):
    shown = page()
    wait_for_points(shown, 8)
    reached = set()
    for _ in range(40):
        shown.keyboard.press("Tab")
        reached.add(shown.evaluate("(({id, dataset}) => id || dataset.run || dataset.metric)(document.activeElement)"))
        outline = shown.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none" or shown.evaluate("document.activeElement === document.body")
    assert {"theme", "filter", "first", "tab-curves", "smoothing", "add-chart", RETURN} <= reached


def test_two_hundred_runs_are_shown(page, tmp_path):
    root = tmp_path / "many"
    for i in range(200):
        make_run(root, f"run-{i:03d}", n_rows=1)
    shown = page(root=root)
    assert len(names(shown)) == 200
    shown.locator("#filter").fill("run-19")
    assert len(names(shown)) == 10


def test_a_folder_without_runs_says_so(page, tmp_path):
    (tmp_path / "empty").mkdir()
    shown = page(root=tmp_path / "empty")
    shown.get_by_text("yet. Start one with: ml-pipeline train").wait_for()
    make_run(tmp_path / "empty", "a", n_rows=3)
    wait_for_points(shown, 3)


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_narrow_screen_shows_everything_in_one_column(page, scheme):
    shown = page("#run=first&run=second", width=390, height=844, color_scheme=scheme)
    wait_for_points(shown, 13)
    for view in ("Time", "Machine", "Settings", "Log", "Report", "Curves"):
        shown.get_by_role("tab", name=view).click()
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390, view
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    shown.locator("#theme").click()
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") != paper


def test_buttons_are_there_where_a_service_serves_it(page, controls):
    shown = page(controls=controls)
    shown.get_by_role("button", name="Stop").click()
    shown.get_by_text("first saves and stops.").wait_for()
    shown.get_by_role("button", name="Scale").click()
    assert shown.get_by_label("Environments").input_value() == "2"  # as it is
    shown.get_by_label("Workers").fill("many")
    shown.get_by_label("Environments").fill("16")
    shown.keyboard.press("Enter")
    shown.get_by_text('Workers must be a whole number, auto or dynamic, but are "many".').wait_for()
    assert shown.get_by_label("Environments").input_value() == "16"
    shown.get_by_label("Workers").fill("dynamic")
    shown.keyboard.press("Enter")
    shown.get_by_text("first scales after its current iteration").wait_for()
    shown.locator('tr[data-run="third"]').click()
    assert shown.get_by_role("button", name="Stop").is_disabled()
    shown.get_by_role("button", name="Resume").click()
    shown.get_by_text("third continues from its checkpoint").wait_for()
    assert controls.asked == [("stop", "first"), ("scale", "first", "dynamic", 16), ("resume", "third", None)]
    shown.locator('tr[data-run="second"]').click()
    shown.get_by_role("button", name="Resume").click()
    shown.get_by_label("Steps in all").fill("500")
    shown.keyboard.press("Enter")
    shown.get_by_text("must be a whole number above 500").wait_for()
    shown.get_by_label("Steps in all").fill("3000")
    shown.keyboard.press("Enter")
    shown.get_by_text("second continues from its checkpoint").wait_for()
    assert controls.asked[-1] == ("resume", "second", 3000)


def test_the_word_about_a_stop_goes_once_the_run_has_stopped(page, controls, root):
    shown = page(controls=controls)
    shown.get_by_role("button", name="Stop").click()
    banner = shown.get_by_text("first saves and stops.")
    banner.wait_for()
    state = json.loads((root / "first" / "state.json").read_text())
    (root / "first" / "state.json").write_text(json.dumps({**state, "status": "stopped"}))
    banner.wait_for(state="hidden", timeout=7000)


def test_without_a_service_there_are_no_buttons(page):
    shown = page()
    wait_for_points(shown, 8)
    assert shown.get_by_role("button", name="Stop").count() == 0
