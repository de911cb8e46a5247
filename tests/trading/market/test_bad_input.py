"""The list of what users get wrong, each from a file to its one sentence: what, where, and what to do about it."""

import gzip
import zipfile
from contextlib import suppress

import numpy as np
import polars as pl
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.envs.stateful import StatefulTradingEnv
from ml_pipeline.trading.market import csv_file
from ml_pipeline.trading.market.columns import Dialect
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.tables import read_table
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

CLOSES = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, 120).cumsum())
FEATURES = ("log_return_1", "feature_mine")


def _write(folder, *, n_bars=120, column=None, row=0, cell=""):
    """A file of symbols AAA and BBB side by side; one cell is another."""
    days = np.datetime64("2024-01-01") + np.arange(n_bars)
    titles = [
        "time",
        *(f"{s}:{name}" for s in ("AAA", "BBB") for name in ("open", "high", "low", "close", "feature_mine")),
    ]
    lines = [",".join(titles)]
    for i, (day, close) in enumerate(zip(days, CLOSES, strict=False)):
        cells = [str(day), *[f"{close}", f"{close * 1.01}", f"{close * 0.99}", f"{close}", f"{i % 7}"] * 2]
        if column is not None and i == row:
            cells[titles.index(column)] = cell
        lines.append(",".join(cells))
    path = folder / "prices.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize(
    ("wrong", "settings", "sentence"),
    [
        # cells: row, symbol and remedy
        (
            {"column": "BBB:close", "row": 9, "cell": "inf"},
            {},
            r"row 10 \(line 11\): BBB:close is inf, .*; fix or drop",
        ),
        (
            {"column": "BBB:close", "row": 9, "cell": ""},
            {},
            r"row 10 \(line 11\): BBB:close is empty or not a number; drop the row",
        ),
        (
            {"column": "AAA:high", "row": 3, "cell": "1"},
            {},
            r"row 4 .*the high of AAA is 1, below its low of .*; fix or",
        ),
        ({"column": "time", "row": 5, "cell": "2024-01-05"}, {}, r"row 6 .*second bar of AAA at 2024-01-05; drop one"),
        ({"column": "time", "row": 5, "cell": "noon"}, {}, r'row 6 \(line 7\): "noon" is not a time; .*; fix or drop'),
        # features
        (
            {"column": "BBB:feature_mine", "row": 50, "cell": ""},
            {},
            r"feature_mine of BBB is nan at 2024-02-20, .*; fix",
        ),
        ({"column": "AAA:feature_mine", "row": 50, "cell": "-inf"}, {}, r"feature_mine of AAA is -inf at 2024-02-20"),
        ({}, {"features": ("feature_mien",)}, r'no column "feature_mien"\. Did you mean "feature_mine"'),
        ({}, {"features": ("rsi14",)}, r'no feature "rsi14"\. Did you mean "rsi_14"'),
        # too few bars
        (
            {"n_bars": 1},
            {},
            "prices.csv has too few bars: 1, but feature log_return_1 needs 2 of an asset; use more",
        ),
        ({"n_bars": 8}, {"window": 5}, "The split .* has 1 of .*, but a step needs 2; use more bars, shorten"),
        ({}, {"window": 200}, "The split train has 0 of the .* for features and window, .*; use more bars"),
        ({}, {"train_fraction": 0.98, "validation_fraction": 0.01}, "The split validation has 1 of .*; use more"),
        # settings
        ({}, {"fee_bps": -1.0}, "fee_bps must be from 0 to 1000 basis points, but got -1"),
        ({}, {"fee_bps": 1e9}, "fee_bps must be from 0 to 1000 basis points, but got 1000000000"),
        ({}, {"symbols": ("AAB",)}, r'has no symbol "AAB"\. Did you mean "AAA"'),
        ({}, {"reward": "sharp_ratio"}, r'no reward "sharp_ratio"\. Did you mean "sharpe_ratio"'),
        ({}, {"action_mode": "target_weight"}, r'but got "target_weight"\. Did you mean "target_weights"'),
        ({}, {"on_limit": "clamp"}, 'on_limit must be one of clip, refuse, but got "clamp"'),
    ],
)
def test_each_is_one_sentence(tmp_path, wrong, settings, sentence):
    path = _write(tmp_path, **wrong)
    with pytest.raises(UserError, match=sentence) as told:
        TradingTask(TradingConfig(**{"data": path, "features": FEATURES, **settings}))
    assert "\n" not in str(told.value)


def _env(tmp_path, **settings):
    task = TradingTask(TradingConfig(data=_write(tmp_path), features=FEATURES, **settings))
    env = StatefulTradingEnv(task.account.bars_of("train"), task.account.rules)
    env.reset(seed=0)
    return env


