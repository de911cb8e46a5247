"""Trading settings: frozen dataclasses that validate their values."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from ml_pipeline.config.checks import check_choice, check_count, check_number, check_positive
from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.rules import ACTION_MODES, ActionMode, CostsAndLimits, TradingRules
from ml_pipeline.trading.envs.rewards import make_reward, reward_name
from ml_pipeline.trading.features.indicators import DEFAULT_FEATURES, make_features
from ml_pipeline.trading.market.columns import Dialect, make_dialect
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.tables import Faults
from ml_pipeline.trading.market.timeframes import make_clock, timeframe_ns
from ml_pipeline.trading.market.times import BarTime, DateOrder

Score = Literal["log_return", "sharpe"]


@dataclass(frozen=True)
class _MarketSource:
    """Where the market comes from; a separate class so that --help lists these settings first."""

    data: Path | None = None
    """Market data: a CSV or Parquet file, or a folder with one file per symbol; none: the built-in market."""
    symbols: tuple[str, ...] = ()
    """Symbols to trade, in this order; none: all symbols."""
    columns: dict[str, str] = field(default_factory=dict)
    """Titles of the columns, if they are not the usual ones, as CONTENT=TITLE, such as time=timestamp_utc close=Last.
    Contents: time, date, symbol, open, high, low, close, adjusted, bid, ask, volume, feature_NAME. volume=none ignores
    the volume. In a file without a header, give column numbers from 1."""
    date_order: DateOrder | None = None
    """Order of day, month and year in dates such as 01/02/2024; none: inferred from the data."""
    bar_time: BarTime | None = None
    """Whether times in the data are those at which bars open, or close; required if symbols have bars of different
    lengths."""
    timeframe: str | None = None
    """Length of the bars to trade on, such as 5m, 15m, 1h, 4h or 1d, built from the shorter bars of the data; none: the
    bars of the data."""
    session: str | None = None
    """Trading hours, such as 09:30-16:00, in the given timezone; bars outside these hours are left out; none: all
    bars."""
    timezone: str | None = None
    """Time zone of trading hours and calendar days, such as America/New_York; none: UTC."""
    drop_bad_rows: bool = False
    """Leave out invalid rows of the data and list them; otherwise the first invalid row is an error."""
    adjust_splits: bool = False
    """Adjust prices and volumes from before a stock split, if the data do not reflect the split, and list the
    splits."""
    periods_per_year: float | None = None
    """Bars per year, used to annualize figures and to charge borrowing fees; none: inferred from the data and shown in
    the report."""


@dataclass(frozen=True)
class MarketConditions(CostsAndLimits, _MarketSource):
    """Market, costs and limits: the settings that may differ between training and evaluation."""


@dataclass(frozen=True)
class TraderConfig(MarketConditions):
    """Market, costs, observations and actions."""

    features: tuple[str, ...] = DEFAULT_FEATURES
    """Features of each asset: indicators with any span (log_return_60), also on longer bars (rsi_14@1h), tradable,
    time_of_day, time_of_week, data columns (feature_NAME, or feature_* for all of them) and your own functions
    (module:function)."""
    accept_feature: tuple[str, ...] = ()
    """Features that you train with although the look-ahead checks refuse them, each followed by your reason, such as
    feature_gap "known before the open". The run stores the reasons."""
    window: int = 1
    """Number of latest bars whose features the policy observes. With a larger window, the policy sees more of the past
    and has more inputs."""
    action_mode: Literal["auto", ActionMode] = "auto"
    """Meaning of an action: fractions of equity to hold (target_weights); short, flat or long (discrete); one step
    down, none, or one step up in the order short, flat, long (buy_hold_sell); or amounts to buy and sell (trade). auto:
    discrete for one asset, otherwise target_weights."""
    allow_short: bool = True
    """Allow short positions; otherwise positions are flat or long."""
    reward: str = "log_return"
    """Reward of a step: log_return, fast_profit, fast_profit_reward, simple_momentum, simple_momentum_reward,
    differential_sharpe, sharpe_ratio, sortino_ratio, calmar_ratio, or your own module:Class."""
    reward_scale: float = 1.0
    """Factor by which rewards are multiplied."""
    reward_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the reward by name, such as '{"risk_free_rate": 0.02}'."""
    embargo_bars: int = 0
    """Number of bars left out between two splits. With a gap as long as the features look back, no observation of a
    split uses bars of the split before."""
    episode_length: int = 256
    """Bars in a training episode, which starts at a random bar."""

    def __post_init__(self) -> None:
        for name in ("window", "episode_length"):
            check_count(name, getattr(self, name))
        check_count("embargo_bars", self.embargo_bars, minimum=0)
        for name, example in (("features", "rsi_14"), ("symbols", "EURUSD")):
            if isinstance(text := getattr(self, name), str):  # would be read letter by letter
                raise UserError(f'{name} must be a list such as ["{example}"], but got {text!r}.')
        if not self.features:
            raise UserError("features must be at least one feature, such as rsi_14, but got none.")
        for feature in self.features:
            make_features(feature)
        self.accepted_features()
        if self.periods_per_year is not None:
            check_positive("periods_per_year", self.periods_per_year)
        if self.bar_time is not None:
            check_choice("bar_time", self.bar_time, get_args(BarTime))
        self.form()
        self.dialect()
        if self.timeframe is not None:
            timeframe_ns(self.timeframe)
        check_choice("action_mode", self.action_mode, ("auto", *ACTION_MODES))
        self.rules(1)
        object.__setattr__(self, "reward", reward_name(self.reward))  # of a class
        make_reward(self.reward, self.reward_scale, self.reward_kwargs)

    def accepted_features(self) -> dict[str, str]:
        """The reason for each accepted feature. Raises UserError if one lacks its reason."""
        names, reasons = self.accept_feature[::2], self.accept_feature[1::2]
        if empty := [name for name, reason in zip(names, reasons, strict=False) if not reason.strip()]:
            raise UserError(
                f"accept_feature needs a reason for {empty[0]}, but its reason is empty; write one, such as "
                '"known before the open".'
            )
        if len(names) != len(reasons):
            raise UserError(
                'accept_feature must be features, each followed by a reason, such as feature_gap "known before the '
                f'open", but got {" ".join(self.accept_feature)}.'
            )
        return dict(zip(names, reasons, strict=True))

    def reading(self) -> dict[str, Any]:
        """Keyword arguments for `load_market` and `market_from_frame`."""
        return {
            "bar_time": self.bar_time,
            "form": self.form(),
            "faults": self.faults(),
            "dialect": self.dialect(),
        }

    def form(self) -> BarForm:
        """How bars are changed after reading."""
        return BarForm(self.adjust_splits, self.timeframe, make_clock(self.session, self.timezone))

    def dialect(self) -> Dialect:
        """Meaning of the column titles and dates of the data."""
        return make_dialect(self.columns, self.date_order)

    def faults(self) -> Faults:
        """How invalid rows are handled."""
        return Faults("drop" if self.drop_bad_rows else "refuse")

    def rules(self, n_assets: int) -> TradingRules:
        """The rules for an account with `n_assets` assets, with `action_mode` "auto" resolved."""
        chosen: ActionMode = "discrete" if n_assets == 1 else "target_weights"
        same = {field.name: getattr(self, field.name) for field in fields(TradingRules)}
        return TradingRules(**{**same, "action_mode": chosen if self.action_mode == "auto" else self.action_mode})


@dataclass(frozen=True)
class TradingConfig(TraderConfig):
    """Market data, costs, features, actions, rewards and chronological splits."""

    train_fraction: float = 0.7
    """Fraction of the bars to train on, the earliest ones."""
    validation_fraction: float = 0.15
    """Fraction of the bars, right after the training split, on which the best checkpoint is chosen; the bars after it
    are the test split."""
    score: Score = "log_return"
    """Score that chooses the best checkpoint on the validation split, after costs: ln(V_end / V_start) (log_return), or
    the annualized Sharpe ratio of the returns per bar (sharpe)."""
    per_symbol: bool = False
    """Trade each symbol in its own environments and account, with one policy for all symbols (data: one file per
    symbol); otherwise one account trades all symbols."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("score", self.score, get_args(Score))
        for name in ("train_fraction", "validation_fraction"):
            check_number(name, getattr(self, name), lambda part: 0 < part < 1, "between 0 and 1")
        together = self.train_fraction + self.validation_fraction
        expected = "less than 1, to leave a test split"
        check_number("train_fraction + validation_fraction", together, lambda part: part < 1, expected)
