"""Charts over one time axis and sortable tables, as the page holds them and as a browser shows them."""

import json
import re

import numpy as np
import pytest

from ml_pipeline.reporting.html_page import write_html_page
from ml_pipeline.reporting.interactive_page import (
    Curve,
    Marks,
    SortableTable,
    TableColumn,
    TimeChart,
    interactive_parts,
    interactive_style,
)

TIMES = np.datetime64("2024-01-01T00:00", "s") + np.arange(1000) * np.timedelta64(3600, "s")
EQUITY = 1e4 + np.arange(1000.0)


def demo_page(path, *, word="EUR</script><b>USD"):
    charts = [
        TimeChart("Equity", "money", [Curve("agent", EQUITY, "#0b5fff"), Curve("hold", EQUITY[::-1], "#e07b00")]),
        TimeChart(
            "Price",
            "price",
            [Curve("close", EQUITY / 100, "#555b66")],
            [Marks("bought", [100, 500], [101.0, 105.0], "#1f8a4c", "up")],
        ),
        TimeChart(
            "Exposure",
            "percent",
            [Curve("net", np.where(EQUITY > 10_500, 1.0, np.nan), "#0b5fff", steps=True)],
            axis="of the equity",
        ),
    ]
    table = SortableTable(
        "Trades",
        [
            TableColumn("symbol", "word", [word, "B", "A"]),
            TableColumn("opened", "time", TIMES[[100, 500, 300]]),
            TableColumn("profit", "money", [3.0, float("nan"), -20.0]),
            TableColumn("bars", "whole", [10, 20, 30]),
        ],
        bars=([100, 500, 300], [110, 520, 330]),
        details={"rsi_14": [0.5, -0.25, 1.5]},
        detail_title="What the agent saw",
    )
    places, tables, end = interactive_parts(TIMES, charts, [table])
    write_html_page(path, "A page", [*places, *tables, *end], style=interactive_style())
    return path


def test_the_page_is_one_file_that_holds_everything(tmp_path):
    text = demo_page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=", text)
    assert "Permission is hereby granted" in text
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    content = json.loads(data)
    assert [chart["title"] for chart in content["charts"]] == ["Equity", "Price", "Exposure"]
    assert content["tables"][0]["columns"][0]["values"]["words"][2] == "EUR</script><b>USD"


def visible(page, chart):
    """(first, last) second that a chart shows."""
    script = "i => { const scale = document.reportCharts[i].plot.scales.x; return [scale.min, scale.max]; }"
    return page.evaluate(script, chart)


