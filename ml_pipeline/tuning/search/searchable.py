"""Which settings a trial may choose for itself: those of the trainer, what the policy observes, and how it trades.

The others would let a trial score higher without a better policy, or belong to the study: each is refused with the
reason. A test holds that every setting is either searchable or refused.
"""

from collections.abc import Mapping
from dataclasses import fields

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.familiar_names import familiar_name
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.settings import hints_of
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.train_config import TrainConfig

SEARCHABLE = frozenset(
    {
        *(field.name for field in fields(PPOConfig)),
        *("algorithm", "algorithm_kwargs", "frame_stack"),
        *("features", "window", "reward", "reward_scale", "reward_kwargs", "episode_length"),
        # How the policy trades: it does the same in the test split and live.
        *("action_mode", "allow_short", "action_threshold", "trade_limit_percent", "min_cash"),
        *("stop_loss", "take_profit", "flat_at_close"),
    }
)

_REASONS: Mapping[str, tuple[str, ...]] = {
    "costs are not searched: trials would find the cheapest market, not the best policy": (
        *("fill_at", "size_at", "fee_bps", "sell_fee_bps", "fixed_fee", "slippage_bps", "limit_bps"),
        *("borrow_bps_per_year", "financing_bps_per_year"),
    ),
    "it is a limit of the account: trials would find the largest risk, not the best policy": (
        *("max_position", "max_gross", "maintenance_margin", "on_limit", "lot_size", "min_order", "initial_cash"),
    ),
    "it decides which bars are scored: trials would find the easiest ones": (
        *("train_fraction", "validation_fraction", "embargo_bars"),
        *("data", "symbols", "per_symbol", "columns", "date_order", "bar_time", "timeframe", "session", "timezone"),
        *("drop_bad_rows", "adjust_splits", "periods_per_year"),
    ),
    "it decides what is scored, and trials are compared by the same score": ("score",),
    "it is the task, which all trials share: trials would find the easiest one": (
        *("env_id", "env_kwargs", "wrappers", "atari"),
    ),
    "it decides how often a trial is scored, and its best score counts: more looks give a higher one": (
        *("eval_interval", "eval_episodes"),
    ),
    "it is what all trials begin with; give it on the command line": ("init_from",),
    "it is a person's word on a feature; give it on the command line": ("accept_feature",),
    "trials would find a lucky seed: judge each by several, with --seeds-per-trial": ("seed",),
    "all trials have the same budget: longer training would win": (
        *("total_timesteps", "num_episodes", "stop_at_return", "stop_on_plateau"),
    ),
    "it decides how many trials fit on the machine; give it on the command line": ("n_envs", "n_envs_schedule"),
    "it is about the machine or the files, and not about what is learned; give it on the command line": (
        *("vec_env", "n_workers", "parallel_start_method", "step_timeout_s", "on_worker_failure", "device"),
        *("checkpoint_dir", "checkpoint_interval", "tensorboard", "tensorboard_dir", "wandb", "sink"),
        *sorted(OF_LAUNCH),
    ),
}
REFUSED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names}
"""Why a setting is not searched, by its name."""


def searchable(name: object, *, source: str) -> str:
    """The setting that a search space calls `name`, with dashes or underscores. source: opens the sentences of errors.

    Raises UserError: a name unknown, with the nearest one, or a setting that is not searched, with the reason.
    """
    setting = str(name).replace("-", "_")
    if setting not in hints_of(TrainConfig):
        meant = familiar_name(setting, {each: each for each in SEARCHABLE}) or f" {nearest(setting, SEARCHABLE)}"
        raise UserError(f'{source}: unknown setting "{in_one_line(name)}".{meant}')
    if setting not in SEARCHABLE:
        reason = REFUSED.get(setting, "it is none of the trainer's")
        raise UserError(f"{source}: {setting} cannot be searched: {reason}.")
    return setting
