"""The first signal asks for a stop; a second one has its usual effect, but for those of a closed terminal."""

import os
import signal

import pytest

from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
from ml_pipeline.runtime.interrupts import Interrupted, raising_on_signals

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
HUP, INT, TERM = signal.SIGHUP, signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize("first", [HUP, INT, TERM], ids=lambda number: number.name)
def test_the_first_signal_asks_for_a_stop(first):
    asked = []
    with raising_on_signals(), stop_on_signals(asked.append) as received:
        signal.raise_signal(first)
    assert asked == received == [first]


@pytest.mark.parametrize(("first", "second"), [(INT, INT), (INT, TERM), (TERM, INT)])
def test_a_second_signal_has_its_usual_effect(first, second):
    with raising_on_signals(), stop_on_signals(lambda _: None):
        signal.raise_signal(first)
        with pytest.raises(Interrupted) as stop:
            signal.raise_signal(second)
    assert stop.value.number == second


@pytest.mark.parametrize("others", [(HUP, HUP), (HUP, TERM), (INT, HUP), (TERM, HUP)])
def test_a_closed_terminal_asks_as_often_as_it_likes(others):
    with raising_on_signals(), stop_on_signals(lambda _: None) as received:
        for number in others:
            signal.raise_signal(number)
    assert received == list(others)


def test_a_signal_that_arrives_while_handlers_are_installed_is_told_and_leaves_none_behind(monkeypatch):
    before, install, asked = {number: signal.getsignal(number) for number in (HUP, INT, TERM)}, signal.signal, []

    def install_and_raise(number, handler):
        usual = install(number, handler)
        if number == TERM:
            monkeypatch.setattr(signal, "signal", install)
            signal.raise_signal(number)
        return usual

    def request_stop(number):
        asked.append(number)
        raise Interrupted(number)  # as a handler that fails

    monkeypatch.setattr(signal, "signal", install_and_raise)
    with pytest.raises(Interrupted), stop_on_signals(request_stop):
        pytest.fail("the signal came before the block")
    assert asked == [TERM]
    assert {number: signal.getsignal(number) for number in (HUP, INT, TERM)} == before


def test_the_handlers_are_back_after_the_block():
    before = {number: signal.getsignal(number) for number in (HUP, INT, TERM)}
    with stop_on_signals(lambda _: None):
        signal.raise_signal(HUP)
    assert {number: signal.getsignal(number) for number in (HUP, INT, TERM)} == before
