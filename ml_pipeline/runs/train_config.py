"""The settings of a training run as one class, and reading them from files."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.config.files import convert_settings, read_mapping
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.sections import AGENT_SECTIONS, add, flatten_sections, is_sectioned
from ml_pipeline.config.settings import build, hints_of
from ml_pipeline.runs.vectorized_section import read_vectorized, with_number, without_vectorized_training
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.trading.sections import TRADING_SECTIONS
from ml_pipeline.trading.settings import TradingConfig

SECTIONS = {**AGENT_SECTIONS, **TRADING_SECTIONS, "vectorized": read_vectorized}
USUAL_WITH_RANKS = {"normalize_update": "rollout"}
"""Defaults that differ for several processes."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Every setting of a training run. Raises UserError if they do not fit together."""

    USUAL: ClassVar[Mapping[str, Collection[str]]] = {
        "start": ("config", "resume", "seeds"),
        "run": ("env_id", "n_envs", "n_workers", "iterations", "total_timesteps", "seed", "checkpoint_dir"),
        "ppo": ("n_steps", "minibatch_size", "learning_rate", "gamma", "ent_coef", "hidden_sizes"),
        "trading": ("data", "features", "fee_bps", "reward"),
    }
    """The settings of each group that people change most: what --help lists, and --help-all the rest."""

    run: RunConfig = field(default_factory=RunConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    trading: TradingConfig = field(default_factory=TradingConfig)

    def __post_init__(self) -> None:
        if self.run.algorithm == OWN:
            self._check_batches()
            self._check_processes()
            return
        from ml_pipeline.runs.sb3.arguments import check_arguments  # needs Stable-Baselines3, an extra

        if self.run.n_envs_schedule:
            raise UserError(
                f"n_envs_schedule is for {OWN}, but algorithm is {self.run.algorithm}, which keeps the "
                "number of environments it starts with; use one of them."
            )
        check_arguments(self.run, self.ppo)

    def _check_batches(self) -> None:
        self.ppo.check_batch(self.run.n_envs)
        for step, n_envs in self.run.n_envs_schedule.items():
            try:
                self.ppo.check_change(n_envs)
            except UserError as error:
                raise UserError(f"n_envs_schedule from step {step} on: {error}") from None

    def _check_processes(self) -> None:
        if self.run.n_processes > 1 and self.ppo.normalize_obs and self.ppo.normalize_update == "step":
            raise UserError(
                "Several processes update observation statistics once per rollout, but n_processes is "
                f'{self.run.n_processes} and normalize_update "step"; set normalize_update to rollout, or switch '
                "normalize_obs off."
            )

    @property
    def timesteps(self) -> int:
        """Length of training over all environments; the trainer rounds it up to whole iterations."""
        return self.run.timesteps(self.ppo.n_steps)


def read_train_settings(path: Path) -> dict[str, Any]:
    """The converted settings in a file, flat or in sections; other settings are absent.

    Raises UserError if the file cannot be read, a name is unknown or repeated, or a type is wrong.
    """
    return train_settings_of(read_mapping(path), path)


def train_settings_of(content: Mapping[Any, Any], source: Path, *, count_envs: bool = True) -> dict[str, Any]:
    """The converted settings in a mapping, flat or in sections. source: its name in errors.

    count_envs: if the number of environments is null, use `one_per_core`; False leaves it out.
    Raises UserError like `read_train_settings`.
    """
    known = {*SECTIONS, *hints_of(TrainConfig)}
    for key, value in content.items():  # a mapping must be a section
        is_unknown = isinstance(value, Mapping) and str(key).replace("-", "_") not in known
        if is_unknown and (meant := did_you_mean(str(key), SECTIONS)):
            raise UserError(f'{source}: unknown setting "{key}".{meant}')
    content, vectorized = without_vectorized_training(content, source)
    flat = flatten_sections(content, SECTIONS, source) if is_sectioned(content, SECTIONS) else dict(content)
    add(flat, vectorized, source)
    flat = with_number(flat, content.get("vectorized"), source, count_envs=count_envs)
    return convert_settings(flat, TrainConfig, source=source)


def train_config(settings: Mapping[str, Any]) -> TrainConfig:
    """The given settings, `layered`, with the defaults of their algorithm for the rest.

    In `TrainConfig(run=..., ppo=...)`, by contrast, every value of PPOConfig counts as given, even its defaults.
    Raises UserError if a value is out of range, or the algorithm's package is not installed.
    """
    settings = layered(settings)
    if settings.get("n_processes", 1) > 1:
        settings = layered(USUAL_WITH_RANKS, settings)
    if settings.get("algorithm", OWN) != OWN:
        from ml_pipeline.runs.sb3.arguments import completed

        settings = completed(settings)
    if settings.get("vec_env") == "SubprocVecEnv" and settings.get("n_workers", "auto") == "auto":
        n_workers = min(settings.get("n_envs", RunConfig.n_envs), max(1, int(usable_cores())))
        settings = layered(settings, {"n_workers": n_workers})
    return build(TrainConfig, settings)


def settings_in(saved: Mapping[str, Any], checkpoint: Path) -> dict[str, Any]:
    """The settings in a loaded checkpoint, by name. Raises UserError if this version lacks one of them."""
    return convert_settings(saved["config"], TrainConfig, source=checkpoint)


def layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings; later layers win, and one length of training replaces the other. Paths become absolute, and
    `init_from` is resolved to the currently deployed version of a model."""
    settings: dict[str, Any] = {}
    for layer in layers:
        settings.update(layer)
        for length, other in (("iterations", "total_timesteps"), ("total_timesteps", "iterations")):
            if layer.get(length) is not None and layer.get(other) is None:
                settings[other] = None
    lasting = {name: value.absolute() if isinstance(value, Path) else value for name, value in settings.items()}
    if isinstance(initial := lasting.get("init_from"), Path):
        lasting["init_from"] = Path(os.path.realpath(initial))
    return lasting
