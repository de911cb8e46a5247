"""Finds the earlier run to resume or to backtest, and the settings to continue it with."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.env_schedule import continued
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.run import OF_LAUNCH, OWN_VEC_ENVS
from ml_pipeline.config.settings import NETWORK, same_function
from ml_pipeline.config.wording import shown_path, written
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, runs_folder
from ml_pipeline.runs.settings_file import StartedWith, read_settings_file, runs_elsewhere, started_with
from ml_pipeline.runs.train_config import TrainConfig, layered, settings_in, train_config
from ml_pipeline.trading.settings import TradingConfig

# A resumed run keeps these, and its market: its environments, and the structure of policy and rollouts.
KEPT = frozenset({
    "algorithm", "algorithm_kwargs", "env_id", "env_kwargs", "wrappers", "frame_stack", "atari", "n_envs", "vec_env",
    "seed", "n_steps", "hidden_sizes", "value_hidden_sizes", "activation", "normalize_obs", "clip_obs",
    "normalize_update", "normalize_rewards", "normalize_values", "ortho_init", "log_std_init", "use_sde",
    "sde_sample_freq", "squash_actions", "share_layers", "share_encoder", "network", "network_kwargs", "memory",
    "memory_size", "init_from",
})  # fmt: skip
# It may change these: its length, its workers, how often it saves and evaluates, and how it learns.
MAY_CHANGE = frozenset({
    "iterations", "total_timesteps", "stop_at_return", "stop_on_plateau", "callback",
    "n_envs_schedule",  # of future steps
    "n_workers", "parallel_start_method", "step_timeout_s", "on_worker_failure", "device",
    "checkpoint_dir", "checkpoint_interval", "eval_interval", "eval_episodes",
    "tensorboard", "tensorboard_dir", "wandb", "sink", *OF_LAUNCH,
    "minibatch_size", "n_epochs", "learning_rate", "learning_rate_schedule", "gamma", "gae_lambda", "clip_range",
    "clip_range_schedule", "clip_range_vf", "ent_coef", "ent_coef_schedule", "vf_coef", "max_grad_norm", "target_kl",
    "normalize_advantages", "normalize_advantages_over", "bfloat16", "gradient_chunks",
    "sequence_length",
})  # fmt: skip
_INSTEAD = {"n_envs": "change it with --n-envs-schedule STEP:N, or by a request while the run trains"}
# A change of these is another task, so `--resume auto` looks for another run.
_OF_MARKET = ("data", "symbols", "features")


def resumed_config(checkpoint: Path, changes: Mapping[str, Any]) -> TrainConfig:
    """The settings to continue a checkpoint with: its own, with its folder as the run folder, and `changes` applied.

    Raises UserError if the checkpoint cannot be used, or if a resumed run cannot make a change.
    """
    earlier, (start, under_way) = _settings_and_place(checkpoint)
    changes = _with_own_names(earlier, layered(changes))
    for name in _changed(earlier, changes):
        remedy = _INSTEAD.get(name, "leave it out")
        raise UserError(
            f"The run in {checkpoint.parent} has {flag_of(name)} {written(earlier[name])}, which cannot change on "
            f"resume, but got {written(changes[name])}; {remedy}, or start a new run without --resume. Length, workers "
            "and learning settings may change: docs/guides/continue-and-use-runs.md lists every setting."
        )
    of_one_process = earlier.get("n_processes", 1) == 1 and earlier["normalize_update"] == "step"
    if of_one_process and changes.get("n_processes", 1) > 1:
        raise UserError(
            f"The run in {checkpoint.parent} was started with --normalize-update step, which needs one process; "
            "leave out --n-processes, or start a new run with several."
        )
    if "n_envs_schedule" in changes:
        known, given = earlier["n_envs_schedule"], changes["n_envs_schedule"]
        changes["n_envs_schedule"] = continued(known, given, start=start, under_way=under_way)
    return train_config(layered(earlier, changes))


def find_checkpoint(resume: str, given: Mapping[str, Any]) -> Path | None:
    """The checkpoint that --resume names: a file, or the latest of a run folder.

    "auto": the latest in the given `checkpoint_dir` or else in the newest run of the given task; None if there is none
    yet. Raises UserError if a path holds no checkpoint, or an unreadable one.
    """
    if resume == "auto":
        folder = given.get("checkpoint_dir")
        return next((path for path in _latest_checkpoints(folder) if folder or _is_same_task(path, given)), None)
    path = Path(resume).absolute()
    checkpoint = path / LATEST_CHECKPOINT if path.is_dir() else path
    if not checkpoint.is_file():
        raise UserError(
            f"There is no checkpoint at {checkpoint}; name a run folder or a .pt file, or use --resume auto."
        )
    return checkpoint


def newest_run_of(path: Path) -> tuple[Path, StartedWith]:
    """The folder of the newest run started with the content of a settings file, and how it was started.

    A run without a recorded file, such as one started from Python, must have exactly these settings. Raises UserError
    if there is no such run, or if a newer one cannot be read.
    """
    settings, file = read_settings_file(path)
    config = train_config(layered(settings))
    given = {name: value for group in ("run", "ppo", "trading") for name, value in vars(getattr(config, group)).items()}
    remedy = "To choose the run yourself, use `ml-pipeline evaluate RUN`."
    before: Path | None = None
    for checkpoint in _latest_checkpoints(config.run.checkpoint_dir, *runs_elsewhere(file)):
        started, folder = started_with(checkpoint.parent), checkpoint.parent
        if started is not None and started.file is not None:
            if started.file.is_same(file):
                return folder, started
            if before is None and started.file.path == file.path:
                before = folder
        elif not _different(_settings_among_runs(checkpoint, remedy), given):
            return folder, StartedWith()
    changed = "" if before is None else f" as it is now; {shown_path(before)} was started with it before it changed"
    raise UserError(
        f"No run was started with {path}{changed}; train one with `ml-pipeline train --config {path}`, or choose "
        "another with `ml-pipeline evaluate RUN`."
    )


def auto_notice(checkpoint: Path | None, given: Mapping[str, Any]) -> str:
    """The result of --resume auto, as a sentence."""
    if checkpoint is not None:
        return f"Resuming the run in {shown_path(checkpoint.parent)}."
    env_id, folder = given.get("env_id"), given.get("checkpoint_dir")
    whose = f" of {env_id}" if env_id else " of this market" if _market_settings(given) else ""
    return f"There is no run{whose} to resume in {shown_path(folder or runs_folder())}; starting a new one."


def _latest_checkpoints(folder: Path | None, *elsewhere: Path) -> list[Path]:
    """The latest.pt of one run folder, or of all in checkpoints/, and of `elsewhere`, newest first."""
    paths = [folder / LATEST_CHECKPOINT] if folder else runs_folder().glob(f"*/{LATEST_CHECKPOINT}")
    every = {path.absolute() for path in (*paths, *(each / LATEST_CHECKPOINT for each in elsewhere))}
    found = [path for path in every if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def _is_same_task(checkpoint: Path, given: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is of the given environment or market; True if none is given."""
    earlier = _settings_among_runs(checkpoint, "Name the run to resume instead of auto.")
    is_trading = given.get("env_id") is None
    if ("env_id" in given or _market_settings(given)) and earlier["env_id"] != given.get("env_id"):
        return False
    return not is_trading or all(earlier[name] == given[name] for name in _OF_MARKET if name in given)


