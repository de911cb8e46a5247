import math

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.settings import TradingConfig


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"window": 0}, "window must be 1 or more, but got 0"),
        ({"episode_length": -5}, "episode_length must be 1 or more"),
        ({"embargo_bars": -1}, "embargo_bars must be 0 or more"),
        ({"fee_bps": -1.0}, "fee_bps must be from 0 to 1000"),
        ({"fee_bps": 1e9}, "fee_bps must be from 0 to 1000"),
        ({"slippage_bps": math.nan}, "slippage_bps must be from 0"),
        ({"initial_cash": 0.0}, "initial_cash must be positive"),
        ({"initial_cash": math.inf}, "initial_cash must be positive and finite"),
        ({"train_fraction": 1.0}, "train_fraction must be between 0 and 1"),
        ({"train_fraction": 0.9, "validation_fraction": 0.2}, "less than 1, to leave a test split"),
        ({"features": ()}, "at least one feature"),
        ({"features": ("rsi14",)}, 'no feature "rsi14". Did you mean "rsi_14"'),
        ({"features": ("os:path",)}, "Feature os:path must be a function of Bars, but it is a module"),
        ({"action_mode": "weights"}, 'action_mode must be one of .* but got "weights"'),
        ({"fill_at": "open"}, "fill_at must be one of next_open, close"),
    ],
)
def test_a_bad_setting_is_one_sentence(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        TradingConfig(**changes)


def test_one_asset_chooses_and_several_are_weighted_unless_told():
    assert TradingConfig().rules(1).action_mode == "discrete"
    assert TradingConfig().rules(3).action_mode == "target_weights"
    assert TradingConfig(action_mode="discrete").rules(3).action_mode == "discrete"