@pytest.mark.system
def test_a_browser_draws_zooms_and_sorts(tmp_path, browser_page):
    page = browser_page(demo_page(tmp_path / "page.html"))
    page.wait_for_selector("html[data-drawn=true]")
    assert page.locator(".chart canvas").count() == 3
    begin, end = visible(page, 0)
    assert [begin, end] == TIMES[[0, -1]].astype(int).tolist()

    # Dragging over one chart zooms all of them, and a button shows the whole again.
    over = page.locator("#chart-1 .u-over").bounding_box()
    middle = over["y"] + over["height"] / 2
    page.mouse.move(over["x"] + over["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(over["x"] + over["width"] * 0.5, middle, steps=5)
    page.mouse.up()
    span = end - begin
    for chart in range(3):
        assert visible(page, chart) == pytest.approx([begin + span * 0.25, begin + span * 0.5], abs=span * 0.01)
    page.locator("#chart-2 button", has_text="whole period").click()
    assert visible(page, 0) == [begin, end]
    page.locator("#chart-0").focus()
    page.keyboard.press("+")
    assert visible(page, 2) == pytest.approx([begin + span / 5, end - span / 5])

    # The value under the pointer stands in the legend of each chart.
    page.keyboard.press("0")
    over = page.locator("#chart-0 .u-over").bounding_box()
    page.mouse.move(over["x"] + over["width"] / 2, over["y"] + 10)
    price = float(page.locator("#chart-1 .u-legend .u-value").nth(1).inner_text())
    assert price == pytest.approx(105, abs=0.1)

    cells = lambda column: page.locator(f"#table-0 tbody td:nth-child({column})").all_inner_texts()  # noqa: E731
    assert cells(1) == ["EUR</script><b>USD", "B", "A"]
    page.locator("#table-0 th button", has_text="profit").click()
    assert cells(3) == ["-20.00", "3.00", "–"]
    page.locator("#table-0 th button", has_text="profit").click()
    assert cells(3) == ["3.00", "-20.00", "–"]
    assert page.locator("#table-0 th", has_text="profit").get_attribute("aria-sort") == "descending"
    assert cells(2)[0] == "2024-01-05 04:00"

    page.locator("#table-0 tbody tr", has_text="-20.00").click()
    first, last = visible(page, 0)
    assert first < TIMES[300].astype(int) < TIMES[330].astype(int) < last
    assert last - first < span / 5
    assert "rsi_14: 1.5" in page.locator("#table-0").inner_text()


@pytest.mark.system
def test_it_can_be_read_in_the_dark_and_on_a_narrow_screen(tmp_path, browser_page):
    page = browser_page(demo_page(tmp_path / "page.html"), color_scheme="dark", viewport={"width": 380, "height": 800})
    page.wait_for_selector("html[data-drawn=true]")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


@pytest.mark.system
def test_cells_lead_to_places_beside_the_page_and_tell_which_row_was_chosen(tmp_path, browser_page):
    names = TableColumn("run", "word", ["<b>one</b>", "two"], links=["./one/", ""])
    rates = TableColumn("rate", "number", [1e-5, 1e3], exact=True)
    _, tables, end = interactive_parts(TIMES[:0], [], [SortableTable("Runs", [names, rates])])
    write_html_page(tmp_path / "page.html", "A page", [*tables, *end], style=interactive_style())
    page = browser_page(tmp_path / "page.html")
    page.wait_for_selector("html[data-drawn=true]")
    assert page.locator("#table-0 a").evaluate_all("links => links.map((each) => each.getAttribute('href'))") == [
        "./one/"
    ]
    assert page.locator("#table-0 tbody td").all_inner_texts() == ["<b>one</b>", "0.00001", "two", "1,000"]
    page.evaluate("document.getElementById('table-0').addEventListener('rowchosen', (e) => { window.row = e.detail; })")
    page.locator("#table-0 tbody tr", has_text="two").click()
    assert page.evaluate("window.row") == 1


@pytest.mark.system
def test_logarithmic_axes_have_ticks_at_one_two_and_five(tmp_path, browser_page):
    growing = 1e4 * np.exp(np.arange(1000) * 3e-3)  # 10,000 to 200,000
    charts = [TimeChart("Equity", "money", [Curve("agent", growing, "#0b5fff")], log_scale=True)]
    places, _, end = interactive_parts(TIMES, charts)
    write_html_page(tmp_path / "page.html", "A page", [*places, *end], style=interactive_style())
    page = browser_page(tmp_path / "page.html")
    page.wait_for_selector("html[data-drawn=true]")
    shown = page.evaluate("document.reportCharts[0].plot.axes[1]._values")
    assert [label for label in shown if label] == ["10,000", "20,000", "50,000", "100,000", "200,000"]


@pytest.mark.system
def test_axes_say_what_they_measure(tmp_path, browser_page):
    page = browser_page(demo_page(tmp_path / "page.html"))
    page.wait_for_selector("html[data-drawn=true]")
    labels = page.evaluate("document.reportCharts.map(({plot}) => plot.axes.map(({label}) => label))")
    time = "time of the bar, as in the data"
    assert labels == [[time, "account currency"], [time, "price"], [time, "of the equity"]]


@pytest.mark.system
def test_a_legend_has_figures_without_a_pointer(tmp_path, browser_page):
    page = browser_page(demo_page(tmp_path / "page.html"))
    page.wait_for_selector("html[data-drawn=true]")
    legend = lambda: page.locator("#chart-0 .u-legend .u-value").all_inner_texts()  # noqa: E731
    last = ["2024-02-11 15:00", "10,999.00", "10,000.00"]
    assert legend() == last
    over = page.locator("#chart-0 .u-over").bounding_box()
    page.mouse.move(over["x"] + over["width"] / 2, over["y"] + 10)
    page.locator("#chart-0 .u-legend").filter(has_not_text=last[1]).wait_for()
    page.mouse.move(over["x"] + over["width"] / 2, over["y"] - 60)
    page.locator("#chart-0 .u-legend").filter(has_text=last[1]).wait_for()
    assert legend() == last


@pytest.mark.system
def test_a_table_is_sorted_by_keyboard_and_shows_by_what(tmp_path, browser_page):
    page = browser_page(demo_page(tmp_path / "page.html"))
    page.wait_for_selector("html[data-drawn=true]")
    header = page.locator("#table-0 th button", has_text="profit")
    header.focus()
    page.keyboard.press("Enter")
    assert page.locator("#table-0 tbody td:nth-child(3)").all_inner_texts() == ["-20.00", "3.00", "–"]
    assert page.evaluate("document.activeElement.innerText").startswith("profit")
    arrow = "getComputedStyle(document.querySelector('#table-0 th[aria-sort=ascending] button'), '::after').content"
    assert "▲" in page.evaluate(arrow)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


@pytest.mark.system
def test_what_was_observed_stands_below_the_row_that_was_clicked(tmp_path, browser_page):
    page = browser_page(demo_page(tmp_path / "page.html"))
    page.wait_for_selector("html[data-drawn=true]")
    rows = page.locator("#table-0 tbody tr")
    rows.nth(0).click()
    assert "rsi_14: 0.49" in rows.nth(1).inner_text()
    assert rows.count() == 4
    rows.nth(3).click()  # the third row of the data, behind what is shown of the first
    assert rows.count() == 4
    assert "rsi_14: 1.5" in rows.nth(3).inner_text()
    page.locator("#table-0 th button", has_text="profit").click()
    assert page.locator("#table-0 tbody tr").count() == 3


@pytest.mark.system
def test_a_table_that_scrolls_says_so(tmp_path, browser_page):
    path = demo_page(tmp_path / "page.html", word="A symbol with a name that is very, very long")
    wide, narrow = ({"width": width, "height": 800} for width in (1200, 300))
    says = "getComputedStyle(document.querySelector('#table-0'), '::before').content"
    page = browser_page(path, viewport=narrow)
    page.wait_for_selector("#table-0[data-scrolls]")
    assert "sideways" in page.evaluate(says)
    assert page.locator("#table-0").get_attribute("tabindex") == "0"  # the arrow keys scroll it
    page.set_viewport_size(wide)
    page.wait_for_selector("#table-0:not([data-scrolls])")
    assert page.evaluate(says) == "none"


def test_a_phone_shows_a_page_at_its_own_width(tmp_path):
    assert '<meta name="viewport" content="width=device-width' in demo_page(tmp_path / "page.html").read_text()
