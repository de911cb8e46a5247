"""Search spaces: the settings that a study searches and their ranges, by name, from a YAML file, or from a function.

A trial may choose settings of the trainer, of the policy's observations, and of its trading. Other settings belong to
the study, or would let a trial score higher without a better policy, so each is refused with a reason. A test checks
that every setting is either searchable or refused.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, get_type_hints

from optuna import Trial
from optuna.distributions import BaseDistribution
from optuna.exceptions import OptunaError

from ml_pipeline.config.conversion import convert
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.familiar_names import meant_setting
from ml_pipeline.config.files import read_mapping
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import OF_LAUNCH
from ml_pipeline.config.settings import groups_of, hints_of
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.user_code import call_user_code, import_by_name, load_user_file
from ml_pipeline.tuning.search.distribution import Distribution, read_distribution

SPACES: Mapping[str, Path] = {name: Path(__file__).with_name(f"{name}.yaml") for name in ("ppo", "trading")}
"""Files of the built-in spaces, by name."""
_EXTENDS = "extends"
_MOST_GRID_POINTS = 10_000
# Settings whose values depend on another setting, so they cannot be checked alone.
_NEED_OTHERS = frozenset(
    {
        *("learning_rate_schedule", "ent_coef_schedule", "normalize_advantages_over", "memory_size"),
        *("sequence_length", "sde_sample_freq", "network_kwargs"),
        *("frame_stack", "reward_kwargs", "algorithm", "algorithm_kwargs"),
    }
)


class Space(Protocol):
    """The search space of a study."""

    @property
    def name(self) -> str:
        """Its name in errors and tables."""
        ...

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """The settings of a trial, converted.

        Raises UserError if a user's function fails, and optuna.TrialPruned if the function raises it to mark the
        settings as impossible.
        """
        ...

    def described(self) -> dict[str, Any]:
        """The space as JSON; equal for equal spaces."""
        ...

    def distributions(self) -> Mapping[str, BaseDistribution] | None:
        """Optuna's parameters by name; None if a function decides on them trial by trial."""
        ...

    def grid(self) -> Mapping[str, Sequence[Any]]:
        """Every value of each of Optuna's parameters. Raises UserError if the space is infinite or too large."""
        ...


@dataclass(frozen=True)
class DeclaredSpace:
    """A space with a distribution for each of its settings."""

    name: str
    of: Sequence[Distribution]

    def suggest(self, trial: Trial) -> dict[str, Any]:
        return {each.name: each.suggest(trial) for each in self.of}

    def described(self) -> dict[str, Any]:
        """The distributions by setting. The file's name is left out, so that a copy of the file is the same space."""
        return {each.name: dict(each.shown) for each in sorted(self.of, key=lambda each: each.name)}

    def distributions(self) -> Mapping[str, BaseDistribution]:
        return {each.parameter: each.drawn for each in self.of}

    def grid(self) -> Mapping[str, Sequence[Any]]:
        points = {}
        for each in self.of:
            found = each.points()
            if found is None:
                raise UserError(
                    f"A grid has finitely many points, but {each.name} in the space {self.name} is a continuous "
                    "range; give it choices or a step, or use another sampler."
                )
            points[each.parameter] = found
        size = math.prod(map(len, points.values()))
        if size > _MOST_GRID_POINTS:
            raise UserError(
                f"The grid of the space {self.name} has {size:,} points, more than {_MOST_GRID_POINTS:,}; search fewer "
                "settings or choices, or use another sampler."
            )
        return points


@dataclass(frozen=True)
class FunctionSpace:
    """A space from a user's function, which takes numbers from the trial and returns settings by name."""

    name: str
    function: Callable[[Trial], Any]

    def suggest(self, trial: Trial) -> dict[str, Any]:
        returned = call_user_code(self.name, self._asked, trial)
        if isinstance(returned, OptunaError):
            raise returned
        if not isinstance(returned, Mapping):
            raise UserError(
                f"{self.name} must return settings by name, such as {{'gamma': 0.99}}, but returned "
                f"{in_one_line(repr(returned))}."
            )
        hints = hints_of(TrainConfig)
        settings = {}
        for key, value in returned.items():
            setting = searchable(key, source=self.name)
            written = list(value) if isinstance(value, tuple) else value
            settings[setting] = convert(written, hints[setting], name=f"{self.name}: {setting}")
        return settings

    def _asked(self, trial: Trial) -> Any:
        """The function's result, or an exception of Optuna's, such as a TrialPruned that it raised."""
        try:
            return self.function(trial)
        except OptunaError as error:
            return error

    def described(self) -> dict[str, Any]:
        """Its name without a folder, and the digest of its source: a changed function is another space."""
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):  # defined in a notebook, or a callable object
            source = ""
        _, _, called = self.name.replace("\\", "/").rpartition("/")
        return {"function": called, "sha256": hashlib.sha256(source.encode()).hexdigest()}

    def distributions(self) -> None:
        return None

    def grid(self) -> Mapping[str, Sequence[Any]]:
        raise UserError(
            f"A grid needs all its points beforehand, but the space {self.name} is a function, which decides trial by "
            "trial; write it as a YAML file, or use another sampler."
        )


