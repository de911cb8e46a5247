"""Settings files in sections: conversion of sections to flat settings, and the sections of an agent.

`agent_config` has `algo`, `total_timesteps` and `kwargs`, the algorithm's arguments in Stable-Baselines3. `training`
has all of these and our own names. Keys without effect on results, such as a description, are ignored; a key that would
change results but has no counterpart here is an error. For algorithms other than PPO, arguments that are not settings
here become `algorithm_kwargs`.
"""

import difflib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ml_pipeline.config.algorithms import ALGORITHMS, OWN
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.familiar_names import familiar_name, meant_setting
from ml_pipeline.config.policy_kwargs import policy_settings

Flat = dict[str, Any]
Reader = Callable[[Any, Path], Flat]
"""Converts a value, and the file that contains it, to flat settings."""

# Keys that change no result: names, places to save to, and how much is printed.
_WITHOUT_EFFECT = frozenset(
    {"name", "description", "version", "out_dir", "save_path", "deterministic", "backtest_config"}
)
_WITHOUT_EFFECT_IN_KWARGS = frozenset({"verbose", "stats_window_size", "tensorboard_log"})

_POLICIES = (
    "MlpPolicy",
    "CnnPolicy",
    "MultiInputPolicy",
    "MlpLstmPolicy",
)  # a tuple: a list has no hash


def is_sectioned(content: Mapping[Any, Any], sections: Mapping[str, Reader]) -> bool:
    """Whether a file has at least one of these sections."""
    return any(key in sections for key in content)


def flatten_sections(content: Mapping[Any, Any], sections: Mapping[str, Reader], source: Path) -> Flat:
    """Convert a file in sections to flat settings. Flat settings next to the sections are kept.

    Raises UserError if a key is unknown in its section, has no counterpart here, or is set to two values.
    """
    flat: Flat = {}
    if _names_another(content):
        sections = {
            **sections,
            "kwargs": _kwargs_of_another,
            "policy_kwargs": lambda value, source: _kwargs_of_another({"policy_kwargs": value}, source),
            "training": _training_of_another,
        }
    for key, value in content.items():
        if key not in _WITHOUT_EFFECT:
            add(flat, sections[key](value, source) if key in sections else {str(key): value}, source)
    return flat


def part_of_whole(
    whole: Mapping[Any, Any] | str | Path, sections: Mapping[str, Reader], hints: Mapping[str, Any]
) -> Flat:
    """The settings of these sections in a whole configuration or its file, converted to the types in `hints`.

    Settings of training are left out; unknown names are kept, so the caller can reject them.
    """
    from ml_pipeline.config.conversion import convert
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.config.run import RunConfig

    content, source = _content("cfg", str(whole) if isinstance(whole, Path) else whole, Path("cfg"))
    of_training = {*AGENT_SECTIONS, "vectorized"}
    of_training |= {each.name for kind in (RunConfig, PPOConfig) for each in fields(kind)}
    flat = flatten_sections({key: value for key, value in content.items() if key not in of_training}, sections, source)
    for name in flat.keys() & hints.keys():
        if isinstance(flat[name], list | str):  # unconverted, from a file
            flat[name] = convert(flat[name], hints[name], name=f"{source}: {name}")
    return flat


def section(name: str, readers: Mapping[str, Reader], ignored: frozenset[str] = frozenset()) -> Reader:
    """A reader for the section of this name, with a reader for each of its keys."""

    def read(value: Any, source: Path) -> Flat:
        value, source = _content(name, value, source)
        flat: Flat = {}
        for key, inner in value.items():
            if key in ignored or key in _WITHOUT_EFFECT:
                continue
            if key not in readers:
                raise UserError(f'{source}: unknown setting "{key}" in {name}. {meant_setting(str(key), readers)}')
            add(flat, readers[key](inner, source), source)
        return flat

    return read


def _content(name: str, value: Any, source: Path) -> tuple[Mapping[Any, Any], Path]:
    """The content of a section, and its file: another file if the section is a file name."""
    if isinstance(value, str):
        from ml_pipeline.config.files import read_mapping  # which takes YAML

        source = source.parent / value
        value = read_mapping(source)
    if not isinstance(value, Mapping):
        raise UserError(f"{source}: {name} must be a section of settings, but got {value!r}.")
    return value, source


def add(flat: Flat, more: Flat, source: Path) -> None:
    """Add settings to `flat`. Raises UserError if `flat` has one of them with another value."""
    for name, value in more.items():
        if name in flat and not same_value(flat[name], value):
            raise UserError(f"{source}: {name} is set twice; keep one of the two.")
        flat[name] = value


