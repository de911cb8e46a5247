"""The algorithms of `RunConfig.algorithm`: PPO is implemented here, the others come from Stable-Baselines3."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ml_pipeline.config.errors import UserError, install_extra

Algorithm = Literal["PPO", "A2C", "DDPG", "DQN", "QRDQN", "SAC", "TD3", "TQC", "TRPO"]
OWN: Algorithm = "PPO"

_ANY = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


@dataclass(frozen=True, kw_only=True)
class AlgorithmTraits:
    """Properties of an algorithm, known without importing it.

    actions: the action spaces that it supports. hidden_sizes, activation: defaults of its networks. package: the
    package that implements it.
    """

    actions: tuple[str, ...]
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "relu"
    package: Literal["ml_pipeline", "stable_baselines3", "sb3_contrib"] = "stable_baselines3"

    @property
    def install_command(self) -> str:
        """The command that installs the package."""
        return "pip install sb3-contrib" if self.package == "sb3_contrib" else install_extra("sb3")


# The defaults of the networks are those of the policies in Stable-Baselines3 2.9 and sb3-contrib 2.7.
ALGORITHMS: Mapping[str, AlgorithmTraits] = {
    "PPO": AlgorithmTraits(actions=(*_ANY, "Dict", "Tuple"), activation="tanh", package="ml_pipeline"),
    "A2C": AlgorithmTraits(actions=_ANY, activation="tanh"),
    "DDPG": AlgorithmTraits(actions=("Box",), hidden_sizes=(400, 300)),
    "DQN": AlgorithmTraits(actions=("Discrete",)),
    "QRDQN": AlgorithmTraits(actions=("Discrete",), package="sb3_contrib"),
    "SAC": AlgorithmTraits(actions=("Box",), hidden_sizes=(256, 256)),
    "TD3": AlgorithmTraits(actions=("Box",), hidden_sizes=(400, 300)),
    "TQC": AlgorithmTraits(actions=("Box",), hidden_sizes=(256, 256), package="sb3_contrib"),
    "TRPO": AlgorithmTraits(actions=_ANY, activation="tanh", package="sb3_contrib"),
}


def check_actions(algorithm: str, kind: str, shown: str) -> None:
    """Raise UserError, with suitable algorithms, if this one does not support the kind of action space.

    shown: the action space in words, for the message.
    """
    taken = ALGORITHMS[algorithm].actions
    if kind in taken:
        return
    *others, last = algorithms_for(kind) or [OWN]
    fitting = f"{', '.join(others)} or {last}" if others else last
    raise UserError(
        f"{algorithm} supports action spaces of the kind {' or '.join(taken)}, but the environment has {shown}; "
        f"use {fitting}."
    )


def algorithms_for(kind: str) -> list[str]:
    """The algorithms that support this kind of action space, in alphabetical order.

    >>> algorithms_for("Discrete")
    ['A2C', 'DQN', 'PPO', 'QRDQN', 'TRPO']
    """
    return sorted(name for name, traits in ALGORITHMS.items() if kind in traits.actions)
