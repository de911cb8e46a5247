"""Turn closed bars into the target weights of the policy, with the observation and choice of the backtest.

A assets, D features per bar, W bars in a window.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.decisions.deployed_policy import DeployedPolicy, ImpossibleAction
from ml_pipeline.trading.envs.actions import ActionReader
from ml_pipeline.trading.features.feature_stream import FeatureStream
from ml_pipeline.trading.features.scaling import OutOfRange
from ml_pipeline.trading.market.bar_set import BarSet, MarketBuffer
from ml_pipeline.trading.market.data import FloatArray
from ml_pipeline.trading.market.timeframes import Calendar, Timing


class Decision(NamedTuple):
    """The decision of the policy at the close of a bar.

    time: of the bar. action: of the policy; closing: True if it is ignored because all positions are closed. weights:
    target of each asset, for the kernel. may_trade: whether each asset gets an order.
    features: float64 (D,), of this bar; scaled: float32 (D,), as observed. columns: their names. out_of_range: features
    outside their range in training.
    """

    time: np.datetime64
    action: Any
    closing: bool
    weights: list[float]
    may_trade: list[bool]
    features: FloatArray
    scaled: NDArray[np.float32]
    columns: tuple[str, ...]
    out_of_range: list[OutOfRange]


class PolicyRunner:
    """Observes bars and decides at their close.

    symbols: of the bars, in their order; as many as in the policy's training.
    Raises UserError if the policy does not fit the symbols.
    """

    def __init__(
        self, policy: DeployedPolicy, symbols: Sequence[str], timing: Timing, calendar: Calendar | None = None
    ) -> None:
        if len(symbols) != len(policy.trained.symbols):
            policy.symbols_on(symbols)  # raises an error with the reason
        self.policy = policy
        self.symbols = tuple(symbols)
        self._stream = FeatureStream(symbols, policy.config.features, timing, calendar, source="the market")
        self._reader = ActionReader(policy.rules, self.symbols)
        self._before = self._reader.state().copy()
        self._window: deque[NDArray[np.float32]] = deque(maxlen=policy.window)
        self._features: FloatArray = np.empty(0)
        self._bars: BarSet | None = None
        self._columns: tuple[str, ...] = ()
        policy.act.begin_episode()

    @property
    def tape(self) -> MarketBuffer:
        """All observed bars."""
        return self._stream.buffer

    @property
    def ready(self) -> bool:
        """Whether the window is complete; a backtest decides from this bar on."""
        first = self._stream.first_bar
        return first is not None and self.tape.n_bars >= first + self.policy.window

    @property
    def waits_for(self) -> str:
        """Why it is not ready, in a sentence; empty if it is."""
        if self.ready:
            return ""
        failing = "; ".join(f"{name}: {problem}" for name, problem in self._stream.failures.items())
        return (
            f"After {self.tape.n_bars:,} bars the features of {self.policy.window:,} bars are not complete for any "
            f"symbol; more bars are needed before the first decision.{f' {failing}' if failing else ''}"
        )

    def observe(self, bars: BarSet) -> bool:
        """Observe the bars that have closed. Returns whether the policy's window is complete.

        Raises UserError if bars are invalid (they are then not observed), or a feature fails.
        """
        return self._observe(bars, call_functions=True)

    def observe_all(self, bars: Sequence[BarSet], stopping: Callable[[], bool] = lambda: False) -> bool:
        """Observe several bars, such as those before a start. Returns whether the window is then complete.

        Functions of the user are called only for the bars of the last window. stopping: called at each bar; True skips
        the rest.
        """
        begin = len(bars) - self.policy.window
        for i, each in enumerate(bars):
            if stopping():
                return False
            self._observe(each, call_functions=i >= begin)
        return self.ready

    def _observe(self, bars: BarSet, *, call_functions: bool) -> bool:
        self._features = features = self._stream.append(bars, call_functions=call_functions)
        if not self._columns:
            self._columns = self._stream.columns
            if len(features) != len(self.policy.scaler.mean):
                raise UserError(
                    f"The scaler has {len(self.policy.scaler.mean)} features, but there are {len(features)}."
                )
        self._window.append(self.policy.scaler(features[None])[0])
        self._bars = bars
        return self.ready

    def observation(self, held_weights: Sequence[float]) -> NDArray[np.float32]:
        """The observation: scaled features of the last W bars, oldest first, then the weights. float32."""
        rows = self._window
        size = len(rows) * len(self._features)
        observation = np.empty(size + len(self.symbols), dtype=np.float32)
        np.concatenate(rows, out=observation[:size])
        observation[size:] = held_weights
        return observation

    def decide(self, held_weights: Sequence[float], *, closing: bool = False) -> Decision:
        """The decision at the close of the latest bars.

        held_weights: of each asset in equity, clipped, from `execution.weight_in_equity`.
        closing: orders of this bar are the last to be filled in a market session, and the rules close positions then.
        Raises ImpossibleAction if the action is NaN or cannot be executed; the state is then unchanged.
        """
        if not self.ready:
            raise UserError(self.waits_for)
        assert self._bars is not None
        remembered = self.policy.act.state()
        action = self.policy.act(self.observation(held_weights))
        may_trade = self._may_trade(self._bars)
        before = self._reader.state().copy()
        try:
            weights, trades = self._reader.close(may_trade) if closing else self._reader.read(action, may_trade)
        except UserError as error:
            self.policy.act.set_state(remembered)
            raise ImpossibleAction(str(error)) from error
        self._before = before
        return Decision(
            time=self._bars.time,
            action=action,
            closing=closing,
            weights=list(weights),
            may_trade=list(trades),
            features=self._features,
            scaled=self._window[-1],
            columns=self._columns,
            out_of_range=self.policy.ranges.outside(self._features, self._columns),
        )

    def note_settled(
        self,
        lapsed: Iterable[str] = (),
        *,
        filled: Sequence[float],
        exited: Sequence[float] | None = None,
        holdings: Sequence[float],
        waiting: Iterable[str] = (),
    ) -> None:
        """Match the policy's choices with the outcome of the latest decision's orders.

        lapsed: symbols whose order was not filled at all: there was no bar, or it was canceled or rejected. Their
        choice is undone, so that repeating it orders again. filled, exited: signed quantities by symbol; holdings:
        after them. waiting: symbols whose order is still open, and may lapse in a later bar. Call it after each bar; if
        nothing was decided, it undoes nothing else.
        """
        rules, choices = self.policy.rules, list(self._reader.state())
        for symbol in lapsed:
            i = self.symbols.index(symbol)
            choices[i] = self._before[i]
        if rules.limit_bps is not None:
            choices = [had if not n else has for n, has, had in zip(filled, choices, self._before, strict=True)]
        self._reader.set_state(choices)
        if exited is not None and rules.acts_within_bars:
            self._reader.note_exits(list(exited), list(holdings))
        before, self._before = self._before, self._reader.state().copy()  # a second call undoes nothing
        for i in map(self.symbols.index, waiting):
            if exited is None or not exited[i]:
                self._before[i] = before[i]

    def follow_holdings(self, holdings: Sequence[float]) -> None:
        """Start with positions that another policy opened: set each choice to the position held."""
        self._reader.follow(list(holdings))
        self._before = self._reader.state().copy()

    def state(self) -> dict[str, Any]:
        """Choices and recurrent state as plain data, without features: observing the bars again restores them."""
        return {
            "choices": list(self._reader.state()),
            "before": list(self._before),
            "memory": self.policy.act.state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a `state`, after observing the same bars. Raises UserError if it does not fit."""
        try:
            choices, before, memory = list(state["choices"]), list(state["before"]), state["memory"]
            if not len(choices) == len(before) == len(self.symbols):
                raise ValueError(f"{len(choices)} choices of {len(self.symbols)} symbols")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"This is not the state of a policy runner: {error!r}.") from error
        self.policy.act.set_state(memory)
        self._reader.set_state(choices)
        self._before = before

    def _may_trade(self, bars: BarSet) -> list[bool]:
        """Whether an order for each asset can be filled, as far as known at the decision."""
        if self.policy.rules.fill_at == "close":
            return list((bars.present & bars.fillable).tolist())
        return list((self.tape.last_close > 0).tolist())
