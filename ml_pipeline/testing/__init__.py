"""Test classes to inherit for your own broker, feed or vectorizer. They need pytest."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.testing.brokers import BrokerContract as BrokerContract
    from ml_pipeline.testing.feeds import FeedContract as FeedContract
    from ml_pipeline.testing.vector_envs import VectorEnvContract as VectorEnvContract

__getattr__, __dir__ = lazy_names(__name__, __file__)
