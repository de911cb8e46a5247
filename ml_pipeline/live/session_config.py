"""The settings of a trading session itself: its model, its broker, its folder, and what a difference does."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ml_pipeline.config.checks import check_choice
from ml_pipeline.config.errors import UserError

BrokerName = Literal["simulated", "alpaca"]
OnDifference = Literal["hold", "flatten"]


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """What trades, where, and under which name. Raises UserError where a value cannot be used."""

    model: Path | None = None
    """Deployed model, such as models/NAME/current, run folder or checkpoint that trades. It must be given to trade."""

    broker: BrokerName | None = None
    """Whose account trades: simulated (in this process, no account needed) or alpaca; none: simulated with a replay,
    else alpaca."""

    name: str | None = None
    """Name of the session, and of its folder; none: that of the model."""

    root: Path | None = None
    """Folder of sessions; none: live/."""

    on_difference: OnDifference = "hold"
    """What is done with positions where the broker's account differs from the session's books, before it stops: hold
    them as they are, or close all."""

    on_error: OnDifference = "hold"
    """What is done with positions where a feature fails or is no number any more, before the session stops: hold them
    as they are, or close all."""

    take_over: bool = False
    """Begin with an account that holds positions already; otherwise one that is not flat is refused."""

    def __post_init__(self) -> None:
        if self.broker is not None:
            check_choice("broker", self.broker, get_args(BrokerName))
        check_choice("on_difference", self.on_difference, get_args(OnDifference))
        check_choice("on_error", self.on_error, get_args(OnDifference))
        if self.name is not None:
            check_session_name(self.name)


def check_session_name(name: str) -> None:
    """Raise UserError where a name cannot be a folder's."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", name):
        raise UserError(
            f'name must be letters, digits, ".", "_", "+" and "-", beginning with a letter or digit, but got "{name}".'
        )
