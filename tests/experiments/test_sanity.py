from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.experiments import sanity
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig

pytestmark = pytest.mark.long


@pytest.mark.slow
def test_each_check_is_a_line_and_all_pass(capsys):
    assert sanity.main(["--total-timesteps", "60000", "--features", "ema_distance_20", "log_return_1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:7] for line in lines] == ["ok   gi", "ok   on", "ok   on"]


@pytest.mark.slow
def test_an_agent_that_guesses_fails(monkeypatch, capsys):
    def guess(task, steps, seed):
        env = task.evaluation_env("test")
        env.action_space.seed(seed)
        return task.evaluate(lambda _: env.action_space.sample())

    monkeypatch.setattr(sanity, "_trained", guess)
    assert sanity.main([]) == 1
    given, as_it_is, shuffled = capsys.readouterr().out.splitlines()
    assert given.startswith("FAIL given the next bar's return: ")
    assert as_it_is.startswith("FAIL on the built-in market: ")
    assert shuffled.startswith("ok   on shuffled returns: ")


def test_costs_are_those_given_for_the_data_as_they_are_alone(monkeypatch, capsys):
    seen = []

    def remember(task, steps, seed):
        seen.append(
            (
                task.account.rules.fee_bps,
                task.account.rules.fixed_fee,
                task.account.rules.max_position,
                task.config.window,
            )
        )
        return {name: {"return": 0.0, "volatility": 0.1} for name in ("agent", "random", "buy_and_hold")}

    monkeypatch.setattr(sanity, "_trained", remember)
    assert sanity.main(["--fee-bps", "9", "--fixed-fee", "2", "--max-position", "0.5", "--window", "4"]) == 1
    assert seen == [(0.0, 0.0, 1.0, 1), (9.0, 2.0, 0.5, 4), (0.0, 0.0, 0.5, 4)]


def test_what_cannot_be_trained_on_is_refused_before_the_first_agent(monkeypatch, capsys):
    monkeypatch.setattr(sanity, "_trained", None)
    with pytest.raises(SystemExit, match="2"):
        sanity.main(["--on-limit", "refuse", "--max-position", "0.5"])
    assert 'train with on_limit "clip"' in capsys.readouterr().err


def test_foresight_on_shuffled_returns_is_found(monkeypatch):
    """An agent that earns what nobody could is what the third check is for."""
    figures = {"agent": {"return": 2.0, "volatility": 0.2}, "buy_and_hold": {"return": 0.1}}
    monkeypatch.setattr(sanity, "_trained", lambda *_: figures)
    market = synthetic_market(n_bars=600)
    assert not sanity.shuffled(market, TradingConfig(), 0, 0).passed
    figures["agent"]["return"] = 0.1
    assert sanity.shuffled(market, TradingConfig(), 0, 0).passed


def test_shuffling_keeps_the_bars_and_loses_their_order():
    market = synthetic_market(n_bars=300, n_symbols=2)
    other = sanity.with_returns_shuffled(market, np.random.default_rng(0))
    returns, others = (np.diff(np.log(m.close), axis=0) for m in (market, other))
    np.testing.assert_allclose(np.sort(returns, axis=0), np.sort(others, axis=0), atol=1e-12)
    assert np.corrcoef(returns[:, 0], others[:, 0])[0, 1] == pytest.approx(0, abs=0.2)
    assert np.all(other.high >= np.maximum(other.open, other.close) * (1 - 1e-12))
    assert np.all(other.low <= np.minimum(other.open, other.close) * (1 + 1e-12))
    overnight, overnights = (np.log(m.open[1:] / m.close[:-1]) for m in (market, other))
    np.testing.assert_allclose(np.sort(overnight, axis=0), np.sort(overnights, axis=0), atol=1e-12)


def test_columns_and_functions_keep_the_bar_that_they_stood_before(tmp_path, monkeypatch):
    (tmp_path / "my_next_returns.py").write_text(
        "import numpy as np\ndef told(bars):\n    return np.append(np.diff(np.log(bars.close)), 0.0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    market = synthetic_market(n_bars=200)
    market, features = sanity.with_functions_as_columns(market, ["rsi_14", "my_next_returns:told"])
    assert features == ("rsi_14", "feature_my_next_returns.told")
    other = sanity.with_returns_shuffled(market, np.random.default_rng(0))
    returns = np.diff(np.log(other.close[:, 0]))
    np.testing.assert_allclose(other.columns[features[1]][:-1, 0], returns, atol=1e-12)


@pytest.mark.slow
def test_a_leak_earns_on_noise_and_is_named():
    market = synthetic_market(n_bars=4000)
    returns = np.nan_to_num(np.diff(np.log(market.close), axis=0, append=np.nan))
    noise = np.random.default_rng(0).normal(0, returns.std(), returns.shape)
    leaking = replace(market, columns={"feature_hint": returns + 2 * noise})
    verdict = sanity.shuffled(leaking, TradingConfig(features=("feature_hint", "rsi_14")), 30_000, 0)
    assert not verdict.passed
    assert "feature_hint may be computed from later bars" in verdict.sentence
    knowing_nothing = replace(market, columns={"feature_hint": noise})
    assert sanity.shuffled(knowing_nothing, TradingConfig(features=("feature_hint", "rsi_14")), 30_000, 0).passed


def test_data_in_which_nothing_pays_are_no_fault(monkeypatch, tmp_path, capsys):
    figures = {"return": -0.2, "volatility": 0.2}
    lost = {"agent": figures, "random": {**figures, "return": 0.0}, "buy_and_hold": figures}
    rich = {"agent": {**figures, "return": 100.0}, "random": figures, "buy_and_hold": figures}
    trained = iter([rich, lost, lost] * 2)
    monkeypatch.setattr(sanity, "_trained", lambda *_: next(trained))
    walk = 100 * np.exp(np.random.default_rng(0).normal(0, 0.01, 400).cumsum())
    days = np.datetime64("2023-01-02") + np.arange(400)
    rows = [f"{day},{price}" for day, price in zip(days, walk, strict=True)]
    (tmp_path / "prices.csv").write_text("\n".join(["time,close", *rows]))
    assert sanity.main(["--data", str(tmp_path / "prices.csv")]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("--   on prices.csv: 0.82 times")
    assert line.endswith("found nothing profitable in these data")
    assert sanity.main([]) == 1
    assert capsys.readouterr().out.splitlines()[1].startswith("FAIL on the built-in market")


def _results(agent, holding):
    return {
        "agent": {"return": agent, "volatility": 0.2},
        "random": {"return": -0.1},
        "buy_and_hold": {"return": holding},
    }


def test_every_check_stands_beside_holding(monkeypatch):
    """exp(1.5) = 4.48: holding made 4.48 times the start, and the agent 2.12 times."""
    monkeypatch.setattr(sanity, "_trained", lambda *_: _results(np.log(2.12), 1.5))
    market = synthetic_market(n_bars=600)
    sentences = [
        check(market, TradingConfig(), 0, 0).sentence
        for check in (sanity.given_the_next_return, sanity.as_it_is, sanity.shuffled)
    ]
    assert all("4.48 times by holding" in sentence for sentence in sentences)
    assert "2.12 times the start after costs" in sentences[1]


@pytest.mark.parametrize(("agent", "passed"), [(0.2, None), (2.0, True)])
def test_an_agent_on_your_data_that_made_less_than_holding_proves_nothing(monkeypatch, agent, passed):
    monkeypatch.setattr(sanity, "_trained", lambda *_: _results(agent, 1.5))
    verdict = sanity.as_it_is(synthetic_market(n_bars=600), TradingConfig(data="prices.csv"), 0, 0)
    assert verdict.passed is passed
    assert ("holding made more" in verdict.sentence) is (passed is None)
