"""Hyperparameter search over runs, and statistics on how much the best trial is worth."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.tuning.config import tune_config as tune_config
    from ml_pipeline.tuning.selection import deflated_sharpe_ratio as deflated_sharpe_ratio
    from ml_pipeline.tuning.selection import moments_of as moments_of
    from ml_pipeline.tuning.selection import sharpe_ratios as sharpe_ratios
    from ml_pipeline.tuning.trials.run_study import StudyRun as StudyRun

__getattr__, __dir__ = lazy_names(__name__, __file__)
