import math

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.settings import TradingConfig


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"columns": {"closing": "Last"}}, 'columns cannot name a column "closing"'),
        ({"date_order": "ydm"}, "date_order must be one of dmy, mdy, ymd"),
        ({"window": 0}, "window must be a whole number of at least 1, but got 0"),
        ({"episode_length": -5}, "episode_length must be a whole number of at least 1"),
        ({"embargo_bars": -1}, "embargo_bars must be a whole number of at least 0"),
        ({"fee_bps": -1.0}, "fee_bps must be from 0 to 1000"),
        ({"fee_bps": "two"}, "fee_bps must be a number, but got 'two'."),
        ({"sell_fee_bps": "two"}, "sell_fee_bps must be a number, but got 'two'."),
        ({"fee_bps": None}, "fee_bps must be a number, but got None."),
        ({"max_gross": "all"}, "max_gross must be a number, but got 'all'."),
        ({"train_fraction": "most"}, "train_fraction must be a number, but got 'most'."),
        ({"reward_scale": "x"}, "reward_scale must be a number, but got 'x'."),
        ({"window": 2.5}, "window must be a whole number of at least 1, but got 2.5"),
        ({"fee_bps": 1e9}, "fee_bps must be from 0 to 1000"),
        ({"slippage_bps": math.nan}, "slippage_bps must be from 0"),
        ({"initial_cash": 0.0}, "initial_cash must be above 0 and finite"),
        ({"initial_cash": math.inf}, "initial_cash must be above 0 and finite"),
        ({"train_fraction": 1.0}, "train_fraction must be between 0 and 1"),
        ({"train_fraction": 0.9, "validation_fraction": 0.2}, "less than 1, to leave a test split"),
        ({"features": ()}, "at least one feature"),
        ({"features": ("rsi14",)}, 'no feature "rsi14". Did you mean "rsi_14"'),
        ({"features": ("os:path",)}, "Feature os:path must be a function of Bars, but it is a module"),
        ({"action_mode": "weights"}, 'action_mode must be one of .* but got "weights"'),
        ({"fill_at": "open"}, "fill_at must be one of next_open, close"),
        ({"size_at": "close"}, "size_at must be one of fill, decision"),
    ],
)
def test_a_bad_setting_is_one_sentence(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        TradingConfig(**changes)


def test_one_asset_chooses_and_several_are_weighted_unless_told():
    assert TradingConfig().rules(1).action_mode == "discrete"
    assert TradingConfig().rules(3).action_mode == "target_weights"
    assert TradingConfig(action_mode="discrete").rules(3).action_mode == "discrete"
