"""How often a model is trained again, as a person writes it."""

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.retraining.retrain_config import RetrainConfig, read_interval


@pytest.mark.parametrize(("text", "hours"), [("7d", 168), ("12h", 12), ("90m", 1.5), ("1w", 168), (" 1800s ", 0.5)])
def test_a_span_is_a_number_and_a_unit(text, hours):
    assert read_interval(text) == (np.timedelta64(round(hours * 3600), "s"), None)


@pytest.mark.parametrize("text", [2000, "2000"])
def test_a_number_alone_counts_bars(text):
    assert read_interval(text) == (None, 2000)


def test_nothing_is_retrained_unless_asked_for():
    assert RetrainConfig().interval is None


@pytest.mark.parametrize("text", ["7y", "d", "0d", "-3", "1.5h", "", "7 days", 0])
def test_anything_else_is_refused(text):
    with pytest.raises(UserError, match="retrain_every must be a span such as 7d"):
        RetrainConfig(retrain_every=text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("retrain_from", "random"), ("retrain_bars", 0), ("retrain_timesteps", 0), ("retrain_cores", 0)),
        *(("retrain_validation", 1.0), ("retrain_validation", float("nan")), ("retrain_min_dsr", 1.5)),
        *(("retrain_margin", -1.0), ("retrain_margin", float("inf")), ("retrain_time_limit_s", 0.0)),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(UserError, match=name):
        RetrainConfig(**{name: value})