@pytest.mark.parametrize(
    ("mode", "action", "sentence"),
    [
        ("target_weights", [np.nan, 0.0], "is not finite; expected numbers from -1 to 1"),
        ("target_weights", [np.inf, 0.0], "is not finite; expected numbers from -1 to 1"),
        ("trade", [0.0, -np.inf], "is not finite; expected numbers from -1 to 1"),
        ("target_weights", [0.1], r"needs one number for each of \('AAA', 'BBB'\)"),
        ("discrete", [3, 0], "is not in MultiDiscrete"),
        ("buy_hold_sell", [0, -1], "is not in MultiDiscrete"),
        ("discrete", [np.nan, 0], "is not in MultiDiscrete.*; choices are whole numbers from 0"),
    ],
)
def test_an_action_that_is_none_is_one_sentence_and_changes_nothing(tmp_path, mode, action, sentence):
    env = _env(tmp_path, action_mode=mode)
    with pytest.raises(UserError, match=sentence):
        env.step(np.array(action))
    assert len(env.ledger()["time"]) == 1
    env.step(env.action_space.sample())
    assert len(env.ledger()["time"]) == 2


@pytest.mark.parametrize("action", [np.nan, 0.5, None, "buy", 3, -1])
@pytest.mark.parametrize("mode", ["discrete", "buy_hold_sell"])
def test_a_choice_for_one_asset_is_a_whole_number(tmp_path, mode, action):
    env = _env(tmp_path, action_mode=mode, symbols=("AAA",))
    with pytest.raises(UserError, match=rf"Action {action} is not in Discrete\(3\); choices are whole numbers from 0"):
        env.step(action)


def test_a_target_beyond_a_limit_is_clipped_and_counted_or_refused(tmp_path):
    limits = {"action_mode": "target_weights", "max_position": 0.3, "max_gross": 0.5, "fee_bps": 0.0}
    env = _env(tmp_path, **limits)
    *_, info = env.step(np.array([0.9, 0.0]))
    assert info["limits"] == ("max_position",)
    env.step(np.array([0.3, -0.3]))
    assert env.limit_counts == {"max_position": 1, "max_gross": 1}
    env = _env(tmp_path, on_limit="refuse", **limits)
    with pytest.raises(
        UserError, match=r"The target of AAA is 0.9 of the equity, but max_position is 0.3; lower it, or"
    ):
        env.step(np.array([0.9, 0.0]))
    with pytest.raises(
        UserError, match=r"targets add up to 0.6 of the equity, but max_gross is 0.5; lower them, or set"
    ):
        env.step(np.array([0.3, -0.3]))


def test_a_feature_of_constant_value_is_seen_as_zero(tmp_path):
    path = _write(tmp_path)
    header, *lines = path.read_text().splitlines()
    path.write_text("\n".join([header, *(f"{line.rpartition(',')[0]},5" for line in lines)]))
    task = TradingTask(TradingConfig(data=path, features=("feature_mine",)))
    observation, _ = task.evaluation_env("train").reset(seed=0)
    assert observation[0] != 0
    assert observation[1] == 0


TABLE = "time,close\n2024-01-01,1\n2024-01-02,2\n2024-01-03,3\n"


@pytest.mark.parametrize("closes", [[[1.0, 2.0]] * 2, [b"1", b"2"]], ids=["lists", "bytes"])
def test_prices_of_a_typed_file_that_cannot_be_numbers_are_refused(tmp_path, closes):
    path = tmp_path / "a.parquet"
    pl.DataFrame({"time": ["2024-01-01", "2024-01-02"], "close": closes}).write_parquet(path)
    with pytest.raises(UserError, match=r"which is not a number like 1234\.56"):
        load_market(path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.xlsx", b"PK\x03\x04\x14", "an Excel workbook or a ZIP archive, and not CSV; save the sheet as CSV"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1", "an Excel workbook, and not CSV; save the sheet as CSV"),
        ("a.csv", gzip.compress(TABLE.encode(), mtime=0), r"gzipped, and not CSV; name it \.csv\.gz"),
        ("a.csv", b'{\n "Information": "25 requests per day"}', r'JSON that begins with { "Information": "25 requests'),
        ("a.json", b'[{"time": 1}]', "JSON that begins with .*; write its table as CSV"),
        ("a.json", b"[[1704067200000, 1.5]]", "JSON that begins with"),
        ("a.json", b" [\n 1704067200000, 1.5]", "JSON that begins with"),
        ("a.json", b'["time", "close"]', "JSON that begins with"),
        ("a.csv", b"[]", "JSON that begins with"),
        ("a.csv", b"<!DOCTYPE html>\n<html></html>", "is a web page, and not CSV; download the data again"),
        ("a.csv", b"\x00\x01\x02", "is a binary file, and not CSV"),
        ("a.csv", b"Exceeded the daily hits limit", 'holds the text "Exceeded the daily hits limit" and not a table'),
        ("a.csv", b"\n\n\n", "is empty; expected a header"),
        ("a.csv.gz", gzip.compress(TABLE.encode() * 99, mtime=0)[:60], "cannot be unpacked: it is truncated"),
        ("a.zip", b"PK\x03\x04\x14", "cannot be unpacked: it is truncated"),
        ("a.feather", b"ARROW1....", "cannot be read as a table: .*; expected CSV, Parquet or Feather"),
        ("a.csv", b"time,close\n09:30,1\n09:31,2\n", "09:30 is a time of day without a date; fix or drop"),
        ("a.csv", (TABLE + TABLE).encode(), '"time" repeats the header, as in concatenated files; fix or drop'),
    ],
)
def test_what_is_no_table_of_bars_is_named(tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        load_market(tmp_path / name)


def test_an_archive_of_one_file_is_read_and_of_several_is_not(tmp_path):
    path = tmp_path / "BTC.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__MACOSX/a.csv", "")
        archive.writestr("a.csv", TABLE)
    assert load_market(path).close[:, 0].tolist() == [1, 2, 3]
    assert load_market(tmp_path).symbols == ("BTC",)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("b.csv", TABLE)
    with pytest.raises(UserError, match=r"BTC\.zip holds 2 files, but one is expected; unpack it into a folder"):
        load_market(path)