def _market_settings(given: Mapping[str, Any]) -> list[str]:
    return [each.name for each in fields(TradingConfig) if each.name in given]


def _changed(earlier: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The given settings that a resumed run must keep but that differ from its own."""
    kept = {*earlier} & {*KEPT, *_market_settings(given)} & {*given}
    vec_env = {"vec_env": OWN_VEC_ENVS.get(str(given.get("vec_env")), given.get("vec_env"))}
    changed = {name for name in kept if earlier[name] != {**given, **vec_env}[name]}
    if NETWORK in changed and same_function(earlier[NETWORK], given[NETWORK]):  # it was passed again, or has moved
        changed.remove(NETWORK)
    return sorted(changed)


def _different(earlier: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The settings that differ, except the folder and `OF_LAUNCH`."""
    compared = {*earlier} & {*given} - {"checkpoint_dir", *OF_LAUNCH}
    return [name for name in compared if earlier[name] != given[name]]


def _with_own_names(earlier: Mapping[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes with algorithm_kwargs merged into those of the earlier run, under its names."""
    name = earlier["algorithm"]
    if name == OWN or changes.get("algorithm", name) != name or not changes.get("algorithm_kwargs"):
        return changes
    from ml_pipeline.runs.sb3.arguments import with_own_names  # needs Stable-Baselines3, an extra

    kwargs = {**earlier["algorithm_kwargs"], **changes["algorithm_kwargs"]}
    return with_own_names({**changes, "algorithm": name, "algorithm_kwargs": kwargs})


def _settings_among_runs(checkpoint: Path, remedy: str) -> dict[str, Any]:
    """`_settings_of_run` of a run found by search; a UserError adds `remedy`."""
    try:
        return _settings_of_run(checkpoint)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}. {remedy}") from error


def _settings_of_run(checkpoint: Path) -> dict[str, Any]:
    """The settings in a checkpoint, with its current folder as the run folder, even if it was moved.

    Does not read config.yaml, which is for people.
    """
    return _settings_and_place(checkpoint)[0]


def _settings_and_place(checkpoint: Path) -> tuple[dict[str, Any], tuple[int, bool]]:
    """The settings, and (the global step at which the next or current iteration begins, whether it has begun)."""
    # Imports torch, which only a resumed run needs.
    from ml_pipeline.runs.checkpoint import load_checkpoint, reading

    saved = load_checkpoint(checkpoint)
    with reading(checkpoint):
        settings = {**settings_in(saved, checkpoint), "checkpoint_dir": checkpoint.absolute().parent}
        collector = saved["trainer"].get("collector")
        if collector is None:
            return settings, (0, False)
        n_done = collector["buffer"]["position"] or 0  # steps of the current rollout
        start = collector["global_step"] - n_done * len(collector["episodes"]["returns"])
        return settings, (start, collector["buffer"].get("noise") is not None)  # drawn when a rollout begins