def read_space(named: str | Path | Callable[[Trial], Any]) -> Space:
    """The space with this name ("ppo", "trading"), in this YAML file, or of a function.

    named: a name, a path, "module:function", "file.py:function", or the function itself, which takes an `optuna.Trial`
    and returns settings by name.
    Raises UserError if there is no such name, file or function, a line is not a distribution, or a setting is unknown
    or cannot be searched.
    """
    if callable(named):
        return FunctionSpace(f"{named.__module__}:{getattr(named, '__qualname__', type(named).__name__)}", named)
    text = str(named)
    if text in SPACES:
        return DeclaredSpace(text, _read_file(SPACES[text]))
    if Path(text).suffix in {".yaml", ".yml", ".json"}:
        return DeclaredSpace(Path(text).name, _read_file(Path(text)))
    if ":" in text:
        return FunctionSpace(text, _function(text))
    raise UserError(
        f'There is no search space "{text}". {nearest(text, SPACES)} Your own space can be a file such as space.yaml '
        "or a function such as space.py:suggest."
    )


def _function(named: str) -> Callable[[Trial], Any]:
    place, _, attribute = named.rpartition(":")
    found: Any = getattr(_module(place, attribute), attribute) if place.endswith(".py") else import_by_name(named)
    if not callable(found):
        raise UserError(f"{named} must be a function that takes an optuna.Trial, but is {in_one_line(repr(found))}.")
    return found


def _module(path: str, attribute: str) -> ModuleType:
    """The module of a Python file. Raises UserError if it cannot be read or run, or lacks the attribute."""
    module = load_user_file(Path(path))
    if not hasattr(module, attribute):
        own = [name for name in vars(module) if not name.startswith("_")]
        raise UserError(f'{path} has no "{attribute}". {nearest(attribute, own) if own else "It defines nothing."}')
    return module


def _read_file(path: Path) -> tuple[Distribution, ...]:
    """The distributions of a file and of the space that it extends, in their order."""
    source = path.stem if path in SPACES.values() else str(path)
    content = dict(read_mapping(path))
    found: dict[str, Distribution] = {}
    if _EXTENDS in content:
        base = content.pop(_EXTENDS)
        if not isinstance(base, str) or base not in SPACES:
            raise UserError(
                f'{source}: extends must name a space, but got "{in_one_line(base)}". {nearest(str(base), SPACES)}'
            )
        found = {each.name: each for each in _read_file(SPACES[base])}
    hints = hints_of(TrainConfig)
    named: set[str] = set()
    for key, value in content.items():
        setting = searchable(key, source=source)
        if setting in named:
            raise UserError(f"{source}: {setting} is set twice; keep one of the two.")
        named.add(setting)
        found[setting] = read_distribution(setting, value, hints[setting], where=f"{source}: {setting}")
        _check_edges(found[setting], source)
    if not found:
        raise UserError(f"{source} has no setting to search; write lines such as learning_rate: {{log: [1e-5, 1e-2]}}.")
    return tuple(found.values())


def _check_edges(distribution: Distribution, source: str) -> None:
    """Raise UserError if the setting never accepts one of the choices or an end of the range."""
    name = distribution.name
    if name in _NEED_OTHERS:
        return
    group = next(each for each in groups_of(TrainConfig).values() if name in get_type_hints(each))
    for value in distribution.edges():
        try:
            group(**{name: value})
        except UserError as error:
            raise UserError(f"{source}: {error}") from error


SEARCHABLE = frozenset(
    {
        *(field.name for field in fields(PPOConfig)),
        *("algorithm", "algorithm_kwargs", "frame_stack"),
        *("features", "window", "reward", "reward_scale", "reward_kwargs", "episode_length"),
        # How the policy trades, which is the same in the test split and live.
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
    "all trials start from it; give it on the command line": ("init_from",),
    "it is your own code; give it on the command line": ("callback",),
    "it is your own judgement of a feature; give it on the command line": ("accept_feature",),
    "trials would find a lucky seed: judge each by several, with --seeds-per-trial": ("seed",),
    "all trials have the same budget: longer training would win": (
        *("total_timesteps", "iterations", "stop_at_return", "stop_on_plateau"),
    ),
    "it decides how many trials fit on the machine; give it on the command line": ("n_envs", "n_envs_schedule"),
    "it is about the machine or the files, and not about what is learned; give it on the command line": (
        *("vec_env", "n_workers", "parallel_start_method", "step_timeout_s", "on_worker_failure", "device"),
        *("checkpoint_dir", "checkpoint_interval", "tensorboard", "tensorboard_dir", "wandb", "sink"),
        *sorted(OF_LAUNCH),
    ),
}
REFUSED: Mapping[str, str] = {name: reason for reason, names in _REASONS.items() for name in names}
"""The reason why a setting cannot be searched, by its name."""


def searchable(name: object, *, source: str) -> str:
    """The setting `name` of a search space, with dashes or underscores. source: the start of error messages.

    Raises UserError if the name is unknown, with the nearest one, or if it cannot be searched, with the reason.
    """
    setting = str(name).replace("-", "_")
    if setting not in hints_of(TrainConfig):
        meant = meant_setting(setting, SEARCHABLE)
        raise UserError(f'{source}: unknown setting "{in_one_line(name)}". {meant}')
    if setting not in SEARCHABLE:
        reason = REFUSED.get(setting, "it is not a setting of the trainer")
        raise UserError(f"{source}: {setting} cannot be searched: {reason}.")
    return setting
