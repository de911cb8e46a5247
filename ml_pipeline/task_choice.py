"""From settings to the task they name: a Gymnasium id or, without one, trading."""

from ml_pipeline.gym_task import GymTask
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.train_config import TrainConfig


def make_task(config: TrainConfig) -> GymTask | TradingTask:
    """Raises UserError where the environment or the market cannot be used."""
    run = config.run
    if run.env_id is not None:
        return GymTask(run.env_id, eval_episodes=run.eval_episodes, seed=run.seed)
    return TradingTask(config.trading, run.seed)
