"""Sessions that were traded through the loop and the simulated broker, read from their folders and reconciled."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.live import recovery
from ml_pipeline.live.commands.paper_trade import main
from ml_pipeline.live.config import paper_trade_config
from ml_pipeline.live.reconciliation.reading import corrected_bars, read_session
from ml_pipeline.live.reconciliation.reconciliation import Reconciliation
from ml_pipeline.live.reconciliation.report import reconcile_session
from ml_pipeline.live.session import PaperTrading
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.data import MarketData, market_from_arrays
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask


def five_minutes(market: MarketData) -> MarketData:
    """The same bars, each of five minutes."""
    times = np.datetime64("2024-03-04T22:00", "ns") + np.arange(market.n_bars) * np.timedelta64(5, "m")
    prices = {name: getattr(market, name) for name in ("open", "high", "low", "volume")}
    return market_from_arrays(market.symbols, times, market.close, **prices)


MARKET = five_minutes(synthetic_market(seed=5, n_bars=70, n_symbols=2))


def write_prices(path: Path, market: MarketData, stop: int | None = None) -> Path:
    """The bars in the long form."""
    lines = ["open_time,symbol,open,high,low,close,volume"]
    for t in range(stop or market.n_bars):
        time = str(market.times[t].astype("datetime64[s]")).replace("T", " ")
        for a, symbol in enumerate(market.symbols):
            values = (getattr(market, name)[t, a] for name in ("open", "high", "low", "close", "volume"))
            lines.append(f"{time},{symbol},{','.join(repr(float(value)) for value in values)}")
    path.write_text("\n".join(lines) + "\n")
    return path


def deploy(folder: Path, *, seed: int = 1, market: MarketData = MARKET, **trading: Any) -> Path:
    """A run folder whose policy is not trained, and trades much."""
    settings = {"features": ("log_return_1", "ema_distance_5"), "borrow_bps_per_year": 300.0, **trading}
    config = TrainConfig(trading=TradingConfig(**settings), ppo=PPOConfig(hidden_sizes=(8,)))
    task = TradingTask(config.trading, market=market)
    env = task.evaluation_env("all")
    policy = Policy(env.observation_space, env.action_space, config.ppo, seed=seed, device="cpu")
    state, generator = policy.state_dict(), np.random.default_rng(seed)
    for weight in state["network"].values():
        weight.add_(weight.new_tensor(generator.normal(0, 1.0, weight.shape)))
    policy.load_state_dict(state)
    folder.mkdir(parents=True)
    saved = {"config": flatten(config), "task": task.state(), "trainer": {"policy": policy.state_dict()}}
    save_checkpoint(folder / "best.pt", saved)
    return folder


@pytest.fixture(autouse=True)
def _orders_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which orders the simulated broker fails is drawn from their ids, and these from the id of the session."""
    monkeypatch.setattr(recovery.secrets, "token_hex", lambda n: "5e" * n)


def trade(tmp_path: Path, model: Path, prices: Path, **settings: Any) -> Path:
    values = {"model": model, "root": tmp_path / "live", "name": "day", "broker": "simulated", "replay": prices}
    return PaperTrading(paper_trade_config({**values, **settings})).run().folder


def reconciled(tmp_path: Path, trading: dict[str, Any] | None = None, **settings: Any) -> Reconciliation:
    prices = write_prices(tmp_path / "prices.csv", MARKET)
    return reconcile_session(trade(tmp_path, deploy(tmp_path / "run", **(trading or {})), prices, **settings)).found


def assert_explained(found: Reconciliation, *causes: str) -> None:
    assert [each.cause for each in found.attribution.causes] == list(causes)
    assert abs(found.attribution.rounding) < 1e-7
    assert sum(each.worth for each in found.attribution.causes) == pytest.approx(found.difference, abs=1e-7)


