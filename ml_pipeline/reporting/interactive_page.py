"""Interactive charts over one time axis, and sortable tables, for a self-contained HTML page.

uPlot (MIT, https://github.com/leeoniya/uPlot) draws the curves; it is copied into the page with its licence. Numbers
are packed as compressed differences of integers: neighbours differ little, so 100,000 values take about 150 kB instead
of 900 kB as digits. `assets/report.js` unpacks them.
"""

import html
import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Unit = Literal["money", "percent", "number", "price"]
# Default labels of the vertical axis.
_AXES: Mapping[Unit, str] = {"money": "account currency", "percent": "percent", "number": "value", "price": "price"}
# Values of a coarse curve that are drawn; a wide screen has 4,000 pixels in a row.
_MOST_COARSE = 20_000

ColumnKind = Literal["word", "whole", "time", "money", "percent", "number"]


@dataclass(frozen=True, eq=False)
class Curve:
    """A line of a chart: one value per time, NaN for a gap. color: a CSS color.

    coarse: of many thousand values draw only every k-th; for curves that change slowly.
    """

    label: str
    values: ArrayLike
    color: str
    width: float = 1.5
    dashed: bool = False
    filled: bool = False
    steps: bool = False
    coarse: bool = False


@dataclass(frozen=True, eq=False)
class Marks:
    """Points on a chart: indices of times, and a value for each. shape: a triangle up or down, or a vertical line."""

    label: str
    at: ArrayLike
    values: ArrayLike
    color: str
    shape: Literal["up", "down", "line"]


@dataclass(frozen=True, eq=False)
class TimeChart:
    """Curves over the times of the page. axis: label of the vertical axis; None: the default label of the unit."""

    title: str
    unit: Unit
    curves: Sequence[Curve]
    marks: Sequence[Marks] = ()
    height_px: int = 220
    log_scale: bool = False
    """Whether the chart opens with a logarithmic scale; users can switch the scale of charts of money."""
    axis: str | None = None


@dataclass(frozen=True, eq=False)
class TableColumn:
    """A column of a table: words, or numbers formatted by kind and sorted as numbers.

    exact: store numbers with all digits; otherwise they are rounded to a small fraction of the column's range.
    links: target of each cell, relative to the page; "" for a cell without a link.
    """

    label: str
    kind: ColumnKind
    values: Sequence[Any] | NDArray[Any]
    exact: bool = False
    links: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class SortableTable:
    """A table that its headers sort. A click on a row shows its bars in the charts, and its details below.

    bars: (first, last) index of times for each row. details: further values of each row, by name, (n,) each.
    detail_title: heading of the details.
    """

    title: str
    columns: Sequence[TableColumn]
    bars: tuple[ArrayLike, ArrayLike] | None = None
    details: Mapping[str, ArrayLike] = field(default_factory=dict)
    detail_title: str = ""


ZOOM_HINT = '<p class="hint">Drag across a chart to zoom all of them; the pointer shows values.</p>'


