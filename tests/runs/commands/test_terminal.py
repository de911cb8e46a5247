"""Signals that stop a run on the terminal."""

import signal
from contextlib import closing

import pytest

from ml_pipeline.monitoring.listener import RunStart
from ml_pipeline.runs.commands.train_run import StoppedBySignals, Terminal
from ml_pipeline.runs.ranks.rank_info import OWN_LAUNCH, RankInfo


@pytest.mark.parametrize(
    ("launch", "ignored"),
    [("job 7", {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}), (f"{OWN_LAUNCH}7", {signal.SIGINT}), (None, set())],
)
def test_a_signal_that_a_launcher_passes_on_once_more_is_no_second_one(monkeypatch, launch, ignored):
    terminal = StoppedBySignals(RankInfo(1, 2, 2, launch, 0))
    monkeypatch.setattr(signal, "getsignal", {}.get)
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    for ends in (lambda: terminal.request_stop(signal.SIGINT), terminal.close):
        handlers.clear()  # as those of before are back
        ends()
        assert handlers == dict.fromkeys(ignored, signal.SIG_IGN)
    assert terminal.stop.signal == signal.SIGINT


def test_a_notice_comes_before_all_that_a_run_says(tmp_path, capsys):
    with closing(Terminal(notice="Several processes do it so.")) as terminal:
        terminal.started(RunStart(tmp_path, 2, 0, None, 4, 8, 0))
    assert capsys.readouterr().out.startswith("Several processes do it so.\n")


def test_the_first_signal_is_the_one_that_a_run_was_stopped_by(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(terminal, "say", lambda sentence: None)
    for number in (signal.SIGTERM, signal.SIGINT):
        terminal.request_stop(number)
    assert (terminal.stop.signal, terminal.stop.reason) == (signal.SIGTERM, "Stopped by SIGTERM.")
