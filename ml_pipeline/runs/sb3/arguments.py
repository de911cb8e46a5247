"""Turns the settings of a run into the arguments of a Stable-Baselines3 algorithm, and refuses invalid ones.

Settings that mean the same in both keep our name; `completed` fills those that are unset with the algorithm's own
default, so that a run without settings behaves like Stable-Baselines3 alone. All other arguments are
`algorithm_kwargs`, by the names of the constructor.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from numbers import Integral, Real
from typing import Any

from ml_pipeline.config.algorithms import ALGORITHMS, OWN, AlgorithmTraits
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import SCHEDULED
from ml_pipeline.config.wording import written

# Settings of `PPOConfig` and the argument that means the same, if the constructor has it with a numeric default.
SAME: Mapping[str, str] = {
    "learning_rate": "learning_rate",
    "minibatch_size": "batch_size",
    "n_epochs": "n_epochs",
    "gamma": "gamma",
    "gae_lambda": "gae_lambda",
    "ent_coef": "ent_coef",
    "vf_coef": "vf_coef",
    "max_grad_norm": "max_grad_norm",
    "normalize_advantages": "normalize_advantage",
}
# Settings that apply to every algorithm and are not constructor arguments.
_FOR_ALL = frozenset(
    {
        "n_steps",
        "hidden_sizes",
        "activation",
        "learning_rate_schedule",
        "normalize_obs",
        "clip_obs",
        "normalize_rewards",
    }
)
_SCHEDULES = ("constant", "linear", "cosine")
# Arguments that the run sets itself, and what to do instead.
_RESERVED = {
    "policy": "it follows from the observations",
    "env": "set env_id, or leave it out for trading",
    "seed": "set seed",
    "device": "set device",
    "verbose": "the run prints its progress",
    "tensorboard_log": "the run writes its own metrics",
    "_init_setup_model": "leave it out",
    "replay_buffer_class": "settings cannot name a class",
    "rollout_buffer_class": "settings cannot name a class",
}
_NO_COUNTS = frozenset({"max_grad_norm"})  # their default happens to be whole
_LOWEST = {"gradient_steps": -1}  # -1: as many as steps taken
_POLICY_KWARGS = "policy_kwargs"
_ROLLOUT = "n_steps"  # of on-policy algorithms; in the others, the horizon of their targets


def algorithm_class(name: str) -> Any:
    """The class of an algorithm. Raises UserError if its package is not installed."""
    traits = ALGORITHMS[name]
    try:
        return getattr(import_module(traits.package), name)
    except ImportError as error:
        raise UserError(
            f"{name} is an algorithm of {traits.package}, which is not installed; "
            f"{traits.install_command}, or train with {OWN}."
        ) from error


def is_on_policy(algorithm: Any) -> bool:
    """True if it learns from whole rollouts and then discards them, like A2C."""
    return "gae_lambda" in _parameters(algorithm)


def with_own_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings of an algorithm other than PPO; arguments in algorithm_kwargs that have a setting are moved to it.

    Raises UserError if the algorithm is not installed, or an argument is given twice.
    """
    shared = _shared(algorithm_class(settings["algorithm"]))
    given, kwargs = dict(settings), dict(settings.get("algorithm_kwargs") or {})
    for ours, theirs in shared.items():
        if theirs in kwargs:
            if ours in given and given[ours] != kwargs[theirs]:
                raise UserError(
                    f"{ours} is {given[ours]}, but algorithm_kwargs has {theirs} {kwargs[theirs]}; keep one."
                )
            given[ours] = kwargs.pop(theirs)
    return {**given, "algorithm_kwargs": kwargs}


