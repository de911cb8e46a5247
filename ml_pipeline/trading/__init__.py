"""Trading: market data, features, rules of an account, environments, and the task that joins them."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.trading.accounts.rules import TradingRules as TradingRules
    from ml_pipeline.trading.envs.batched import BatchedTradingEnv as BatchedTradingEnv
    from ml_pipeline.trading.envs.fast import FastTradingEnv as FastTradingEnv
    from ml_pipeline.trading.envs.rewards import Reward as Reward
    from ml_pipeline.trading.envs.rewards import RewardFunction as RewardFunction
    from ml_pipeline.trading.features.feature_stream import FeatureStream as FeatureStream
    from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES as DEFAULT_FEATURES
    from ml_pipeline.trading.features.indicators import compute_features as compute_features
    from ml_pipeline.trading.gym_ids import FastTrainingEnv as FastTrainingEnv
    from ml_pipeline.trading.gym_ids import StatefulTradingEnv as StatefulTradingEnv
    from ml_pipeline.trading.gym_ids import TradingEnv as TradingEnv
    from ml_pipeline.trading.market.bar_set import BarSet as BarSet
    from ml_pipeline.trading.market.bar_set import bar_sets_of as bar_sets_of
    from ml_pipeline.trading.market.data import MarketData as MarketData
    from ml_pipeline.trading.market.data import market_from_arrays as market_from_arrays
    from ml_pipeline.trading.market.files import load_market as load_market
    from ml_pipeline.trading.market.synthetic import synthetic_market as synthetic_market
    from ml_pipeline.trading.settings import TradingConfig as TradingConfig
    from ml_pipeline.trading.task import TradingTask as TradingTask

__getattr__, __dir__ = lazy_names(__name__, __file__)
