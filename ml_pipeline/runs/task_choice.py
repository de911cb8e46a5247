"""From settings to the task they name: a Gymnasium id or, without one, trading."""

from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.task import TradingTask


def make_task(config: TrainConfig) -> GymTask | TradingTask:
    """Raises UserError where the environment or the market cannot be used."""
    run = config.run
    if run.env_id is not None:
        return GymTask(run.env_id, eval_episodes=run.eval_episodes, seed=run.seed)
    return TradingTask(config.trading, run.seed)