def same_value(one: Any, other: Any) -> bool:
    """Whether two values of a setting are equal; tuples and arrays count as lists, and paths as strings.

    Values that cannot be compared are different.

    >>> same_value(["EURUSD"], ("EURUSD",)), same_value(Path("data"), "data"), same_value(1, True)
    (True, True, False)
    """
    one, other = (str(each) if isinstance(each, Path) else each for each in (one, other))
    one, other = (each.tolist() if hasattr(each, "tolist") else each for each in (one, other))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    try:
        equal = one == other
    except Exception:  # of a user's object, or of arrays in a dict
        return False
    return isinstance(one, bool) == isinstance(other, bool) and equal is True


def same(name: str) -> Reader:
    """The key is the setting `name`."""
    return lambda value, source: {name: value}


def only(name: str, *allowed: Any) -> Reader:
    """A reader for a key whose only allowed values are those that match the behaviour of this program."""

    def read(value: Any, source: Path) -> Flat:
        if value not in allowed:
            expected = " or ".join(map(str, allowed))
            raise UserError(f"{source}: {name} must be {expected}, as nothing else is supported, but got {value}.")
        return {}

    return read


def _algorithm(value: Any, source: Path) -> Flat:
    name = str(value).upper()
    if name not in ALGORITHMS:
        raise UserError(f'{source}: there is no algo "{value}". {nearest(name, ALGORITHMS)}')
    return {} if name == OWN else {"algorithm": name}


def _is_another(algo: Any) -> bool:
    """Whether `algo` is an algorithm of Stable-Baselines3."""
    return algo is not None and str(algo).upper() in {*ALGORITHMS} - {OWN}


def _names_another(content: Mapping[Any, Any]) -> bool:
    """Whether a file chooses an algorithm of Stable-Baselines3, at the top level or in agent_config."""
    agent = content.get("agent_config")
    inner = agent.get("algo") if isinstance(agent, Mapping) else None
    return any(_is_another(algo) for algo in (content.get("algo"), content.get("algorithm"), inner))


def _tensorboard(value: Any, source: Path) -> Flat:
    """The folder of event files; true means logs/tensorboard; false and none mean no event files."""
    if value is None or value is False:
        return {}
    return {"tensorboard_dir": "logs/tensorboard" if value is True else value}


def _policy(value: Any, source: Path) -> Flat:
    if value not in _POLICIES:
        *others, last = (f'"{name}"' for name in _POLICIES)
        raise UserError(f"{source}: policy must be {', '.join(others)} or {last}, but got {value}.")
    return {"memory": "lstm"} if value == "MlpLstmPolicy" else {}


def _learning_rate(value: Any, source: Path) -> Flat:
    """A number, or {"type": "linear", "initial_value": 3e-4}."""
    if not isinstance(value, Mapping):
        return {"learning_rate": value}
    if set(value) != {"type", "initial_value"}:
        raise UserError(f"{source}: learning_rate must be a number, or have type and initial_value, but got {value}.")
    return {"learning_rate": value["initial_value"], "learning_rate_schedule": value["type"]}


def _policy_kwargs(value: Any, source: Path) -> Flat:
    content, source = _content("policy_kwargs", value, source)
    return policy_settings(content, str(source))


_AGENT_KWARGS: dict[str, Reader] = {
    **{
        name: same(name)
        for name in (
            "n_steps", "n_epochs", "gamma", "gae_lambda", "clip_range", "clip_range_vf", "ent_coef", "vf_coef",
            "max_grad_norm", "target_kl", "use_sde", "sde_sample_freq", "seed", "device",
        )
    },
    "policy": _policy,
    "learning_rate": _learning_rate,
    "batch_size": same("minibatch_size"),
    "normalize_advantage": same("normalize_advantages"),
    "policy_kwargs": _policy_kwargs,
    "rollout_buffer_class": only("rollout_buffer_class", None),
    "rollout_buffer_kwargs": only("rollout_buffer_kwargs", None, {}),
}  # fmt: skip
_OWN_IN_TRAINING: dict[str, Reader] = {
    **{
        name: same(name)
        for name in (
            "total_timesteps", "iterations", "minibatch_size", "learning_rate_schedule", "clip_range_schedule",
            "hidden_sizes", "value_hidden_sizes", "activation", "normalize_advantages", "normalize_obs",
            "clip_obs", "normalize_rewards", "normalize_values", "ortho_init", "log_std_init", "squash_actions",
            "share_layers", "share_encoder", "network", "network_kwargs", "memory", "memory_size", "sequence_length",
            "init_from", "checkpoint_dir", "checkpoint_interval", "eval_interval", "eval_episodes", "stop_at_return",
            "stop_on_plateau", "n_envs", "algorithm_kwargs",
        )
    },
    "share_network": same("share_encoder"),
    "log_interval": lambda value, source: {},  # every iteration is written; see `LOGGING_KEYS`
    "tensorboard_log": _tensorboard,
}  # fmt: skip
_TRAINING: dict[str, Reader] = {**_AGENT_KWARGS, **_OWN_IN_TRAINING}
LOGGING_KEYS = ("log_file", "log_interval", "monitor_path")
"""Of the sections `logging` and `monitoring`, which a `TrainerAgent` follows and which change no result."""
_LOGGING: dict[str, Reader] = {
    **dict.fromkeys(LOGGING_KEYS, lambda value, source: {}),
    "tensorboard": _tensorboard,
    "tensorboard_log": _tensorboard,
}
# Settings of every algorithm; all other keys are arguments of the chosen algorithm.
_OF_ANY = ("learning_rate", "gamma", "batch_size", "seed", "device")
# In `training` these are settings whatever the algorithm: n_steps is how long an iteration is.
_OF_ANY_IN_TRAINING: dict[str, Reader] = {**_OWN_IN_TRAINING, "n_steps": _AGENT_KWARGS["n_steps"]}
_SLIP = 0.9  # similarity of a typing error; learning_starts and learning_rate are less similar


