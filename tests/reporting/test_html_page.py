"""A page is one file, and nothing in it is read as HTML that was meant as text."""

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
