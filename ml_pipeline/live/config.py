"""Settings of paper trading, from flags or from a file with the same names. Each part of a session defines its own."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import tyro

from ml_pipeline.config.checks import check_choice
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.files import convert_settings, read_mapping
from ml_pipeline.config.flags import naming_flags, read_flags
from ml_pipeline.config.settings import groups_of
from ml_pipeline.live.alerting.alert_config import AlertConfig
from ml_pipeline.live.alpaca.config import AlpacaConfig, check_real_money
from ml_pipeline.live.alpaca.keys import refuse_keys
from ml_pipeline.live.brokers.faults import SimulatedFaults
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.retraining.config import RetrainConfig, read_interval
from ml_pipeline.live.risk.config import GuardConfig
from ml_pipeline.runs.trained.configs import ChangesOfMarket
from ml_pipeline.trading.settings import MarketConditions

BROKERS = ("simulated", "alpaca")
OnDifference = Literal["stop", "flatten", "take-over"]
OnError = Literal["hold", "flatten"]
OnUnreachable = Literal["hold", "flatten"]


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """The model, the broker and the name of the session.

    Raises UserError if a value is invalid.
    """

    model: Path | None = None
    """Model to trade, required: a deployed model such as models/NAME/current, a run folder or a checkpoint."""

    broker: str | None = None
    """Broker: simulated (in this process, no account needed), alpaca, or your own module:Class; none: simulated for a
    replay, otherwise alpaca."""

    name: str | None = None
    """Name of the session and of its folder; none: the name of the model."""

    root: Path | None = None
    """Folder that contains the session folders; none: live/."""

    on_difference: OnDifference = "stop"
    """What to do if the broker's account differs from the session's books and the broker does not report why: stop and
    hold positions, close all positions and stop, or take the account over and continue."""

    on_error: OnError = "hold"
    """What to do with positions if a feature fails or becomes NaN, before the session stops: hold them, or close
    all."""

    take_over: bool = False
    """Start with the positions that the account already holds; without it, an account with positions is refused."""

    unreachable_for: str = "10m"
    """How long to wait for a broker that cannot be reached or refuses the keys, or for room on a full disk, before the
    session ends so that a service manager can restart it, such as 10m or 2h."""

    on_unreachable: OnUnreachable = "hold"
    """What to do with positions when unreachable_for is over: hold them, or close all at the next start before anything
    else. Until then they are held in either case, because no order reaches the broker."""

    def __post_init__(self) -> None:
        if self.broker is not None and ":" not in self.broker:
            check_choice("broker", self.broker, (*BROKERS, "module:Class"))
        check_choice("on_difference", self.on_difference, get_args(OnDifference))
        check_choice("on_error", self.on_error, get_args(OnError))
        check_choice("on_unreachable", self.on_unreachable, get_args(OnUnreachable))
        _ = self.unreachable_for_s
        if self.name is not None:
            check_session_name(self.name)

    @property
    def unreachable_for_s(self) -> float:
        """`unreachable_for` in seconds. Raises UserError if it is not a time span."""
        with suppress(UserError):
            if (span := read_interval(self.unreachable_for).span) is not None:
                return float(span / np.timedelta64(1, "s"))
        raise UserError(f'unreachable_for must be a time span such as 10m or 2h, but got "{self.unreachable_for}".')


def check_session_name(name: str) -> None:
    """Raise UserError if the name cannot be the name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", name):
        raise UserError(
            f'name must be letters, digits, ".", "_", "+" and "-", beginning with a letter or digit, but got "{name}".'
        )


ACTIONS = ("status", "stop", "flatten", "reconcile", "adjust")
_MONEY = ("deposit", "withdraw", "why")


@dataclass(frozen=True, kw_only=True)
class Action:
    """What to do with an existing session; without an action, trade."""

    action: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="[ACTION [NAME]]")] = ()
    """status, stop, flatten, reconcile or adjust, and the name of a session; no name: the running or latest one
    (status: all; adjust needs a name)."""

    config: Path | None = None
    """YAML or JSON file of settings under the names of the flags; flags override it."""

    deposit: float | None = None
    """adjust: money that came into the account and that the broker does not explain; without an amount, adjust lists
    what was booked."""

    withdraw: float | None = None
    """adjust: money that left the account."""

    why: str | None = None
    """adjust: the reason, which the journal keeps with the time and your user name."""


_SETTINGS: dict[str, type] = {
    "session": SessionConfig,
    "feed": FeedConfig,
    "guards": GuardConfig,
    "alerts": AlertConfig,
    "retraining": RetrainConfig,
    "alpaca": AlpacaConfig,
    "faults": SimulatedFaults,
    "market": ChangesOfMarket,
}
Settings = make_dataclass("Settings", list(_SETTINGS.items()), frozen=True, kw_only=True)
"""The settings that a file can contain."""
CommandLine = make_dataclass("CommandLine", [("action", Action), *_SETTINGS.items()], frozen=True, kw_only=True)
"""The settings that flags can set."""


