"""What is wrong with a task, as far as it shows before a run is queued: unreadable data, unknown ids, wrong actions."""

from contextlib import closing

import gymnasium

from ml_pipeline.config.algorithms import OWN, check_actions
from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.preprocessing.spaces import space_name
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.environments.ids import check_registered, id_error, import_module_of, keyword_error
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.envs.actions import action_space
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.single_markets import load_single_markets
from ml_pipeline.trading.task import load_configured_market


def check_task(config: TrainConfig) -> None:
    """Raise UserError if the data cannot be read, the environment's id is not registered, or the algorithm does not
    take its actions.

    Imports the module of an id, so call it in a process that may run the user's code. The actions are looked at for
    other algorithms than PPO, which takes all: an environment is made for that.
    """
    run = config.run
    if run.env_id is None:
        n_assets = _n_assets(config.trading)
        space = None if run.algorithm == OWN else action_space(config.trading.rules(n_assets), n_assets)
    else:
        import_module_of(run.env_id)
        check_registered(run.env_id)
        space = None if run.algorithm == OWN else _env_actions(config)
    if space is not None:
        check_actions(run.algorithm, type(space).__name__, space_name(space))


def _n_assets(trading: TradingConfig) -> int:
    """How many assets a policy trades at once. Raises UserError, as `train` does, if their data cannot be read."""
    if trading.per_symbol:
        load_single_markets(trading)
        return 1
    return len(load_configured_market(trading).symbols)


def _env_actions(config: TrainConfig) -> gymnasium.Space | None:
    """None where the environment cannot be made for a reason of its own, which its run will tell."""
    run = config.run
    assert run.env_id is not None
    try:
        with closing(GymEnv.of(run).make()) as made:
            return made.action_space
    except UserError:
        raise
    except Exception as error:
        if told := id_error(run.env_id, error) or keyword_error(run.env_id, error, run.env_kwargs):
            raise told from error
        return None
