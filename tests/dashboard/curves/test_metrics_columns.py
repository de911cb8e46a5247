import json
import os
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.dashboard import files
from ml_pipeline.dashboard.curves import metrics_columns
from ml_pipeline.dashboard.curves.metrics_columns import MetricsColumns, rows_of
from ml_pipeline.runtime.files import GrowingFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, text, mode="a"):
    with path.open(mode) as file:
        file.write(text)


def values(columns, name="a"):
    return columns.column(name).tolist()


def test_only_what_is_new_is_read(path, monkeypatch):
    write(path, '{"a": 1, "b": null}\n{"a": 2.5}\n')
    columns = MetricsColumns(path)
    assert columns.refresh()
    assert values(columns) == [1.0, 2.5]
    assert np.isnan(columns.column("b")).all()
    parsed = []
    usual = metrics_columns.rows_of
    monkeypatch.setattr(metrics_columns, "rows_of", lambda lines, known: parsed.append(lines) or usual(lines, known))
    assert not columns.refresh()
    write(path, '{"a": 3, "c": 7}\n')
    generation = columns.generation
    assert columns.refresh()
    assert parsed == [b'{"a": 3, "c": 7}\n']
    assert (values(columns), columns.generation) == ([1.0, 2.5, 3.0], generation)
    assert columns.column("c").tolist()[2:] == [7.0]
    assert np.isnan(columns.column("c")[:2]).all()


def test_a_torn_last_line_waits_for_its_rest(path):
    write(path, '{"a": 1}\n{"a": 2')
    columns = MetricsColumns(path)
    columns.refresh()
    assert values(columns) == [1.0]
    write(path, "3}")
    assert not columns.refresh()
    write(path, "\n")
    assert columns.refresh()
    assert values(columns) == [1.0, 23.0]


def test_a_file_that_was_cut_is_read_anew(path):
    write(path, '{"a": 1}\n{"a": 2}\n{"a": 3')
    columns = MetricsColumns(path)
    columns.refresh()
    generation = columns.generation
    os.truncate(path, 9)
    assert columns.refresh()
    assert values(columns) == [1.0]
    assert columns.generation != generation
    write(path, '{"a": 5}\n')
    columns.refresh()
    assert values(columns) == [1.0, 5.0]


def test_a_file_that_was_replaced_by_a_longer_one_is_read_anew(path):
    write(path, '{"a": 1}\n{"a": 2}\n')
    columns = MetricsColumns(path)
    columns.refresh()
    generation = columns.generation
    other = path.with_name("other")
    write(other, '{"a": 1}\n{"a": 2}\n{"a": 4}\n')
    other.replace(path)
    columns.refresh()
    assert (values(columns), columns.generation != generation) == ([1.0, 2.0, 4.0], True)


def test_a_file_cut_and_grown_between_two_looks_is_read_anew(path):
    write(path, '{"a": 1}\n{"a": 2}\n')
    columns = MetricsColumns(path)
    columns.refresh()
    os.truncate(path, 0)
    write(path, '{"a": 7}\n{"a": 8}\n{"a": 9}\n')
    columns.refresh()
    assert values(columns) == [7.0, 8.0, 9.0]


def test_a_file_that_is_deleted_has_no_rows(path):
    write(path, '{"a": 1}\n')
    columns = MetricsColumns(path)
    columns.refresh()
    path.unlink()
    assert columns.refresh()
    assert (columns.n_rows, columns.names) == (0, [])
    assert not columns.refresh()


def test_lines_that_are_no_objects_of_numbers_cost_only_themselves(path):
    lines = [
        "[1]",
        "oops",
        '"a"',
        '{"a": "text", "b": true, "c": [1], "d": {}}',
        '{"a": 1}',
        "",
        "\0\0",
        '{"a": 1e999}',
    ]
    write(path, "".join(f"{line}\n" for line in [*lines, "[" * 100_000]))
    columns = MetricsColumns(path)
    columns.refresh()
    assert columns.n_rows == 3
    assert values(columns)[1:] == [1.0, np.inf]
    assert all(np.isnan(columns.column(name)).all() for name in "bcd")


def test_a_line_that_is_too_long_is_dropped(path, monkeypatch):
    monkeypatch.setattr(files, "_LONGEST_LINE", 1000)
    write(path, '{"a": 1}\n' + "x" * 5000)
    columns = MetricsColumns(path)
    columns.refresh()
    write(path, 'x\n{"a": 2}\n')
    columns.refresh()
    assert values(columns) == [1.0, 2.0]


def deep(levels):
    return '{"a": 1, "x": ' + "[" * levels + "0" + "]" * levels + "}\n"


