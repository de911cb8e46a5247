"""A large file is read in pieces; whatever it holds, it is read as a small one is."""

import itertools

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market import csv_file
from ml_pipeline.trading.market.files import load_market

N = 500
TIMES = np.datetime64("2024-01-01T00:00:00") + np.arange(N) * np.timedelta64(1, "m")
CLOSES = 100 + np.random.default_rng(0).normal(0, 1, N)


def _lines(times=TIMES, header="time,close,volume,note"):
    return [header, *(f"{time},{close},{i},x{i}" for i, (time, close) in enumerate(zip(times, CLOSES, strict=True)))]


def _changed(lines, row, line):
    return [*lines[: row + 1], line, *lines[row + 2 :]]


FILES = {
    "plain": _lines(),
    "unix times": _lines(TIMES.astype("datetime64[s]").astype(np.int64)),
    "ms, then us": _lines(np.where(np.arange(N) < 250, 1, 1000) * TIMES.astype("datetime64[ms]").astype(np.int64)),
    "days": _lines(np.datetime64("2020-01-01") + np.arange(N)),
    "a date, then times": _changed(_lines(), 0, "2024-01-01,5,1,x"),
    "an empty cell": _changed(_lines(), 400, f"{TIMES[400]},,1,x"),
    "a word": _changed(_lines(), 400, f"{TIMES[400]},five,1,x"),
    "a dollar sign": _changed(_lines(), 400, f"{TIMES[400]},$5,1,x"),
    "no time": _changed(_lines(), 400, "later,5,1,x"),
    "quotation marks": _changed(_lines(), 400, f'"{TIMES[400]}","5",1,x'),
    "too many cells": _changed(_lines(), 400, f"{TIMES[400]},5,1,x,y"),
    "blank lines at the end": [*_lines(), "", "", ""],
    "windows": [line + "\r" for line in _lines()],
    "a title": ["https://www.example.com", *_lines()],
}


def _read(path):
    try:
        market = load_market(path)
    except UserError as error:
        return str(error)
    return market.times.tolist(), market.close.tolist(), market.volume.tolist(), market.notices


# A piece of 64 characters is about a row, and takes as long as one of a thousand.
PIECES = [*itertools.product([1_000, 1_000_000], FILES), *((64, name) for name in ("plain", "a word", "windows"))]


@pytest.mark.parametrize(("piece", "name"), PIECES)
def test_pieces_make_the_same_market(tmp_path, monkeypatch, name, piece):
    path = tmp_path / "prices.csv"
    path.write_text("\n".join(FILES[name]))
    whole = _read(path)
    monkeypatch.setattr(csv_file, "_LARGE", 0)
    monkeypatch.setattr(csv_file, "_PIECE", piece)
    assert _read(path) == whole
