"""Paper trading: a session, requests to it, its reconciliation, and what a broker or feed of your own is made of."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.live.brokers.broker import ENDED as ENDED
    from ml_pipeline.live.brokers.broker import AccountState as AccountState
    from ml_pipeline.live.brokers.broker import Adjustment as Adjustment
    from ml_pipeline.live.brokers.broker import Broker as Broker
    from ml_pipeline.live.brokers.broker import BrokerUnavailable as BrokerUnavailable
    from ml_pipeline.live.brokers.broker import Charge as Charge
    from ml_pipeline.live.brokers.broker import Fill as Fill
    from ml_pipeline.live.brokers.broker import OrderRequest as OrderRequest
    from ml_pipeline.live.brokers.broker import OrderUpdate as OrderUpdate
    from ml_pipeline.live.brokers.broker import QuantityRules as QuantityRules
    from ml_pipeline.live.brokers.broker import TradingSession as TradingSession
    from ml_pipeline.live.config import paper_trade_config as paper_trade_config
    from ml_pipeline.live.feeds.feed import Feed as Feed
    from ml_pipeline.live.reconciliation.report import reconcile_session as reconcile_session
    from ml_pipeline.live.session import PaperTrading as PaperTrading
    from ml_pipeline.live.supervision.requests import ask as ask

__getattr__, __dir__ = lazy_names(__name__, __file__)
