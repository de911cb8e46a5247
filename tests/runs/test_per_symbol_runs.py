"""Runs with one account per symbol, by the commands: trained, resumed, evaluated, backtested and played."""

import json

import pytest
import torch
import yaml

from ml_pipeline import backtest, enjoy, evaluate_ppo, train_ppo
from tests.service.forex_files import write_market
from tests.small_runs import weights
from tests.training_commands import run_here

SYMBOLS = ["EURUSD", "GBPUSD"]
SETTINGS = {
    "symbols": SYMBOLS,
    "per_symbol": True,
    "n_envs": 2,
    "vec_env": "serial",
    "features": ["rsi_14", "ema_10"],
    "action_mode": "discrete",
    "episode_length": 20,
    "n_steps": 32,
    "minibatch_size": 32,
    "n_epochs": 1,
    "hidden_sizes": [8],
    "iterations": 4,
}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """settings.yaml, its market files, and its run in checkpoints/run."""
    folder = tmp_path_factory.mktemp("per_symbol")
    write_market(folder / "data" / "EURUSD.csv", n_bars=200)
    write_market(folder / "data" / "GBPUSD.csv", seed=1, n_bars=240)
    (folder / "settings.yaml").write_text(yaml.safe_dump({**SETTINGS, "data": str(folder / "data")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_here(train_ppo.main, "--config", "settings.yaml", "--checkpoint-dir", "checkpoints/run")
    return folder


@pytest.fixture
def run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder / "checkpoints" / "run"


def figures(folder):
    return json.loads((folder / "evaluation.json").read_text())


def test_a_resumed_run_ends_with_the_same_weights(run, tmp_path):
    parts = tmp_path / "parts"
    run_here(train_ppo.main, "--config", "settings.yaml", "--checkpoint-dir", parts, "--iterations", "2")
    assert not torch.equal(weights(parts), weights(run))
    run_here(train_ppo.main, "--resume", parts, "--iterations", "4")
    assert torch.equal(weights(parts), weights(run))


def test_evaluation_and_backtest_give_the_figures_of_the_report(run, tmp_path):
    run_here(evaluate_ppo.main, run, "--output-dir", tmp_path / "evaluated")
    run_here(backtest.main, "--config", "settings.yaml", "--output-dir", tmp_path / "backtested")
    assert set(figures(run)["each_symbol"]) == set(SYMBOLS)
    assert figures(tmp_path / "evaluated") == figures(tmp_path / "backtested") == figures(run)
    for symbol in SYMBOLS:
        assert figures(tmp_path / "evaluated" / "symbols" / symbol) == figures(run / "symbols" / symbol)


def test_one_of_its_symbols_is_evaluated_as_in_the_report(run, tmp_path):
    run_here(evaluate_ppo.main, run, "--symbols", "GBPUSD", "--output-dir", tmp_path)
    assert figures(tmp_path)["each_symbol"] == {"GBPUSD": figures(run)["each_symbol"]["GBPUSD"]}


def test_it_is_played_on_its_first_symbol(run):
    played = run_here(enjoy.main, run)
    of_each = [len((run / "symbols" / symbol / "ledger.csv").read_text().splitlines()) for symbol in SYMBOLS]
    assert of_each[0] != of_each[1]
    assert f", {of_each[0] - 2} steps" in played.stdout  # a header, and the row before the first step
