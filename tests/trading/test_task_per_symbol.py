"""One policy for several symbols, each with an account, a file and a scaler of its own."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from tests.service.forex_files import write_folder, write_market

CONFIG = TradingConfig(features=("log_return_1", "ema_10"), window=2, episode_length=20, per_symbol=True)


def follow(observation):
    return int(observation[0] > 0) * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("forex"), "EURUSD", "GBPUSD", "USDJPY", n_bars=200)


@pytest.fixture(scope="module")
def task(folder):
    return TradingTask(replace(CONFIG, data=folder, symbols=("GBPUSD", "EURUSD")))


def alone(folder, symbol):
    (file,) = folder.glob(f"*{symbol}*")
    return TradingTask(replace(CONFIG, data=file, per_symbol=False))


def test_environment_i_trades_symbol_i_mod_k(task, folder):
    envs = [make() for make in task.train_env_fns(5)]
    assert [env.market.symbols for env in envs] == [("GBPUSD",), ("EURUSD",), ("GBPUSD",), ("EURUSD",), ("GBPUSD",)]
    assert len({str(env.observation_space) for env in envs}) == 1
    (same,) = alone(folder, "EURUSD").train_env_fns(1)
    np.testing.assert_array_equal(same().market.features, envs[1].market.features)
    np.testing.assert_array_equal(same().market.close, envs[1].market.close)


def test_files_of_bid_and_ask_are_one_symbol(tmp_path):
    for side, factor in (("bid", 1.0), ("ask", 1.002)):
        rows = write_market(tmp_path / f"FOREX_EURUSD_{side}.csv", n_bars=200).read_text().splitlines()
        priced = [
            ",".join([time, *(str(float(cell) * factor) for cell in cells)])
            for time, *cells in (row.split(",") for row in rows[1:])
        ]
        (tmp_path / f"FOREX_EURUSD_{side}.csv").write_text("\n".join([rows[0], *priced]))
    write_market(tmp_path / "GBPUSD.csv", seed=1, n_bars=200)
    (together,) = TradingTask(replace(CONFIG, data=tmp_path, symbols=("EURUSD",))).accounts.values()
    assert together.market.symbols == ("EURUSD",)
    np.testing.assert_allclose(together.market.half_spread, 0.001 / 1.001)
    every = TradingTask(replace(CONFIG, data=tmp_path))
    assert every.symbols == ("FOREX_EURUSD", "GBPUSD")
    np.testing.assert_array_equal(every.accounts["FOREX_EURUSD"].market.close, together.market.close)


def test_too_few_environments_for_the_symbols_are_refused(task):
    with pytest.raises(UserError, match=r"n_envs is 1, but each of 2 symbols \(GBPUSD, EURUSD\) needs an environment"):
        task.train_env_fns(1)


def test_a_batch_draws_its_symbols(task):
    batch = task.batched_train_env(8)
    assert [market.symbols for market in batch._markets] == [("GBPUSD",), ("EURUSD",)]


def test_other_fractions_make_the_task_that_they_would_make_as_settings(task):
    other = task.with_fractions(train=0.5, validation=0.2)
    anew = TradingTask(replace(task.config, train_fraction=0.5, validation_fraction=0.2))
    assert (other.config, other.state()) == (anew.config, anew.state())
    assert other.state() != task.state()


def test_the_score_is_the_mean_of_the_symbols(task, folder):
    scores = [alone(folder, symbol).score(follow) for symbol in task.symbols]
    assert scores[0] != scores[1]
    assert task.score(follow) == pytest.approx(np.mean(scores), abs=1e-15)


def test_the_report_is_of_all_together_and_of_each(task, folder, tmp_path):
    text = task.report(follow, tmp_path)
    assert "GBPUSD, EURUSD, test split" in text
    figures = json.loads((tmp_path / "evaluation.json").read_text())
    assert set(figures["each_symbol"]) == {"GBPUSD", "EURUSD"}
    for symbol in task.symbols:
        own = json.loads((tmp_path / "symbols" / symbol / "evaluation.json").read_text())
        assert own["agent"] == figures["each_symbol"][symbol]["agent"]
        exact = alone(folder, symbol).evaluate(follow)["agent"]["total_return"]
        assert own["agent"]["total_return"] == exact
        assert f"{100 * exact:+,.1f} %" in text
        assert (tmp_path / "symbols" / symbol / "report.html").is_file()
    ends = [figures["each_symbol"][symbol]["agent"]["total_return"] for symbol in task.symbols]
    assert figures["agent"]["total_return"] == pytest.approx(np.mean(ends))
    page = (tmp_path / "report.html").read_text()
    assert "EURUSD: agent" in page
    assert {"ledger.csv", "trades.csv", "equity.png"} <= {path.name for path in tmp_path.iterdir()}


def test_a_policy_is_judged_with_the_scalers_that_it_was_trained_with(task, folder):
    state = json.loads(json.dumps(task.state()))  # plain data
    config = replace(CONFIG, data=folder, symbols=("GBPUSD", "EURUSD"), features=("rsi_14",), window=7)
    restored = TradingTask.from_state(state, config)
    assert restored.state() == task.state()
    assert restored.score(follow) == task.score(follow)


def test_a_symbol_that_the_policy_never_saw_is_scaled_by_its_own_training_split(task, folder):
    other = TradingTask.from_state(task.state(), replace(CONFIG, data=folder, symbols=("USDJPY",)))
    assert other.state()["each_symbol"]["USDJPY"]["scaler"] == alone(folder, "USDJPY").state()["scaler"]


def test_a_changed_bar_changes_the_state(task, folder, tmp_path):
    write_folder(tmp_path, "EURUSD", "GBPUSD", n_bars=200)
    changed = replace(task.config, data=tmp_path)
    assert TradingTask(changed).state() == task.state()
    lines = (path := next(tmp_path.glob("*GBP*"))).read_text().splitlines()
    cells = lines[-1].split(",")
    cells[4] = str(float(cells[4]) * (1 - 1e-9))
    path.write_text("\n".join([*lines[:-1], ",".join(cells)]) + "\n")
    assert TradingTask(changed).state() != task.state()


def test_another_seed_leaves_the_markets(task):
    other = task.with_seed(7)
    assert (other.seed, task.seed) == (7, 0)
    assert other.state() == task.state()


def test_notices_say_whose_they_are(tmp_path):
    write_folder(tmp_path, "EURUSD", "GBPUSD", n_bars=200, volume=False)
    notices = TradingTask(replace(CONFIG, data=tmp_path, symbols=("EURUSD", "GBPUSD"))).notices
    assert [notice.partition(": ")[0] for notice in notices if "volume" in notice] == ["EURUSD", "GBPUSD"]


# What does not fit together


def test_other_time_frames_are_refused_and_named(tmp_path):
    write_market(tmp_path / "EURUSD.csv", hours=24, n_bars=200)
    write_market(tmp_path / "GBPUSD.csv", hours=4, n_bars=200)
    with pytest.raises(UserError, match="those of EURUSD are 1d apart and those of GBPUSD 4h; use files of one time"):
        TradingTask(replace(CONFIG, data=tmp_path, symbols=("EURUSD", "GBPUSD")))


def test_other_columns_are_refused_and_named(tmp_path):
    write_market(tmp_path / "EURUSD.csv", n_bars=200, columns=["feature_mood"])
    write_market(tmp_path / "GBPUSD.csv", n_bars=200, columns=["feature_mood", "feature_news"])
    config = replace(CONFIG, data=tmp_path, symbols=("EURUSD", "GBPUSD"), features=("feature_*",))
    with pytest.raises(UserError, match="GBPUSD has feature_news and EURUSD does not"):
        TradingTask(config)
    write_market(tmp_path / "GBPUSD.csv", n_bars=200)
    with pytest.raises(UserError, match=r"GBPUSD.csv has no column that begins with feature_"):
        TradingTask(config)


def test_a_file_of_several_symbols_serves_one_alone(tmp_path):
    market = synthetic_market(n_bars=200, n_symbols=2)
    rows = [
        f"{str(time)[:10]},{symbol},{market.close[t, a]}"
        for t, time in enumerate(market.times)
        for a, symbol in enumerate(("EURUSD", "GBPUSD"))
    ]
    (tmp_path / "all.csv").write_text("\n".join(["date,symbol,close", *rows]) + "\n")
    task = TradingTask(replace(CONFIG, data=tmp_path / "all.csv", symbols=("GBPUSD",)))
    np.testing.assert_allclose(task.accounts["GBPUSD"].market.close, market.close[:, [1]])
    (tmp_path / "all.csv").rename(tmp_path / "XAUUSD.csv")
    with pytest.raises(UserError, match=r"XAUUSD.csv holds 2 symbols \(EURUSD, GBPUSD\), but a file of XAUUSD alone"):
        TradingTask(replace(CONFIG, data=tmp_path, symbols=("XAUUSD",)))


def test_one_account_of_all_symbols_is_another_task():
    assert [*TradingTask(replace(CONFIG, per_symbol=False)).accounts] == [""]
    with pytest.raises(UserError, match="per_symbol gives each symbol a separate account"):
        TradingTask(CONFIG, market=synthetic_market(n_bars=200))
    with pytest.raises(UserError, match="not the state of a trading task of several symbols"):
        TradingTask.from_state({"each_symbol": {}}, CONFIG)
