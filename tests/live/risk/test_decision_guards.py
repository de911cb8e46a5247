"""Decisions that are no numbers trade nothing; features outside the range of training are told or hold trading."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from tests.live.risk.guarded_accounts import guards_of


class Decision(NamedTuple):
    action: object = 1
    weights: object = (0.5,)
    out_of_range: tuple = ()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_an_action_that_is_no_number_trades_nothing(wrong):
    for decision in (Decision(action=np.array([0.1, wrong])), Decision(weights=[wrong]), Decision(action=wrong)):
        verdict = guards_of("A").on_decision(decision)
        assert verdict.action == "hold"
        assert verdict.refusals[0].sentence.startswith("Nothing is ordered: the ")


@pytest.mark.parametrize("fine", [Decision(), Decision(action=np.array([2])), Decision(weights=np.zeros(3))])
def test_any_number_is_a_possible_action(fine):
    assert guards_of("A").on_decision(fine) == ((), "trade", (), None)


# A range from 0 to 10 is 10 wide: 12.5 lies a quarter of it outside.
@pytest.mark.parametrize(("value", "far"), [(12.499, False), (12.5, False), (12.501, True), (-2.499, False),
                                            (-2.5, False), (-2.501, True)])  # fmt: skip
@pytest.mark.parametrize("response", ["hold", "flatten"])
def test_a_feature_may_lie_so_far_outside(value, far, response):
    guards = guards_of("A", guard_features=response, guard_features_beyond=0.25)
    verdict = guards.on_decision(Decision(out_of_range=(("rsi_14", value, 0.0, 10.0),)))
    assert verdict.action == (response if far else "trade")
    assert len(verdict.refusals) == far


def test_a_feature_far_outside_is_only_told_by_default():
    verdict = guards_of("A").on_decision(Decision(out_of_range=(("rsi_14", 18.0, 0.0, 10.0),)))
    assert verdict.action == "trade"
    assert [(each.sentence, each.warning) for each in verdict.refusals] == [
        (
            "Outside the training range by more than guard_features_beyond 0.5: rsi_14 is 18, 0.8 range widths outside "
            "0 to 10.",
            True,
        )
    ]


def test_a_feature_that_never_changed_in_training_is_far_outside_wherever_it_is():
    verdict = guards_of("A", guard_features="hold", guard_features_beyond=9.0).on_decision(
        Decision(out_of_range=(("flag", 1.001, 1.0, 1.0),))
    )
    assert verdict.action == "hold"


def test_the_farthest_features_are_named():
    features = tuple((f"f{i}", 10.0 + 10.0 * i, 0.0, 10.0) for i in range(6))
    (told,) = guards_of("A").on_decision(Decision(out_of_range=features)).refusals
    assert "0.5: f5 is 60, 5 range widths" in told.sentence
    assert told.sentence.endswith("; and 2 more.")
    assert (told.value, told.limit) == (5.0, 0.5)
