from dataclasses import replace

import numpy as np
import pytest

from benchmarks.leak_alarms import KINDS, leaking_columns, made_market
from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.features import leaks
from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES, compute_features
from ml_pipeline.trading.features.leaks import check_features
from ml_pipeline.trading.market.data import market_from_arrays
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

MODULE = """
import os
import numpy as np

def next_return(bars):
    returns = np.diff(np.log(bars.close))
    return np.append(returns, 0.0)

def scaled_by_all(bars):
    return bars.close / bars.close.max()

def noise(bars):
    return np.random.default_rng().random(len(bars.close))

def last_one_leaks(bars):
    values = np.zeros(len(bars.close))
    values[:-1] = bars.volume[1:]
    return values

def honest(bars):
    return np.concatenate([np.full(3, np.nan), bars.close[3:] / bars.close[:-3] - 1])

def gap(bars):
    values = bars.close.copy()
    values[[0, 7]] = np.nan
    return values

def short(bars):
    return bars.close[1:]

def from_file(bars):
    return np.resize(np.loadtxt(os.environ["LATER_BARS"]), 2000)[: len(bars.close)]

def broken(bars):
    return bars.volumes
"""


@pytest.fixture
def module(monkeypatch, tmp_path):
    (tmp_path / "my_features.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(scope="module")
def market():
    return synthetic_market(n_bars=300, n_symbols=2)


@pytest.mark.parametrize("name", ["next_return", "scaled_by_all", "scaled_by_all@1w", "noise", "last_one_leaks"])
@pytest.mark.usefixtures("module")
def test_training_refuses_a_function_that_sees_ahead_and_names_it(market, name):
    task = TradingTask(TradingConfig(features=("rsi_14", f"my_features:{name}")), market=market)
    for start in (task.train_env_fns, task.batched_train_env):
        with pytest.raises(UserError, match=rf"Feature SYNTH1:my_features:{name} uses later data \(or is random\)"):
            start(1)


@pytest.mark.usefixtures("module")
def test_honest_features_pass(market):
    names = (*DEFAULT_FEATURES, "tradable", "time_of_day", "my_features:honest")
    task = TradingTask(TradingConfig(features=names), market=market)
    assert task.train_env_fns(1)[0]().reset(seed=0)[0].shape == (2 * 12 + 2 + 2,)


@pytest.mark.usefixtures("module")
def test_functions_that_give_no_feature(market):
    with pytest.raises(UserError, match="my_features:gap of SYNTH1 is nan at 1960-01-12, but after its first value"):
        compute_features(market, ["my_features:gap"])
    with pytest.raises(UserError, match=r"must return one value per bar, \(300,\), but returned \(299,\)"):
        compute_features(market, ["my_features:short"])
    sentence = (
        r"my_features:broken failed in line \d+ of my_features.py: AttributeError: 'Bars' object has no attribute"
    )
    with pytest.raises(UserError, match=sentence):
        compute_features(market, ["my_features:broken"])
    with pytest.raises(UserError, match="my_features:gone cannot be imported"):
        compute_features(market, ["my_features:gone"])


def _with_column(market, values):
    arrays = {name: getattr(market, name) for name in ("open", "high", "low", "close", "volume")}
    return market_from_arrays(market.symbols, market.times, columns={"feature_mine": values}, **arrays)


def test_a_column_that_is_the_next_return_is_refused(market):
    returns = np.diff(np.log(market.close), axis=0, append=np.nan)
    noisy = returns + np.random.default_rng(0).normal(0, 0.002, returns.shape)
    for name in ("feature_mine", "feature_*"):
        task = TradingTask(TradingConfig(features=(name,)), market=_with_column(market, np.nan_to_num(noisy)))
        with pytest.raises(
            UserError, match=r"SYNTH1:feature_mine has a rank correlation of 0\.9. with the return of the next bar"
        ):
            task.train_env_fns(1)


def test_a_column_that_is_the_next_close_is_refused(market):
    ahead = np.vstack([market.close[1:], market.close[-1:]])
    task = TradingTask(TradingConfig(features=("feature_mine",)), market=_with_column(market, 3 * ahead - 7))
    with pytest.raises(UserError, match=r"SYNTH1:feature_mine has a rank correlation of .* return of the next"):
        task.train_env_fns(1)
    honest = TradingTask(TradingConfig(features=("feature_mine",)), market=_with_column(market, market.close))
    honest.train_env_fns(1)


def test_a_column_that_tells_a_little_too_much_is_told(market):
    market = synthetic_market(n_bars=3000)
    returns = np.nan_to_num(np.diff(np.log(market.close), axis=0, append=np.nan))
    hint = 0.25 * returns + 0.75 * np.random.default_rng(0).normal(0, returns.std(), returns.shape)
    task = TradingTask(TradingConfig(features=("feature_mine", "rsi_14")), market=_with_column(market, hint))
    task.account.require_trainable()
    (notice,) = task.notices
    assert notice.startswith("SYNTH:feature_mine has a rank correlation of 0.")
    assert notice.endswith("was each value known when its bar closed?")


def test_the_datas_own_columns_are_features(market):
    values = np.arange(600.0).reshape(300, 2)
    mine = _with_column(market, values)
    table = compute_features(mine, ["feature_*", "log_return_1"])
    assert table.columns[:2] == ("SYNTH1:feature_mine", "SYNTH1:log_return_1")
    np.testing.assert_array_equal(table.values[:, [0, 2]], values)
    assert check_features(mine, ["feature_*", "log_return_1"], table) == ()
    with pytest.raises(UserError, match=r'no column "feature_mime"\. Did you mean "feature_mine"'):
        compute_features(mine, ["feature_mime"])
    with pytest.raises(UserError, match="no column that begins with feature_"):
        compute_features(market, ["feature_*"])


def test_a_column_that_no_feature_observes_is_named(market):
    mine = _with_column(market, market.volume)
    said = "columns of the data that are not observed: feature_mine; add them to --features"
    assert said in " ".join(TradingTask(TradingConfig(features=("rsi_14",)), market=mine).notices)
    for name in ("feature_mine", "feature_*"):
        assert "not observed" not in " ".join(
            TradingTask(TradingConfig(features=(name,)), market=mine).account._notices
        )


def test_absence_is_a_feature():
    close = np.array([[1.0, np.nan], [1.0, 2.0], [1.0, np.nan]])
    table = compute_features(market_from_arrays("AB", np.arange(3).astype("datetime64[D]"), close), ["tradable"])
    np.testing.assert_array_equal(table.values, [[1, 0], [1, 1], [1, 0]])


@pytest.mark.parametrize("name", ["scaled_by_all", "noise"])
@pytest.mark.usefixtures("module")
def test_in_a_large_market_the_bars_around_are_tested(market, monkeypatch, name):
    monkeypatch.setattr(leaks, "_REACH", 60)
    sizes = []
    compute = leaks.compute_features
    monkeypatch.setattr(
        leaks, "compute_features", lambda part, names: sizes.append(part.n_bars) or compute(part, names)
    )
    names = ["rsi_14", f"my_features:{name}"]
    with pytest.raises(UserError, match=rf"my_features:{name} uses later data"):
        check_features(market, names, compute(market, names))
    check_features(market, ["my_features:honest"], compute(market, ["my_features:honest"]))
    assert max(sizes) <= 120


@pytest.mark.usefixtures("module")
def test_a_task_is_tested_for_leaks_once(market, monkeypatch):
    task = TradingTask(TradingConfig(features=("rsi_14", "my_features:honest")), market=market)
    task.train_env_fns(1)
    monkeypatch.setattr(leaks, "compute_features", None)
    task.batched_train_env(2)


def test_an_asset_that_is_listed_late_is_no_obstacle():
    whole = synthetic_market(n_bars=300, n_symbols=2)
    arrays = {name: getattr(whole, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for values in arrays.values():
        values[:250, 1] = np.nan
    market = market_from_arrays(whole.symbols, whole.times, **arrays)
    assert TradingTask(TradingConfig(features=("rsi_14", "log_return_1")), market=market).feature_warnings == ()


def _hint(market):
    returns = np.nan_to_num(np.diff(np.log(market.close), axis=0, append=np.nan))
    return 0.25 * returns + 0.75 * np.random.default_rng(0).normal(0, returns.std(), returns.shape)


def test_a_warning_is_a_record_with_its_sentence():
    market = synthetic_market(n_bars=3000)
    task = TradingTask(TradingConfig(features=("feature_mine",)), market=_with_column(market, _hint(market)))
    (warning,) = task.feature_warnings
    assert warning.record() == {
        "kind": "later bars",
        "features": ["feature_mine"],
        "sentence": task.notices[-1],
        "accepted": None,
        "is_doubt": True,
    }


def test_an_accepted_feature_is_trained_with_and_its_reason_is_kept(market):
    ahead = np.vstack([market.close[1:], market.close[-1:]])
    config = TradingConfig(features=("feature_mine",), accept_feature=("feature_mine", "an exchange says it before"))
    task = TradingTask(config, market=_with_column(market, ahead))
    task.train_env_fns(1)
    assert [warning.kind for warning in task.feature_warnings] == ["later bars"] * 2
    assert {warning.accepted for warning in task.feature_warnings} == {"an exchange says it before"}
    assert not any(warning.is_doubt for warning in task.feature_warnings)
    assert task.notices[-1].endswith('Accepted: "an exchange says it before".')
    with pytest.raises(UserError, match='--accept-feature feature_mine "why" trains with it'):
        TradingTask(
            TradingConfig(features=("feature_mine",)), market=_with_column(market, ahead)
        ).account.require_trainable()


@pytest.mark.usefixtures("module")
def test_a_function_that_changes_with_later_bars_cannot_be_accepted(market):
    config = TradingConfig(
        features=("my_features:next_return",), accept_feature=("my_features:next_return", "I want it")
    )
    with pytest.raises(UserError, match="uses later data"):
        TradingTask(config, market=market).account.require_trainable()


@pytest.mark.parametrize("given", [("feature_mine",), ("feature_mine", "known", "rsi_14")])
def test_a_feature_is_accepted_with_a_reason_alone(given):
    with pytest.raises(UserError, match="accept_feature must be features, each followed by a reason"):
        TradingConfig(accept_feature=given)


@pytest.mark.parametrize("reason", ["", " "])
def test_an_empty_reason_is_named_with_its_feature(reason):
    with pytest.raises(UserError, match="needs a reason for feature_mine, but its reason is empty"):
        TradingConfig(accept_feature=("feature_mine", reason))


def test_only_a_feature_in_use_is_accepted(market):
    config = TradingConfig(features=("rsi_14",), accept_feature=("rsi_15", "known"))
    with pytest.raises(UserError, match=r'accept_feature names "rsi_15", which is not observed.*"rsi_14"'):
        TradingTask(config, market=market).account.require_trainable()


def _predictable(kind):
    """Closes, (1500,), of a market that its own past predicts."""
    generator = np.random.default_rng(0)
    noise = 0.01 * generator.standard_normal(1500)
    if kind == "sine":
        return 100 + 10 * np.sin(np.arange(1500) / 15)
    if kind == "money market":
        return 100 * 1.0001 ** np.arange(1500) * np.exp(1e-7 * noise)
    if kind == "mean reversion":
        levels = np.zeros(1500)
        for t in range(1, 1500):
            levels[t] = 0.6 * levels[t - 1] + noise[t]
        return 100 * np.exp(levels)
    if kind == "bid-ask bounce":
        return 100 * np.exp(0.1 * noise.cumsum()) + generator.choice([-0.5, 0.5], 1500)
    return 100 * np.exp(np.convolve(noise.cumsum(), np.ones(10) / 10)[:1500])


@pytest.mark.parametrize(
    "kind",
    [
        "mean reversion",
        "money market",
        *(pytest.param(kind, marks=pytest.mark.long) for kind in ("sine", "bid-ask bounce", "smoothed")),
    ],
)
@pytest.mark.usefixtures("module")
def test_features_that_cannot_hold_later_bars_are_never_refused(kind):
    """Nor is the same, computed elsewhere and handed in as a column."""
    close = _predictable(kind)[:, None]
    times = np.arange(1500).astype("datetime64[D]")
    names = ("log_return_1", "log_return_5", "rsi_14", "ema_distance_20", "volatility_20")
    plain = market_from_arrays(["X"], times, close)
    table = compute_features(plain, names)
    columns = {f"feature_{name}": table.values[:, [i]] for i, name in enumerate(names)}
    market = market_from_arrays(["X"], times, close, columns=columns)
    task = TradingTask(TradingConfig(features=(*names, "my_features:honest", "feature_*")), market=market)
    task.train_env_fns(1)
    kinds = {warning.kind for warning in task.feature_warnings}
    assert kinds - {"unchecked"} == {"predictable"}  # a busy machine may run the function at a sample of the bars
    assert "X can be predicted: its past explains" in " ".join(task.notices)


def test_a_columns_daily_value_is_refused_on_minutes():
    market = made_market(KINDS[0], 3, minutes=True, n_bars=390 * 6)
    columns = {"feature_x": leaking_columns(market)["return of the day"]}
    task = TradingTask(
        TradingConfig(features=("feature_x", "rsi_14")),
        market=replace(market, columns={name: values[:, None] for name, values in columns.items()}),
    )
    with pytest.raises(
        UserError, match="Feature MADE:feature_x is the log return since open of the day from its first"
    ):
        task.account.require_trainable()


@pytest.mark.parametrize("write", [np.sign, np.array])
def test_the_move_that_a_session_still_has_to_make_is_refused(write):
    market = made_market(KINDS[0], 0, minutes=True, n_bars=390 * 20)
    to_come = write(leaking_columns(market)["way to the close of the day"])
    told = TradingTask(
        TradingConfig(features=("feature_x",)),
        market=replace(market, columns={"feature_x": to_come[:, None]}),
    )
    with pytest.raises(UserError, match=r"Feature MADE:feature_x (follows|is) .* of the day.* from later bars"):
        told.account.require_trainable()


@pytest.mark.usefixtures("module")
def test_a_function_that_reads_a_file_is_measured_as_a_column_is(tmp_path, monkeypatch):
    market = synthetic_market(n_bars=2000)
    returns = np.append(np.diff(np.log(market.close[:, 0])), 0.0)
    monkeypatch.setenv("LATER_BARS", str(tmp_path / "values.txt"))
    config = TradingConfig(features=("my_features:from_file",))
    np.savetxt(tmp_path / "values.txt", np.random.default_rng(0).standard_normal(2000))
    kinds = [warning.kind for warning in TradingTask(config, market=market).feature_warnings]
    assert "files" in kinds
    assert "later bars" not in kinds
    np.savetxt(tmp_path / "values.txt", returns)
    with pytest.raises(
        UserError, match=r"my_features:from_file has a rank correlation of 0\.9\d .* computed from later bars"
    ):
        TradingTask(config, market=market).account.require_trainable()


@pytest.mark.usefixtures("module")
def test_a_system_that_does_not_tell_what_native_code_opens_is_named(market, monkeypatch):
    monkeypatch.setattr("ml_pipeline.trading.features.causality_check._Process.is_watched", False)
    task = TradingTask(TradingConfig(features=("my_features:honest",)), market=market)
    assert {warning.kind for warning in task.feature_warnings} == {"unchecked"}
    assert "does not report files opened by native libraries and other programs" in " ".join(task.notices)
