"""The phases of a session: whatever happens, only transitions of the table, and an end is final."""

import re
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.live.shutdown import (
    TRANSITIONS,
    Cause,
    ClosingDown,
    Ended,
    Shutdown,
    ShutdownRequest,
    Trading,
    next_phase,
)

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "paper-trading.md"
requests = st.builds(
    ShutdownRequest,
    cause=st.sampled_from(get_args(Cause)),
    reason=st.sampled_from(["one", "two", "three"]),
    positions=st.sampled_from(["hold", "flatten"]),
)


@given(st.lists(requests, max_size=20))
def test_whatever_happens_only_transitions_of_the_table_are_made(happened):
    phase = Trading()
    for request in happened:
        before, phase = phase, next_phase(phase, request)
        to = TRANSITIONS[request.cause]
        if isinstance(before, Ended):
            assert phase is before
        elif isinstance(before, ClosingDown):
            assert type(phase) is to.closing_down
        else:
            assert type(phase) is getattr(to, request.positions)


@given(st.lists(requests, max_size=20))
def test_closing_down_ends_with_its_first_reason_and_as_failed_if_a_feature_failed(happened):
    phase = Trading()
    for request in happened:
        before, phase = phase, next_phase(phase, request)
        if isinstance(before, ClosingDown) and isinstance(phase, ClosingDown):
            assert (phase.reason, phase.asked) == (before.reason, before.asked)
            assert phase.failed == (before.failed or request.cause == "failed_feature")
        if isinstance(before, ClosingDown) and request.cause == "all_closed":
            assert phase == Ended("failed" if before.failed else "stopped", before.reason, asked=before.asked)


@given(st.lists(requests, max_size=20))
def test_an_end_is_asked_for_by_a_person_or_the_end_of_the_bars_alone(happened):
    phase, asked = Trading(), False
    for request in happened:
        phase = next_phase(phase, request)
        asked = asked or request.cause in {"stop", "flatten", "end_of_bars"}
        if isinstance(phase, Ended):
            assert asked or not phase.asked


def test_the_table_says_how_each_cause_ends():
    ends = {cause: next_phase(Trading(), ShutdownRequest(cause, "why")) for cause in get_args(Cause)}
    assert {cause: end.status for cause, end in ends.items() if isinstance(end, Ended)} == {
        **{"stop": "stopped", "end_of_bars": "finished", "ruin": "finished", "failed_feature": "failed"},
        **{"guard": "stopped", "difference": "stopped", "unreachable": "failed"},
    }
    assert ends["flatten"] == ClosingDown("why", asked=True)
    assert ends["gap"] == ends["all_closed"] == Trading()


def test_requests_wait_for_the_end_of_the_bar_the_first_of_each_cause():
    shutdown = Shutdown()
    shutdown.request(ShutdownRequest("difference", "first"))
    shutdown.request(ShutdownRequest("difference", "second"))
    shutdown.request(ShutdownRequest("guard", "a loss"))
    assert shutdown.phase == Trading()
    assert [each.reason for each in shutdown.take_requests()] == ["a loss", "first"]
    assert shutdown.take_requests() == []


@pytest.mark.parametrize("cause", get_args(Cause))
def test_the_docs_have_the_table(cause):
    names = {Trading: "trading", ClosingDown: "closing down", Ended: "ended"}
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", DOCS.read_text(), re.MULTILINE)
    (row,) = [row[1:] for row in rows if row[0] == cause]
    assert row == tuple(names[phase] for phase in TRANSITIONS[cause][:3])
