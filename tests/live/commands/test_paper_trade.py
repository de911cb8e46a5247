"""The command that trades: its subcommands, its exit codes, settings from a file, and signals."""

import json
import signal
import subprocess
import sys

import pytest

from ml_pipeline.live.brokers.simulated import SimulatedBroker
from ml_pipeline.live.commands.paper_trade import main
from ml_pipeline.live.session_files import LEDGER_FILE
from ml_pipeline.runs.state import read_state
from tests.live.loop.sessions import backtest, deploy, write_prices
from tests.models.rl.core.workers.probes import wait_until

ONE = ["A"]


@pytest.fixture
def replay(tmp_path):
    write_prices(tmp_path / "prices.csv", ONE)
    return deploy(tmp_path / "model", ONE), tmp_path / "prices.csv"


def argv(tmp_path, replay, *flags):
    model, prices = replay
    return [
        *("--model", str(model), "--replay", str(prices), "--root", str(tmp_path / "live"), "--name", "NAME"),
        *map(str, flags),
    ]


def test_a_replay_ends_with_0_and_the_settings_of_a_file(tmp_path, replay, capsys):
    (tmp_path / "trade.yaml").write_text("speed: 100000000\nfee_bps: 2.0\n")

    assert main(argv(tmp_path, replay, "--config", tmp_path / "trade.yaml")) == 0

    written = (tmp_path / "live" / "NAME" / LEDGER_FILE).read_bytes()
    assert written == backtest(*replay, tmp_path / "expected.csv", fee_bps=2.0)
    assert "The bars have ended." in capsys.readouterr().out


def test_all_that_is_noticed_about_the_bars_is_printed_at_the_start(tmp_path, replay, capsys):
    model, prices = replay
    other = tmp_path / "other.csv"  # without symbols and volumes
    rows = [line.split(",") for line in prices.read_text().splitlines()]
    other.write_text("\n".join(",".join([row[0], *row[2:6]]) for row in rows) + "\n")

    assert main(argv(tmp_path, (model, other))) == 0

    _, *noticed = capsys.readouterr().out.splitlines()[:4]
    assert "the policy was trained on A, and trades other here" in noticed[0]
    assert noticed[1].strip() == "other.csv: no column for volume; taken as 0"
    assert noticed[2].strip().startswith("times are UTC and when bars open")


def test_what_a_person_is_to_look_at_ends_with_3(tmp_path, replay):
    flags = argv(tmp_path, replay, "--guard-drawdown", 0.005)

    assert main(flags) == 3
    assert main(flags) == 3  # the limit stays tripped


def test_an_account_that_differs_ends_with_3_and_both_sides(tmp_path, replay, monkeypatch, capsys):
    assert main(argv(tmp_path, replay)) == 0
    right = SimulatedBroker.account
    monkeypatch.setattr(SimulatedBroker, "account", lambda self: right(self)._replace(cash=1.0))

    assert main(argv(tmp_path, replay)) == 3

    assert "1.00 at the broker" in capsys.readouterr().out


def test_settings_that_cannot_be_used_end_with_2(tmp_path, replay, capsys):
    with pytest.raises(SystemExit) as end:
        main(argv(tmp_path, replay, "--broker", "alpaca"))

    assert end.value.code == 2
    assert "--replay trades on recorded bars" in capsys.readouterr().err


def test_each_action_is_about_one_session(tmp_path, replay, capsys):
    assert main(argv(tmp_path, replay)) == 0
    folder, root = tmp_path / "live" / "NAME", ["--root", str(tmp_path / "live")]
    capsys.readouterr()

    assert main(["status", "NAME", *root]) == 0
    assert "it has finished" in capsys.readouterr().out
    assert main(["reconcile", "NAME", *root]) == 0
    assert (folder / "reconciliation.html").exists()
    for what in ("stop", "flatten"):
        with pytest.raises(SystemExit) as end:
            main([what, "OTHER", *root])
        assert end.value.code == 2
    with pytest.raises(SystemExit):
        main(["stat", *root])
    assert 'Did you mean "status"?' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGINT])
def test_a_signal_stops_a_session_between_two_bars(tmp_path, replay, number):
    command = [sys.executable, "-m", "ml_pipeline", "paper-trade", *argv(tmp_path, replay, "--speed", 60)]
    status = tmp_path / "live" / "NAME" / "live.json"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        wait_until(lambda: status.exists() or process.poll() is not None)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)

    assert process.returncode == 128 + number, out
    assert read_state(tmp_path / "live" / "NAME").status == "stopped"
    lines = (tmp_path / "live" / "NAME" / "live.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["event"] == "stop"