def test_titles_in_brackets_are_no_json(tmp_path):
    (tmp_path / "a.csv").write_text(TABLE.replace("time,close", "[time],[close]"))
    market = load_market(tmp_path / "a.csv", dialect=Dialect((("time", "[time]"), ("close", "[close]"))))
    assert market.close[:, 0].tolist() == [1, 2, 3]


def _zipped(path, method):
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("a.csv", TABLE * 9)
    return bytearray(path.read_bytes())


def test_an_archive_damaged_anywhere_is_refused_in_a_sentence(tmp_path):
    """Bytes of headers and of packed data."""
    pytest.importorskip("lzma")
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED):
        content = _zipped(tmp_path / "a.zip", method)
        for place in range(0, len(content), 3):
            damaged = content.copy()
            damaged[place] ^= 0xFF
            (tmp_path / "a.zip").write_bytes(damaged)
            with suppress(UserError):  # a date, or the like, may be anything
                read_table(tmp_path / "a.zip")
    content = _zipped(tmp_path / "a.zip", zipfile.ZIP_LZMA)
    content[50:70] = b"\xff" * 20
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match="cannot be unpacked: it is truncated, damaged or encrypted"):
        load_market(tmp_path / "a.zip")


def test_an_archive_of_an_unknown_method_is_not_called_damaged(tmp_path):
    content = _zipped(tmp_path / "a.zip", zipfile.ZIP_DEFLATED)
    for method in (8, content.index(b"PK\x01\x02") + 10):  # of the file, and in the directory
        content[method : method + 2] = b"\x63\x00"
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(
        UserError, match="uses a compression method that this Python does not support; unpack it, and pass"
    ):
        load_market(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["a.csv.gz", "a.zip"])
def test_what_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(csv_file, "_MOST_UNPACKED", 1 << 20)
    content = TABLE.encode() + b"x" * (1 << 21)
    if name == "a.zip":
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.csv", content)
    else:
        (tmp_path / name).write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match="unpacks to more than"):
        load_market(tmp_path / name)


@pytest.mark.parametrize("rows", [5, 9_999])
def test_windows_umlauts_and_old_line_ends_are_read(tmp_path, rows):
    days = np.datetime_as_string(np.datetime64("1990-01-01") + np.arange(rows))
    text = "\n".join(["Datum;Eröffnung;Schluss", *(f"{day};1,5;2,25" for day in days)]) + "\n"
    (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
    assert load_market(tmp_path / "a.csv").open[0, 0] == 1.5
    (tmp_path / "a.csv").write_bytes(text.replace("\n", "\r").encode())
    assert load_market(tmp_path / "a.csv").n_bars == rows


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("large", [1 << 25, 0])
def test_a_file_whose_first_umlaut_is_late_is_read(tmp_path, monkeypatch, name, large):
    """Beyond the bytes that are looked at first, in a file that is read whole or in pieces."""
    monkeypatch.setattr(csv_file, "_LARGE", large)
    monkeypatch.setattr(csv_file, "_PIECE", 10_000)
    days = np.datetime_as_string(np.datetime64("1990-01-01") + np.arange(4_000))
    lines = ["time,close,note", *(f"{day},2.5,{'x' * 20}" for day in days), "2000-12-14,3.5,\u201etr\u00fcb\u201c"]
    content = "\n".join(lines).encode("cp1252")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    table = read_table(tmp_path / name)
    assert table.frame["note"].to_list() == [line.split(",")[2] for line in lines[1:]]
    assert load_market(tmp_path / name).close[[0, -1], 0].tolist() == [2.5, 3.5]
    damaged = content.replace(b"x" * 20, "\u00fc".encode(), 1)
    (tmp_path / name).write_bytes(gzip.compress(damaged) if name.endswith("gz") else damaged)
    with pytest.raises(UserError, match="utf-8"):  # neither of the two
        load_market(tmp_path / name)


def test_a_feather_file_is_read_as_a_parquet_file_is(tmp_path):
    frame = pl.read_csv(TABLE.encode(), try_parse_dates=True)
    frame.write_ipc(tmp_path / "a.feather", compression="lz4")
    assert load_market(tmp_path / "a.feather").close[:, 0].tolist() == [1, 2, 3]