def completed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings, with unset ones at the default of their algorithm, which is not PPO.

    Also applies `with_own_names`, and raises its errors.
    """
    name = settings["algorithm"]
    if name not in ALGORITHMS:  # RunConfig refuses it
        return dict(settings)
    algorithm, given = algorithm_class(name), with_own_names(settings)
    if is_on_policy(algorithm):
        rollout = given.get("n_steps", _parameters(algorithm)[_ROLLOUT].default)
        rollout = given["algorithm_kwargs"].setdefault(_ROLLOUT, rollout)
        if isinstance(rollout, int):
            given.setdefault("n_steps", max(rollout, PPOConfig.n_steps))
    return {**_defaults(name, algorithm), **given}


def check_arguments(run: RunConfig, ppo: PPOConfig) -> None:
    """Raise UserError if the algorithm of `run`, not PPO, lacks one of the settings or arguments."""
    algorithm = algorithm_class(run.algorithm)
    shared = _shared(algorithm)
    parameters = _parameters(algorithm)
    usual = PPOConfig()
    for each in fields(PPOConfig):
        value = getattr(ppo, each.name)
        if each.name not in {*shared, *_FOR_ALL} and value != getattr(usual, each.name):
            has = each.name in parameters
            remedy = (
                f"set its own in algorithm_kwargs, such as '{{\"{each.name}\": {written(value)}}}'"
                if has
                else "leave it out"
            )
            raise UserError(f"{each.name} is a setting of PPO that {run.algorithm} does not have; {remedy}.")
    for name in SCHEDULED:
        if callable(getattr(ppo, name)):
            raise UserError(f"{name} is a function, which is for PPO; with {run.algorithm} use a number.")
    if ppo.learning_rate_schedule not in _SCHEDULES:
        raise UserError(
            f"learning_rate_schedule {ppo.learning_rate_schedule} is for PPO; with {run.algorithm} use one of "
            f"{', '.join(_SCHEDULES)}."
        )
    if run.vec_env == "batched":
        raise UserError(f'vec_env "batched" is for PPO; with {run.algorithm} use "parallel" or "serial".')
    for name, value in run.algorithm_kwargs.items():
        _check_argument(run.algorithm, name, value, parameters, {theirs: ours for ours, theirs in shared.items()})
    _check_policy_kwargs(run, ppo, algorithm)


def constructor_arguments(run: RunConfig, ppo: PPOConfig) -> dict[str, Any]:
    """Constructor arguments except policy, environments, seed and device. The settings are checked before."""
    algorithm = algorithm_class(run.algorithm)
    shared = {theirs: getattr(ppo, ours) for ours, theirs in _shared(algorithm).items()}
    arguments = {**shared, **run.algorithm_kwargs}
    arguments["learning_rate"] = _schedule(ppo)
    if isinstance(arguments.get("train_freq"), list):
        arguments["train_freq"] = tuple(arguments["train_freq"])
    policy_kwargs = dict(arguments.get(_POLICY_KWARGS) or {})
    traits = ALGORITHMS[run.algorithm]
    # Only differences: image networks have other defaults.
    if ppo.hidden_sizes != traits.hidden_sizes:
        policy_kwargs["net_arch"] = list(ppo.hidden_sizes)
    activation = policy_kwargs.get("activation_fn", ppo.activation if ppo.activation != traits.activation else None)
    if activation is not None:
        policy_kwargs["activation_fn"] = _ACTIVATIONS[activation]()
    if policy_kwargs:
        arguments[_POLICY_KWARGS] = policy_kwargs
    return arguments


def _torch(name: str) -> Callable[[], Any]:
    return lambda: getattr(import_module("torch.nn"), name)


_ACTIVATIONS = {
    "tanh": _torch("Tanh"),
    "relu": _torch("ReLU"),
    "elu": _torch("ELU"),
    "gelu": _torch("GELU"),
    "silu": _torch("SiLU"),
    "leaky_relu": _torch("LeakyReLU"),
}


def _schedule(ppo: PPOConfig) -> Any:
    """The learning rate, or a function of the remaining share of training, from 1 to 0."""
    rate: Any = ppo.learning_rate  # a number, as checked before
    if ppo.learning_rate_schedule == "linear":
        return lambda left: rate * left
    if ppo.learning_rate_schedule == "cosine":
        return lambda left: rate * 0.5 * (1.0 + math.cos(math.pi * (1.0 - left)))
    return rate


def _parameters(algorithm: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(algorithm.__init__).parameters


def _shared(algorithm: Any) -> dict[str, str]:
    """The settings that are also constructor arguments: our name to theirs."""
    parameters = _parameters(algorithm)
    return {
        ours: theirs
        for ours, theirs in SAME.items()
        if theirs in parameters and isinstance(parameters[theirs].default, Real)  # SAC's ent_coef is "auto"
    }


def _defaults(name: str, algorithm: Any) -> dict[str, Any]:
    parameters, usual = _parameters(algorithm), PPOConfig()
    traits: AlgorithmTraits = ALGORITHMS[name]
    shared = {
        ours: type(getattr(usual, ours))(parameters[theirs].default) for ours, theirs in _shared(algorithm).items()
    }
    return {
        **shared,
        "hidden_sizes": traits.hidden_sizes,
        "activation": traits.activation,
        "normalize_obs": False,
        "normalize_rewards": False,
    }


def _check_argument(
    algorithm: str, name: str, value: Any, parameters: Mapping[str, inspect.Parameter], shared: Mapping[str, str]
) -> None:
    if name in _RESERVED:
        raise UserError(f"algorithm_kwargs has {name}, which the run sets itself; {_RESERVED[name]}.")
    if name in shared:
        raise UserError(f"algorithm_kwargs has {name}, which has a setting of its own; set {shared[name]} to {value}.")
    if name not in parameters:
        known = {*parameters} - {"self", *_RESERVED, *shared}
        raise UserError(f'algorithm_kwargs: {algorithm} has no argument "{name}". {nearest(name, known)}')
    default = parameters[name].default
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if name == "action_noise":
        expected, fits = "a standard deviation such as 0.1", value is None or (is_number and value >= 0)
    elif name == "train_freq":
        pair = (
            isinstance(value, list)
            and len(value) == 2
            and isinstance(value[0], int)
            and value[1] in ("step", "episode")
        )
        expected, fits = 'a whole number or like [1, "episode"]', pair or (isinstance(value, Integral) and is_number)
    elif isinstance(default, bool):
        expected, fits = "true or false", isinstance(value, bool)
    elif isinstance(default, int) and name not in _NO_COUNTS:
        lowest = min(0, default, _LOWEST.get(name, 0))
        fits = isinstance(value, int) and is_number and value >= lowest
        expected = f"a whole number of at least {lowest}"
    elif isinstance(default, Real):
        expected, fits = "a number", is_number
    else:
        return
    if not fits:
        raise UserError(f"algorithm_kwargs: {name} of {algorithm} must be {expected}, but got {value!r}.")


def _check_policy_kwargs(run: RunConfig, ppo: PPOConfig, algorithm: Any) -> None:
    given = run.algorithm_kwargs.get(_POLICY_KWARGS)
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise UserError(f"algorithm_kwargs: policy_kwargs must be a mapping, but got {given!r}.")
    known = {*inspect.signature(algorithm.policy_aliases["MlpPolicy"].__init__).parameters} - {"self"}
    for name in given:
        if name not in known:
            raise UserError(
                f'algorithm_kwargs: the policy of {run.algorithm} has no argument "{name}". {nearest(str(name), known)}'
            )
    activation = given.get("activation_fn")
    if activation is not None and activation not in _ACTIVATIONS:
        raise UserError(
            f"algorithm_kwargs: activation_fn must be one of {', '.join(_ACTIVATIONS)}, but got {activation!r}."
        )
    if "net_arch" in given and ppo.hidden_sizes != ALGORITHMS[run.algorithm].hidden_sizes:
        raise UserError(
            "Layers are given twice, as hidden_sizes and as net_arch in policy_kwargs; keep one of the two."
        )
