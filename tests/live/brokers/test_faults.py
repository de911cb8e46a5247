import dataclasses

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.brokers.faults import SimulatedFaults


def test_nothing_goes_wrong_unless_asked_for():
    faults = SimulatedFaults()
    rates = [getattr(faults, field.name) for field in dataclasses.fields(faults) if field.name.endswith(("rate", "_s"))]
    assert len(rates) == 6
    assert not any(rates)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sim_latency_s": -1.0}, "sim_latency_s must be at least 0 and finite, but got -1.0."),
        ({"sim_reject_rate": 1.5}, "sim_reject_rate must lie between 0 and 1, but got 1.5."),
        ({"sim_outage_rate": float("nan")}, "sim_outage_rate must lie between 0 and 1, but got nan."),
        ({"sim_rest_of_order": "cancelled"}, "sim_rest_of_order must be one of open, canceled"),
        ({"sim_outage_bars": 0}, "sim_outage_bars must be a whole number of at least 1, but got 0."),
        ({"sim_seed": -1}, "sim_seed must be a whole number of at least 0, but got -1."),
    ],
)
def test_a_value_out_of_range_is_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence.replace(".", r"\.")):
        SimulatedFaults(**changes)
