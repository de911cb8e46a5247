from pathlib import Path

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.feeds.config import FeedConfig


def test_bars_come_from_the_broker_unless_a_file_is_named():
    config = FeedConfig()

    assert config.replay is None
    assert config.follow is None
    assert config.replay_begins is None


@pytest.mark.parametrize("written", ["2024-03-01T14:30", "2024-03-01 14:30", "2024-03-01 14:30:00"])
def test_a_replay_begins_at_a_time(written):
    config = FeedConfig(replay=Path("prices.csv"), replay_from=written)

    assert config.replay_begins == np.datetime64("2024-03-01T14:30")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"replay": Path("a.csv"), "follow": Path("b.csv")}, "replay and follow are two sources of bars"),
        ({"speed": 60.0}, "speed applies to a replay"),
        ({"replay": Path("a.csv"), "speed": 0.0}, "speed must be above 0"),
        ({"replay": Path("a.csv"), "replay_from": "monday"}, 'replay_from must be a time such as .* but got "monday"'),
        ({"replay": Path("a.csv"), "replay_from": ""}, 'replay_from must be a time such as .* but got ""'),
        ({"bar_wait_s": -1.0}, "bar_wait_s must be at least 0"),
        ({"bar_wait_s": float("nan")}, "bar_wait_s must be at least 0"),
        ({"bar_fetches": -1}, "bar_fetches must be a whole number of at least 0"),
        ({"silent_bars": 0}, "silent_bars must be a whole number of at least 1"),
        ({"on_gap": "wiat"}, 'on_gap must be one of wait, flatten, but got "wiat". Did you mean "wait"?'),
        ({"follow_clock": "local"}, "follow_clock must be one of utc, bars"),
        ({"warmup_bars": -1}, "warmup_bars must be a whole number of at least 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        FeedConfig(**settings)