def padded(values: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """The first n values, padded with NaN if the account was closed earlier."""
    return np.concatenate([values[:n], np.full(max(0, n - len(values)), np.nan)])


def interactive_parts(
    times: NDArray[np.datetime64], charts: Sequence[TimeChart], tables: Sequence[SortableTable] = ()
) -> tuple[list[str], list[str], list[str]]:
    """HTML parts: (one placeholder per chart, one placeholder per table, parts for the end of the page)."""
    content = {
        "times": pack_times(times),
        "charts": [_chart(chart) for chart in charts],
        "tables": [_table(table) for table in tables],
    }
    chart_places = [f'<div class="chart" id="chart-{i}"></div>' for i in range(len(charts))]
    table_places = [f'<div class="rows" id="table-{i}"></div>' for i in range(len(tables))]
    return chart_places, table_places, [json_block("data", content), *_assets()]


def interactive_style() -> str:
    """The CSS of charts and tables."""
    return asset("uPlot.min.css") + asset("report.css")


def json_block(name: str, content: Mapping[str, Any]) -> str:
    """Data for a script of the page, which reads them from the element with this name. They must not contain NaN."""
    # "<" is escaped, so that no text in the data can end the script element.
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _chart(chart: TimeChart) -> dict[str, Any]:
    return {
        "title": chart.title,
        "unit": chart.unit,
        "axis": chart.axis or _AXES[chart.unit],
        "height": chart.height_px,
        "log": chart.log_scale,
        "curves": [
            {
                "label": curve.label,
                "color": curve.color,
                "width": curve.width,
                "dashed": curve.dashed,
                "filled": curve.filled,
                "steps": curve.steps,
                "values": pack_numbers(_coarsened(curve.values) if curve.coarse else curve.values),
            }
            for curve in chart.curves
        ],
        "marks": [
            {
                "label": marks.label,
                "color": marks.color,
                "shape": marks.shape,
                "at": pack_whole_numbers(marks.at),
                "values": pack_numbers(marks.values),
            }
            for marks in chart.marks
        ],
    }


def _coarsened(values: ArrayLike) -> NDArray[Any]:
    """Repeat every k-th value for the k - 1 that follow, so that about `_MOST_COARSE` different values are left."""
    values = np.asarray(values)
    every = -(-len(values) // _MOST_COARSE) or 1
    return values[np.arange(len(values)) // every * every]


def _table(table: SortableTable) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": [
            {"label": column.label, "kind": column.kind, "values": _column(column), "links": [*column.links]}
            for column in table.columns
        ],
        "bars": None if table.bars is None else [pack_whole_numbers(each) for each in table.bars],
        "details": {name: pack_numbers(values) for name, values in table.details.items()},
        "detailTitle": table.detail_title,
    }


def _column(column: TableColumn) -> dict[str, Any]:
    if column.kind == "word":
        return pack_words([str(value) for value in column.values])
    if column.kind == "time":
        return pack_times(np.asarray(column.values))
    if column.exact:
        return pack_exactly(column.values)
    return pack_whole_numbers(column.values) if column.kind == "whole" else pack_numbers(column.values)


@cache
def _assets() -> tuple[str, ...]:
    licence = html.escape(asset("uPlot-LICENSE.txt"), quote=False)
    return (
        f"<script>{asset('uPlot.min.js')}</script>",
        f"<script>{asset('report.js')}</script>",
        f"<!-- uPlot:\n{licence}-->",
    )


@cache
def asset(name: str, package: str = "ml_pipeline.reporting") -> str:
    """The text of a file in the folder `assets` of a package."""
    return files(package).joinpath("assets", name).read_text(encoding="utf-8")


# Levels between the smallest and the largest number; finer than a screen can show, even zoomed in.
_LEVELS = 2**18


def pack_numbers(values: ArrayLike) -> dict[str, Any]:
    """Numbers (n,), rounded to 262,144 levels of their range; NaN stays NaN, infinity becomes NaN."""
    numbers = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(numbers)
    low, high = (float(numbers[finite].min()), float(numbers[finite].max())) if finite.any() else (0.0, 0.0)
    step = (high - low) / _LEVELS or abs(low) / _LEVELS or 1.0
    levels = np.zeros(len(numbers), dtype=np.int64)  # 0 stands for NaN
    levels[finite] = np.rint((numbers[finite] - low) / step).astype(np.int64) + 1
    return {"first": low - step, "step": step, "size": len(levels), "missing": True, "data": _deflated(levels)}


def pack_exactly(values: ArrayLike) -> dict[str, Any]:
    """Numbers (n,) with all digits, for a few that a person reads; NaN and infinity become None."""
    numbers = np.asarray(values, dtype=np.float64)
    return {"plain": [number if np.isfinite(number) else None for number in numbers.tolist()]}


def pack_whole_numbers(values: ArrayLike) -> dict[str, Any]:
    """Integers (n,), exact; neighbours may differ by less than 2**31 times their greatest common step."""
    numbers = np.asarray(values, dtype=np.int64)
    first = int(numbers[0]) if len(numbers) else 0
    step = int(np.gcd.reduce(numbers - first)) or 1 if len(numbers) else 1
    return {
        "first": first,
        "step": step,
        "size": len(numbers),
        "missing": False,
        "data": _deflated((numbers - first) // step),
    }


def pack_times(times: NDArray[np.datetime64]) -> dict[str, Any]:
    """Times (n,) as seconds since 1970, exact."""
    return pack_whole_numbers(times.astype("datetime64[s]").astype(np.int64))


def pack_words(words: Sequence[str]) -> dict[str, Any]:
    """Words (n,), as indices into a list of distinct words."""
    known = sorted(set(words))
    place = {word: i for i, word in enumerate(known)}
    return {"words": known, **pack_whole_numbers([place[word] for word in words])}


def _deflated(levels: NDArray[np.int64]) -> str:
    """Zigzag-encoded differences of neighbours, split into byte planes, compressed, in base 64."""
    steps = np.diff(levels, prepend=0)
    if len(steps) and np.abs(steps).max() >= 2**31:
        raise ValueError("Neighbouring numbers are 2**31 or more steps apart.")
    folded = ((steps << 1) ^ (steps >> 63)).astype("<u4")
    planes = folded.view(np.uint8).reshape(-1, 4).T.tobytes()
    return b64encode(zlib.compress(planes, 9)).decode()
