"""Names that other libraries use for our settings: a user who types one gets ours as a suggestion.

They are not aliases: apart from `ALIASES`, each setting has only one name in flags, files and docs.
"""

import re
from collections.abc import Collection, Mapping

from ml_pipeline.config.errors import nearest

ALIASES = {"num_episodes": "iterations", "share_network": "share_encoder"}
"""Other names under which settings are taken, as flags and in files."""

# Stable-Baselines3 and its zoo, CleanRL, Gymnasium, and the trading libraries that our users come from.
_OURS = {
    "algo": "algorithm",
    "lr": "learning_rate",
    "env": "env_id",
    "env_name": "env_id",
    "environment": "env_id",
    "num_envs": "n_envs",
    "num_env": "n_envs",
    "num_steps": "n_steps",
    "rollout_length": "n_steps",
    "num_workers": "n_workers",
    "num_cpu": "n_workers",
    "batch_size": "minibatch_size",
    "mini_batch_size": "minibatch_size",
    "num_epochs": "n_epochs",
    "update_epochs": "n_epochs",
    "epochs": "n_epochs",
    "timesteps": "total_timesteps",
    "n_timesteps": "total_timesteps",
    "num_timesteps": "total_timesteps",
    "episodes": "iterations",
    "discount": "gamma",
    "lam": "gae_lambda",
    "clip": "clip_range",
    "clip_coef": "clip_range",
    "clip_eps": "clip_range",
    "clip_vloss": "clip_range_vf",
    "entropy_coef": "ent_coef",
    "value_coef": "vf_coef",
    "norm_adv": "normalize_advantages",
    "net_arch": "hidden_sizes",
    "policy_kwargs": "hidden_sizes",
    "features_extractor_class": "network",
    "features_extractor_kwargs": "network_kwargs",
    "share_features_extractor": "share_encoder",
    "hidden_dim": "hidden_sizes",
    "layers": "hidden_sizes",
    "activation_fn": "activation",
    "lstm_hidden_size": "memory_size",
    "max_seq_len": "sequence_length",
    "save_freq": "checkpoint_interval",
    "eval_freq": "eval_interval",
    "n_eval_episodes": "eval_episodes",
    "log_dir": "checkpoint_dir",
    "log_folder": "checkpoint_dir",
    "save_path": "checkpoint_dir",
    "output_dir": "checkpoint_dir",
    "exp_name": "checkpoint_dir",
    "tensorboard_log": "tensorboard",
    "wandb_project": "wandb",
    "wandb_project_name": "wandb",
    "track": "wandb",
    "callbacks": "callback",
    "sinks": "sink",
    "trained_agent": "resume",
    "start_method": "parallel_start_method",
    "random_seed": "seed",
    "ticker": "symbols",
    "tickers": "symbols",
    "pairs": "symbols",
    "fee": "fee_bps",
    "fees": "fee_bps",
    "trading_fees": "fee_bps",
    "commission": "fee_bps",
    "transaction_cost": "fee_bps",
    "slippage": "slippage_bps",
    "borrow_interest_rate": "borrow_bps_per_year",
    "initial_balance": "initial_cash",
    "initial_capital": "initial_cash",
    "initial_amount": "initial_cash",
    "lookback": "window",
    "window_size": "window",
}

# Hints for names without an equivalent setting. {device} stands for the setting as the user types it.
_REMARKS = {
    "num_minibatches": "Give the size of a minibatch, not their number: {minibatch_size} 256.",
    "n_minibatches": "Give the size of a minibatch, not their number: {minibatch_size} 256.",
    "anneal_lr": "Say {learning_rate_schedule} linear.",
    "cuda": "Say {device} cuda.",
    "gpu": "Say {device} cuda.",
    "policy": "The kind of network follows from the observations; {hidden_sizes} gives its layers.",
    **dict.fromkeys(
        (
            "buffer_size", "learning_starts", "train_freq", "gradient_steps", "tau", "target_update_interval",
            "exploration_fraction", "exploration_initial_eps", "exploration_final_eps", "action_noise",
        ),
        "Stable-Baselines3's own arguments stand in {algorithm_kwargs}, such as "
        "'{{\"buffer_size\": 50000}}'.",
    ),
    "capture_video": 'Record a trained policy by "ml-pipeline enjoy checkpoints/RUN --video out.mp4".',
    "render": 'Watch a trained policy by "ml-pipeline enjoy checkpoints/RUN --render human".',
}  # fmt: skip

# Patterns of words without a flag, and the settings that they probably belong to.
_LOOKS = {
    r"(.*[:/])?[\w-]+-v\d+": "env_id",
    r".*\.(csv|parquet)": "data",
    r".*\.(ya?ml|json)": "config",
    r".*\.pt": "resume",
}


def familiar_name(name: str, shown: Mapping[str, str]) -> str:
    """A suggestion if `name` is another library's name for one of our settings; else empty.

    name: with underscores. shown: the existing settings, and how the user types each: "n_envs" as a key, "--n-envs" as
    a flag.

    >>> familiar_name("lr", {"learning_rate": "--learning-rate"})
    ' Did you mean "--learning-rate"?'
    >>> familiar_name("anneal_lr", {"learning_rate_schedule": "learning_rate_schedule"})
    ' Say learning_rate_schedule linear.'
    >>> familiar_name("lr", {"seed": "--seed"})
    ''
    """
    if (ours := _OURS.get(name, "")) in shown:
        return f' Did you mean "{shown[ours]}"?'
    try:
        return f" {_REMARKS[name].format_map(shown)}"
    except KeyError:  # there is no remark, or it refers to a setting that does not exist here
        return ""


def meant_setting(name: str, known: Collection[str]) -> str:
    """A suggestion for an unknown name of a setting; if there is none, all known names.

    >>> meant_setting("lr", ["learning_rate", "seed"])
    'Did you mean "learning_rate"?'
    >>> meant_setting("colour", ["learning_rate", "seed"])
    'Known names: learning_rate, seed.'
    """
    return familiar_name(name, {each: each for each in known}).lstrip() or nearest(name, known)


def setting_for(word: str, known: Collection[str]) -> str | None:
    """The setting, of the `known` ones, that a word without a flag probably belongs to; None if there is none.

    >>> setting_for("CartPole-v1", ["env_id", "data"])
    'env_id'
    """
    return next((ours for look, ours in _LOOKS.items() if ours in known and re.fullmatch(look, word)), None)
