"""A page is one file, and nothing in it is read as HTML that was meant as text."""

import pytest
from matplotlib.figure import Figure

from ml_pipeline.reporting.html_page import html_picture, html_table, png_of, write_html_page


def test_a_page_holds_its_parts_and_refers_to_nothing_outside(tmp_path):
    figure = Figure(figsize=(1, 1))
    parts = [html_table([["name", "n"], ["a", "1"]]), "", html_picture(png_of(figure), 'a "blank" square')]
    write_html_page(tmp_path / "page.html", "<b>Title</b>", parts, style="td { color: red; }\n")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>&lt;b&gt;Title&lt;/b&gt;</title>" in text
    assert "td { color: red; }" in text
    assert '<img alt="a &quot;blank&quot; square" src="data:image/png;base64,' in text
    assert "http" not in text
    assert "<td>a</td><td>1</td>" in text
    assert "\n\n" not in text


def test_cells_are_text():
    assert html_table([["<x>"], ["&"]]) == (
        '<div class="rows"><table><tr><th>&lt;x&gt;</th></tr><tr><td>&amp;</td></tr></table></div>'
    )


@pytest.mark.system
def test_a_picture_stays_readable_on_a_phone_by_scrolling(tmp_path, browser_page):
    figure = Figure(figsize=(10, 3), dpi=110)
    write_html_page(tmp_path / "page.html", "A page", [html_picture(png_of(figure), "a wide picture")])
    page = browser_page(tmp_path / "page.html", viewport={"width": 390, "height": 800})
    page.wait_for_selector(".rows[data-scrolls] img")
    assert page.locator("img").bounding_box()["width"] >= 600
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1200, "height": 800})
    page.wait_for_selector(".rows:not([data-scrolls]) img")