def _kwargs_of_another(value: Any, source: Path) -> Flat:
    """The arguments of an algorithm other than PPO."""
    content, source = _content("kwargs", value, source)
    flat: Flat = {}
    own: dict[str, Any] = {}
    for key, inner in content.items():
        if key in _WITHOUT_EFFECT_IN_KWARGS or key in _WITHOUT_EFFECT:
            continue
        if key == "policy":
            _policy(inner, source)  # only checked: the observations determine the network
        elif key in _OF_ANY:
            add(flat, _AGENT_KWARGS[key](inner, source), source)
        elif key == "policy_kwargs" and isinstance(inner, Mapping) and set(inner) <= {"net_arch", "activation_fn"}:
            add(flat, policy_settings(inner, str(source)), source)
        else:
            own[str(key)] = _number_in(inner)
    return {**flat, "algorithm_kwargs": own} if own else flat


def _training_of_another(value: Any, source: Path) -> Flat:
    """The section `training` for other algorithms than PPO: keys that are not settings become their arguments."""
    content, source = _content("training", value, source)
    settings = {key: inner for key, inner in content.items() if key in _OF_ANY_IN_TRAINING}
    others = {key: inner for key, inner in content.items() if key not in settings}
    for key in others.keys() - _AGENT_KWARGS.keys():
        if meant := _setting_meant(str(key), [*_OF_ANY_IN_TRAINING, *_OF_ANY]):
            raise UserError(f'{source}: unknown setting "{key}" in training.{meant}')
    flat, more = section("training", _OF_ANY_IN_TRAINING)(settings, source), _kwargs_of_another(others, source)
    kwargs = flat.get("algorithm_kwargs")
    if isinstance(kwargs, Mapping) and "algorithm_kwargs" in more:
        arguments = dict(kwargs)
        add(arguments, more.pop("algorithm_kwargs"), source)
        flat["algorithm_kwargs"] = arguments
    add(flat, more, source)
    return flat


def _setting_meant(key: str, settings: Collection[str]) -> str:
    """The question "Did you mean ...?" if a key is misspelled or another library's name for a setting; else empty."""
    shown = {each: each for each in settings if each != "algorithm_kwargs"}  # arguments belong there anyway
    close = difflib.get_close_matches(key, shown, n=1, cutoff=_SLIP)
    return familiar_name(key, shown) or (f' Did you mean "{close[0]}"?' if close else "")


def _number_in(value: Any) -> Any:
    """Convert a string to a number if it is one: YAML reads 1e6 and 5e-3 as strings."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return value
    if not math.isfinite(number):
        return value
    return int(number) if number.is_integer() else number


def _agent(value: Any, source: Path) -> Flat:
    content, inner_source = _content("agent_config", value, source)
    kwargs = _kwargs_of_another if _is_another(content.get("algo")) else _AGENT["kwargs"]
    return section("agent_config", {**_AGENT, "kwargs": kwargs})(content, inner_source)


_AGENT: dict[str, Reader] = {
    "algo": _algorithm,
    "total_timesteps": same("total_timesteps"),
    "kwargs": section("kwargs", _AGENT_KWARGS, ignored=_WITHOUT_EFFECT_IN_KWARGS),
}
AGENT_SECTIONS: dict[str, Reader] = {
    "algo": _AGENT["algo"],
    "algorithm": _algorithm,
    "kwargs": _AGENT["kwargs"],
    "policy_kwargs": _policy_kwargs,
    "agent_config": _agent,
    "training": section("training", _TRAINING, ignored=_WITHOUT_EFFECT_IN_KWARGS - {*_TRAINING}),
    "logging": section("logging", _LOGGING),
    "monitoring": section("monitoring", _LOGGING),
}
