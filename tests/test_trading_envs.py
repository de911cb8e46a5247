"""The timings of trading environments: they run without the other libraries and name those that are missing."""

import sys

import pytest

from benchmarks import trading_envs


@pytest.mark.slow
def test_it_runs_without_the_other_libraries_and_names_them(monkeypatch, capsys):
    for module in ("gym_anytrading", "gym_trading_env"):
        monkeypatch.setitem(sys.modules, module, None)
    trading_envs.main(["--n-steps", "40", "--rounds", "1"])
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["steps", "a", "second", "median"]
    for name in ("Fast, 1 asset", "Stateful, 1 asset", "Batched x 4,096, 1 x 16"):
        assert any(row.startswith(name) for row in rows)
    assert rows[-2:] == [
        "gym-anytrading has no row: gym_anytrading is not installed; pip install -e '.[bench]'",
        "Gym-Trading-Env has no row: gym_trading_env is not installed; pip install -e '.[bench]'",
    ]


def test_each_row_is_compared_with_the_libraries_that_are_there():
    medians = {"ours": 400.0, "Gym-Trading-Env, 1 asset": 100.0, "Gym-Trading-Env, unwrapped": 200.0}
    header, first, *_ = trading_envs.table(medians)
    assert header.split()[-2:] == ["x", "Gym-Trading-Env"]
    assert first.split() == ["ours", "400", "4.00"]
