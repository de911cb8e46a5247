"""The algorithms that `RunConfig.algorithm` names: PPO is this package's own, the others are Stable-Baselines3's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ml_pipeline.config.errors import UserError, install_extra

Algorithm = Literal["PPO", "A2C", "DDPG", "DQN", "QRDQN", "SAC", "TD3", "TQC", "TRPO"]
OWN: Algorithm = "PPO"

_ANY = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")


@dataclass(frozen=True, kw_only=True)
class AlgorithmTraits:
    """What is known of an algorithm without importing it.

    actions: the kinds of action spaces that it takes. hidden_sizes and activation: of the networks that it makes where
    nobody asks for others. package: where it is imported from.
    """

    actions: tuple[str, ...]
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "relu"
    package: Literal["ml_pipeline", "stable_baselines3", "sb3_contrib"] = "stable_baselines3"

    @property
    def install_command(self) -> str:
        """The command that installs the package."""
        return "pip install sb3-contrib" if self.package == "sb3_contrib" else install_extra("sb3")


# The networks: Stable-Baselines3 2.9 and sb3-contrib 2.7, the policies of each algorithm.
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
    """Raise UserError, with the algorithms that fit, where this one does not take actions of this kind.

    shown: the action space in words.
    """
    taken = ALGORITHMS[algorithm].actions
    if kind in taken:
        return
    *others, last = algorithms_for(kind) or [OWN]
    fitting = f"{', '.join(others)} or {last}" if others else last
    raise UserError(
        f"{algorithm} is for actions of the kind {' or '.join(taken)}, but those of the environment are {shown}; "
        f"train by {fitting}."
    )


def algorithms_for(kind: str) -> list[str]:
    """The algorithms that take actions of this kind, in alphabetical order.

    >>> algorithms_for("Discrete")
    ['A2C', 'DQN', 'PPO', 'QRDQN', 'TRPO']
    """
    return sorted(name for name, traits in ALGORITHMS.items() if kind in traits.actions)