class TestSessionsOfTheLoop:
    @pytest.mark.parametrize(
        "trading",
        [
            {},
            {"action_mode": "discrete", "window": 3},
            {"stop_loss": 0.01, "fixed_fee": 0.5},
            {"size_at": "decision"},
            {"flat_at_close": True},
            {"max_gross": 2.0, "financing_bps_per_year": 500.0},
        ],
        ids=str,
    )
    def test_without_faults_are_the_backtest_bit_for_bit(self, tmp_path: Path, trading: dict[str, Any]) -> None:
        found = reconciled(tmp_path, trading)
        assert "bit for bit" in found.verdict
        assert found.costs.n_fills
        assert found.costs.settings["fee_bps"] == pytest.approx(5.0)
        assert found.costs.settings["slippage_bps"] == 0.0

    @pytest.mark.parametrize(
        ("settings", "causes"),
        [
            ({"sim_reject_rate": 0.2}, ["rejected"]),
            ({"sim_partial_fill_rate": 0.2}, ["partial_fill"]),
            ({"sim_latency_s": 30.0}, ["delay"]),
            ({"sim_latency_s": 400.0}, ["lapsed"]),
            ({"sim_outage_rate": 0.1, "sim_outage_bars": 2}, ["broker_away"]),
            ({"sim_lost_answer_rate": 0.2}, []),
            ({"guard_order_money": 500.0}, ["refused"]),
            ({"guard_drawdown": 0.01}, ["refused"]),
            (
                {"sim_reject_rate": 0.1, "sim_partial_fill_rate": 0.1, "sim_latency_s": 20.0, "guard_order_money": 3e3},
                ["refused", "rejected", "partial_fill", "delay"],
            ),
        ],
        ids=str,
    )
    def test_with_a_fault_name_it_and_nothing_else(
        self, tmp_path: Path, settings: dict[str, Any], causes: list[str]
    ) -> None:
        assert_explained(reconciled(tmp_path, **settings), *causes)

    def test_with_another_model_from_the_middle_on(self, tmp_path: Path) -> None:
        half, whole = (write_prices(tmp_path / f"{n}.csv", MARKET, n) for n in (35, 70))
        first, second = deploy(tmp_path / "one"), deploy(tmp_path / "two", seed=4, window=2)
        trade(tmp_path, first, half)
        folder = trade(tmp_path, second, whole)
        record = read_session(folder)
        assert [model.name for model in record.models] == ["one", "two"]
        found = reconcile_session(folder).found
        assert {each.cause for each in found.attribution.causes} <= {"lapsed"}  # orders end with the first start
        assert abs(found.attribution.rounding) < 1e-7

    def test_are_read_while_nobody_trades_and_nothing_in_them_changes(self, tmp_path: Path) -> None:
        prices = write_prices(tmp_path / "prices.csv", MARKET)
        folder = trade(tmp_path, deploy(tmp_path / "run"), prices)
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in {".csv", ".jsonl"}}
        reconcile_session(folder)
        for name, content in before.items():
            assert (folder / name).read_bytes() == content
        written = json.loads((folder / "reconciliation.json").read_text())
        assert written["bit_for_bit"] is True
        assert "bit for bit" in (folder / "reconciliation.html").read_text()
        assert "fee_bps: " in (folder / "costs-met.yaml").read_text()

    def test_are_reconciled_by_the_command(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        prices = write_prices(tmp_path / "prices.csv", MARKET)
        trade(tmp_path, deploy(tmp_path / "run"), prices)
        assert main(["reconcile", "day", "--root", str(tmp_path / "live")]) == 0
        told = capsys.readouterr().out
        assert "bit for bit" in told
        assert "reconciliation.html" in told


class TestFoldersThatCannotBeReconciled:
    def test_one_without_a_journal(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"has no journal\.sqlite"):
            read_session(tmp_path)
        assert not list(tmp_path.iterdir())

    def test_one_whose_model_is_gone(self, tmp_path: Path) -> None:
        prices = write_prices(tmp_path / "prices.csv", MARKET)
        model = deploy(tmp_path / "run")
        folder = trade(tmp_path, model, prices)
        (model / "best.pt").unlink()
        with pytest.raises(UserError, match=r"best\.pt"):
            read_session(folder)


class TestCorrections:
    def test_replace_what_they_tell_and_keep_bars_possible(self) -> None:
        bars = list(bar_sets_of(MARKET))
        close = bars[4].close * 1.5
        told, changed = corrected_bars(
            bars, [{"bar": str(bars[4].time), "symbols": ["SYNTH1"], "close": close.tolist()}], MARKET.symbols
        )
        assert changed == [bars[4].time]
        assert told[4].close[0] == close[0]
        assert told[4].close[1] == bars[4].close[1]
        assert told[4].high[0] == close[0]
        assert told[4].open[0] == bars[4].open[0]

    def test_the_same_values_again_are_no_correction(self) -> None:
        bars = list(bar_sets_of(MARKET))
        _, changed = corrected_bars(
            bars, [{"bar": str(bars[4].time), "symbols": ["SYNTH1"], "close": bars[4].close.tolist()}], MARKET.symbols
        )
        assert not changed
