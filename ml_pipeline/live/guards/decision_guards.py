"""Guards on decisions: actions that are no numbers, and features outside the range seen in training."""

import math

import numpy as np

from ml_pipeline.live.guards.guard import DecisionMade, Guard
from ml_pipeline.live.guards.guard_config import Response
from ml_pipeline.live.guards.verdict import TRADE, Refusal, Verdict

_MOST_NAMED = 3


class ImpossibleAction(Guard):
    """An action or a weight that is NaN or infinite trades nothing, in any symbol."""

    name = "impossible_action"

    def on_decision(self, decision: DecisionMade) -> Verdict:
        for what, numbers in (("action", decision.action), ("target weights", decision.weights)):
            values = np.atleast_1d(np.asarray(numbers, dtype=np.float64))
            if not np.isfinite(values).all():
                shown = np.array2string(values.ravel(), threshold=10, precision=4)
                sentence = f"Nothing is ordered: the {what} {shown} of the policy cannot be traded."
                wrong = float(values[~np.isfinite(values)][0])
                return Verdict((Refusal(self.name, None, wrong, math.nan, sentence),), "hold")
        return TRADE


class FeatureRange(Guard):
    """Features further outside the range seen in training than a fraction of that range's width."""

    name = "guard_features"

    def __init__(self, response: Response, beyond: float) -> None:
        self._response = response
        self._beyond = beyond

    def on_decision(self, decision: DecisionMade) -> Verdict:
        features = decision.out_of_range
        far = [(_widths_outside(value, low, high), column, value, low, high) for column, value, low, high in features]
        far = sorted((each for each in far if each[0] > self._beyond), reverse=True)
        if not far:
            return TRADE
        named = "; ".join(
            f"{column} is {value:.6g}, and was always {low:.6g}"
            if low == high
            else f"{column} is {value:.6g}, {distance:.4g} of the width of its range {low:.6g} to {high:.6g} outside"
            for distance, column, value, low, high in far[:_MOST_NAMED]
        )
        more = f"; and {len(far) - _MOST_NAMED:,} more" if len(far) > _MOST_NAMED else ""
        done = {"warn": "", "hold": " Positions are held.", "flatten": " Positions are closed."}[self._response]
        sentence = (
            f"Outside what training saw by more than guard_features_beyond {self._beyond:g}: {named}{more}.{done}"
        )
        told = Refusal(self.name, None, far[0][0], self._beyond, sentence, warning=self._response == "warn")
        return Verdict((told,), "trade" if self._response == "warn" else self._response)


def _widths_outside(value: float, low: float, high: float) -> float:
    """How far a value lies outside of a range, in widths of it; infinite where all values of training were one.

    >>> _widths_outside(13.0, 0.0, 10.0), _widths_outside(-5.0, 0.0, 10.0), _widths_outside(2.0, 0.0, 10.0)
    (0.3, 0.5, 0.0)
    """
    distance = max(low - value, value - high, 0.0)
    if distance == 0.0:
        return 0.0
    return distance / (high - low) if high > low else math.inf