HOSTILE = {
    "lists_100_deep": deep(100) * 350,
    "lists_200_deep": deep(200) * 350,
    "objects_deep": ('{"a": 1, "x": ' + '{"y": ' * 200 + "0" + "}" * 201 + "\n") * 100,
    "many_keys": '{"a": 1}\n' + json.dumps({"a": 1, **{f"key-{i}": i for i in range(100_000)}}) + "\n",
    "many_keys_in_the_middle": '{"a": 1}\n' * 9000
    + json.dumps({f"key-{i}": i for i in range(50_000)})
    + "\n"
    + '{"a": 1}\n' * 9000,
    "other_keys_in_each_line": "".join(f'{{"a": 1, "key-{i}": {i}}}\n' for i in range(20_000)),
    "empty_objects": '{"a": 1}\n' + "{}\n" * 60_000,
    "long_name": '{"a": 1, "' + "x" * 500_000 + '": 1}\n',
    "quotes": '{"a": 1}\n' * 9000 + '"' + '\\"' * 400_000 + "\n",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_no_run_writes_is_read_in_bounded_time_and_memory(path, text):
    write(path, text)
    columns = MetricsColumns(path)
    columns.refresh()
    assert np.nanmax(columns.column("a")) == 1.0
    assert len(columns.names) <= 500
    assert max(map(len, columns.names)) <= 200
    assert columns.n_bytes <= 8 * 2 * metrics_columns._MOST_CELLS


def test_of_a_huge_file_the_end_is_read(path, monkeypatch):
    monkeypatch.setattr(metrics_columns, "GrowingFile", partial(GrowingFile, most_bytes=20))
    write(path, '{"a": 1}\n{"a": 2}\n{"a": 3}\n{"a": 4}\n')
    columns = MetricsColumns(path)
    columns.refresh()
    assert values(columns) == [3.0, 4.0]
    write(path, '{"a": 5}\n')
    columns.refresh()
    assert values(columns) == [3.0, 4.0, 5.0]


json_values = st.one_of(st.none(), st.integers(-10, 10), st.floats(allow_nan=False, allow_infinity=False))
json_rows = st.lists(
    st.dictionaries(st.sampled_from(["a", "b/c", 'd"e', "ü", "f:g", "h:null", ":n", "null"]), json_values), max_size=20
)


def same(left, right):
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name], equal_nan=True) for name in left)


@given(json_rows, st.sampled_from([(",", ":"), (", ", ": ")]), st.sets(st.sampled_from(["a", "b/c", "z"])))
def test_many_lines_are_read_as_few_are(rows, separators, known):
    lines = "".join(json.dumps(each, separators=separators) + "\n" for each in rows).encode()
    as_table = metrics_columns._read_as_table(lines, known) if lines else None
    if as_table is not None:
        one_by_one = {name: values for name, values in rows_of(lines).items() if not np.isnan(values).all()}
        assert same({name: as_table[name] for name in one_by_one}, one_by_one)


def test_a_name_that_appears_in_the_middle_of_many_lines_is_found(monkeypatch):
    rows = [{"a": i, **({"eval/score": i / 2} if i == 5000 else {})} for i in range(10_000)]
    lines = "".join(f"{json.dumps(each)}\n" for each in rows).encode()
    monkeypatch.setattr(metrics_columns, "json_line", lambda line: json.loads(line) if b"eval" not in line else None)
    found = rows_of(lines, ["a"])
    assert found["a"].tolist() == list(range(10_000))
    assert np.flatnonzero(~np.isnan(found["eval/score"])).tolist() == [5000]


def test_among_many_lines_a_text_costs_only_itself():
    rows = [{"a": i} for i in range(10_000)]
    rows[77] = {"a": "what"}
    found = rows_of("".join(f"{json.dumps(each)}\n" for each in rows).encode())
    assert np.flatnonzero(np.isnan(found["a"])).tolist() == [77]


def test_a_huge_file_keeps_its_extremes_in_bounded_memory(path, monkeypatch):
    monkeypatch.setattr(metrics_columns, "GrowingFile", partial(GrowingFile, chunk_bytes=10_000))
    rng = np.random.default_rng(0)
    y = rng.normal(size=20_000)
    y[[123, 15_000]] = -50.0, 60.0
    write(path, "".join(f'{{"step": {i}, "a": {value}, "busy": 0.5}}\n' for i, value in enumerate(y)))
    columns = MetricsColumns(path, durations=["busy"], most_rows=1000)
    columns.refresh()
    assert columns.n_rows <= 1000
    assert columns.n_bytes < 4 * 8 * 4000
    found, step = columns.column("a"), columns.column("step")
    assert (found.min(), found.max()) == (-50.0, 60.0)
    assert np.all(np.diff(step) > 0)
    assert abs(step[np.argmin(found)] - 123) < 200
    assert columns.elapsed[-1] == pytest.approx(10_000.0)
    assert columns.column("busy").sum() == pytest.approx(10_000.0)


def test_time_adds_up_over_the_durations_of_all_rows(path):
    columns = MetricsColumns(path, durations=["x", "y"])
    write(path, '{"x": 1, "y": 2}\n{"x": null, "y": 1}\n')
    columns.refresh()
    write(path, '{"x": 0.5}\n')
    columns.refresh()
    assert columns.elapsed.tolist() == [3.0, 4.0, 4.5]


def test_more_names_than_anybody_reads_are_left_out(path):
    write(path, json.dumps({f"name-{i}": i for i in range(2000)}) + "\n")
    columns = MetricsColumns(path)
    columns.refresh()
    assert len(columns.names) == 500


def test_a_link_is_no_metrics_file(path, tmp_path):
    write(tmp_path / "elsewhere", '{"a": 1}\n')
    path.symlink_to(tmp_path / "elsewhere")
    columns = MetricsColumns(path)
    assert not columns.refresh()
    assert columns.n_rows == 0