@dataclass(frozen=True, kw_only=True)
class PaperTradeConfig:
    """The settings of one session. changes: settings of `MarketConditions` that differ from training.

    Raises UserError if two settings exclude each other.
    """

    session: SessionConfig
    feed: FeedConfig = field(default_factory=FeedConfig)
    guards: GuardConfig = field(default_factory=GuardConfig)
    alerts: AlertConfig = field(default_factory=AlertConfig)
    retraining: RetrainConfig = field(default_factory=RetrainConfig)
    alpaca: AlpacaConfig = field(default_factory=AlpacaConfig)
    faults: SimulatedFaults = field(default_factory=SimulatedFaults)
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.session.model is None:
            raise UserError("A session needs a model to trade, such as --model models/NAME/current.")
        if "data" in self.changes:
            raise UserError("--data is for training and evaluation; use --replay to trade on recorded bars.")
        if self.broker == "alpaca" and self.feed.replay is not None:
            raise UserError("--replay trades on recorded bars, which no real broker fills; use --broker simulated.")
        if self.alpaca.live and self.broker != "alpaca":
            raise UserError(f"--live trades real money at Alpaca, but the broker is {self.broker}; use one of them.")
        if self.broker == "alpaca":
            check_real_money(self.alpaca)

    @property
    def broker(self) -> str:
        """The broker: as set, or by default the simulated one for a replay and Alpaca otherwise."""
        return self.session.broker or ("alpaca" if self.feed.replay is None else "simulated")

    @property
    def model(self) -> Path:
        assert self.session.model is not None
        return self.session.model

    def as_data(self) -> dict[str, Any]:
        """Every setting that differs from its default, without secrets, for the log."""
        parts = (self.session, self.feed, self.guards, self.alerts, self.retraining, self.alpaca, self.faults)
        given: dict[str, Any] = dict(self.changes)
        for part in parts:
            usual, secret = type(part)(), {each.name for each in fields(part) if not each.repr}
            given |= {
                name: value
                for name, value in asdict(part).items()
                if value != getattr(usual, name) and name not in secret
            }
        return given


class PaperTradeStart:
    """The parsed command line.

    action: None to trade. name: of the session that the action is for. money: amounts and reason of `adjust`.
    """

    def __init__(
        self,
        action: Literal["status", "stop", "flatten", "reconcile", "adjust"] | None,
        values: dict[str, Any],
        words: Sequence[str],
    ) -> None:
        self.action = action
        self.name: str | None = words[0] if words else values.get("name")
        self.root: Path | None = values.get("root")
        self.money = {name: values.get(name) for name in _MONEY}
        self._values = values

    def config(self) -> PaperTradeConfig:
        """The settings of the session to trade. Raises UserError if they are invalid."""
        return paper_trade_config(self._values)


def paper_trade_config(values: Mapping[str, Any]) -> PaperTradeConfig:
    """The settings with these values. Raises UserError if a value is invalid, or two settings exclude each other."""
    changes = {each.name: values[each.name] for each in fields(MarketConditions) if each.name in values}
    groups = {
        name: group(**{each.name: values[each.name] for each in fields(group) if each.name in values})
        for name, group in groups_of(Settings).items()
        if name != "market"
    }
    return PaperTradeConfig(**groups, changes=changes)


def parse_paper_trade(argv: Sequence[str], *, prog: str, description: str = "") -> PaperTradeStart:
    """Read the command line and its settings file. Raises UserError if a value is invalid."""
    flags = read_flags(argv, CommandLine, prog=prog, description=description)
    words = flags.pop("action", ())
    if flags.get("real_money"):
        raise UserError(
            "Real money is allowed only by a line in the settings file, not by a flag; write real_money: true into the "
            "file of --config."
        )
    if (file := flags.pop("config", None)) is not None:
        values = read_mapping(file)
        refuse_keys(values, file)
        flags = {**convert_settings(values, Settings, source=file), **flags}
    action: Any = words[0] if words else None
    if action is not None and action not in ACTIONS:
        raise UserError(f'A session has no action "{action}". {nearest(action, ACTIONS)}')
    if action != "adjust" and (given := [name for name in _MONEY if name in flags]):
        raise UserError(f"--{given[0]} belongs to `paper-trade adjust NAME`; leave it out.")
    if len(words) > 2:
        raise UserError(f"{action} takes one session, but got {' '.join(words[1:])}.")
    if len(words) > 1:
        with naming_flags("name"):
            check_session_name(words[1])
    return PaperTradeStart(action, flags, words[1:])
