"""From the action of a policy to target weights, for one account.

`BatchedTradingEnv` does the same for arrays; a test compares the two.
"""

from math import isfinite
from operator import index
from typing import Any

import numpy as np
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.accounts.rules import TradingRules

_TRADED, _KEPT = [True], [False]
_POSITION_NAMES = {-1: "short", 0: "flat", 1: "long"}
# A position without a choice.
_NO_CHOICE = -1


class ActionReader:
    """Reads actions under `rules`. For discrete actions it remembers the latest choice of each asset."""

    def __init__(self, rules: TradingRules, symbols: tuple[str, ...]) -> None:
        n_assets = len(symbols)
        self.space = action_space(rules, n_assets)
        self._rules = rules
        self._symbols = symbols
        self._position_weights = [position / n_assets * rules.leverage for position in rules.positions]
        self._flat = rules.positions.index(0)
        self._discrete = rules.action_mode in {"discrete", "buy_hold_sell"}
        self._stepwise = rules.action_mode == "buy_hold_sell"
        # The weights of a single asset's choices, made once: most training steps take this path.
        one_choice = self._discrete and n_assets == 1 and not self._stepwise and rules.on_limit == "clip"
        one_choice = one_choice and rules.limit_bps is None
        self._choosable = [[weight] for weight in self._position_weights] if one_choice else None
        self._lowest, self._highest = action_bounds(rules)
        self.begin()

    def meaning(self) -> dict[str, Any]:
        """The meaning of each symbol's number, for JSON."""
        rules = self._rules
        meaning: dict[str, Any] = {"mode": rules.action_mode}
        if self._stepwise:
            meaning["choices"] = ["sell", "hold", "buy"]
        elif self._discrete:
            meaning["choices"] = [_POSITION_NAMES[position] for position in rules.positions]
        if self._discrete:
            return meaning | {"weights_of_positions": self._position_weights}
        if rules.action_mode == "trade":
            return meaning | {"unit": f"orders of {rules.trade_percent:g} % of the equity, negative to sell"}
        return meaning | {"unit": "target position as a fraction of the equity, negative for short"}

    def begin(self) -> None:
        """Forget the choices of the episode before."""
        self._choices = [self._flat] * len(self._symbols)

    def state(self) -> list[int]:
        """For `set_state`."""
        return self._choices

    def set_state(self, state: list[int]) -> None:
        """Restore a saved `state`."""
        self._choices = state

    def follow(self, holdings: list[float]) -> None:
        """Set each asset's choice from the position that is held, however it was opened.

        A short that the rules do not allow matches no choice, so any choice closes it.
        """
        positions = self._rules.positions
        signs = [(quantity > 0) - (quantity < 0) for quantity in holdings]
        self._choices = [positions.index(sign) if sign in positions else _NO_CHOICE for sign in signs]

    def read(self, action: Any, fillable: list[bool]) -> tuple[list[float], list[bool]]:
        """(weights, whether to trade) for each asset; an asset that cannot be filled does not trade.

        Raises UserError for an action that is outside the space or not finite, and, with on_limit "refuse", for one
        beyond a limit.
        """
        if self._choosable is not None:
            return self._read_choice(action, self._choosable, fillable[0])
        wanted: list[int] = []
        self._before = self._choices.copy()
        if self._discrete:
            wanted = self._chosen(action)
            weights = [self._position_weights[choice] for choice in wanted]
        else:
            weights = self._bounded(action)
        if self._rules.on_limit == "refuse" and self._rules.action_mode != "trade":
            self._refuse_beyond_limits(weights)
        if self._discrete:  # repeating a choice does not trade
            trades = [can and choice != had for can, choice, had in zip(fillable, wanted, self._choices, strict=True)]
            for i, traded in enumerate(trades):
                if traded:
                    self._choices[i] = wanted[i]
            return weights, trades
        if threshold := self._rules.action_threshold:
            return weights, [can and abs(weight) >= threshold for weight, can in zip(weights, fillable, strict=True)]
        return weights, fillable

    def close(self, fillable: list[bool]) -> tuple[list[float], list[bool]]:
        """The result of `read` for closing every position that can be filled."""
        self._choices = [self._flat if can else had for can, had in zip(fillable, self._choices, strict=True)]
        self._before = self._choices  # closing orders are market orders: none lapses
        return [0.0] * len(fillable), fillable

    def note_lapsed(self, filled: list[float]) -> None:
        """Take back the choice of each asset whose limit order was not filled, so that repeating it orders again."""
        for i, quantity in enumerate(filled):
            if not quantity:
                self._choices[i] = self._before[i]

    def note_exits(self, exited: list[float], holdings: list[float]) -> None:
        """Set the choice of each asset whose position was closed within the bar to flat, like the observed weight."""
        for i, quantity in enumerate(exited):
            if quantity and not holdings[i]:
                self._choices[i] = self._flat

    def _read_choice(self, action: Any, weights: list[list[float]], can: bool) -> tuple[list[float], list[bool]]:
        try:
            choice = index(action)
        except TypeError:
            raise self._not_in_space(action) from None
        if not 0 <= choice < len(weights):
            raise self._not_in_space(action)
        if can and choice != self._choices[0]:
            self._choices[0] = choice
            return weights[choice], _TRADED
        return weights[choice], _KEPT

    def _chosen(self, action: Any) -> list[int]:
        """The wanted position of each asset, as an index of `positions`."""
        n_choices = 3 if self._stepwise else len(self._position_weights)
        try:
            chosen = [index(choice) for choice in ([action] if len(self._choices) == 1 else self._numbers(action))]
        except TypeError:
            raise self._not_in_space(action) from None
        if not all(0 <= choice < n_choices for choice in chosen):
            raise self._not_in_space(action)
        if not self._stepwise:
            return chosen
        highest = len(self._position_weights) - 1
        return [min(max(had + step - 1, 0), highest) for had, step in zip(self._choices, chosen, strict=True)]

    def _not_in_space(self, action: Any) -> UserError:
        return UserError(f"Action {action} is not in {self.space}; choices are whole numbers from 0.")

    def _bounded(self, action: Any) -> list[float]:
        weights, lowest, highest = self._numbers(action), self._lowest, self._highest
        if not isfinite(sum(weights)) and not all(map(isfinite, weights)):
            raise UserError(f"Action {action} is not finite; expected numbers from {lowest:g} to {highest:g}.")
        return [lowest if weight < lowest else highest if weight > highest else weight for weight in weights]

    def _numbers(self, action: Any) -> list[Any]:
        numbers = action.tolist() if isinstance(action, np.ndarray) else list(action)
        if len(numbers) != len(self._symbols):
            raise UserError(f"An action needs one number for each of {self._symbols}, but got {action}.")
        return numbers

    def _refuse_beyond_limits(self, weights: list[float]) -> None:
        rules = self._rules
        for symbol, weight in zip(self._symbols, weights, strict=True):
            if abs(weight) > rules.max_position * (1 + 1e-9):
                raise UserError(
                    f"The target of {symbol} is {weight:g} of the equity, but max_position is {rules.max_position:g}; "
                    'lower it, or set on_limit to "clip".'
                )
        gross = sum(map(abs, weights))
        if gross > rules.max_gross * (1 + 1e-9):
            raise UserError(
                f"The targets add up to {gross:g} of the equity, but max_gross is {rules.max_gross:g}; "
                'lower them, or set on_limit to "clip".'
            )


def action_bounds(rules: TradingRules) -> tuple[float, float]:
    """The lowest and the highest number of an action in a Box."""
    if rules.action_mode == "trade":
        return -1.0, 1.0
    return -rules.largest_weight if rules.allow_short else 0.0, rules.largest_weight


def action_space(rules: TradingRules, n_assets: int) -> spaces.Space[Any]:
    """The action space of `n_assets` under `rules`."""
    if rules.action_mode in {"trade", "target_weights"}:
        return spaces.Box(*action_bounds(rules), (n_assets,), np.float32)
    n_choices = 3 if rules.action_mode == "buy_hold_sell" else len(rules.positions)
    return spaces.Discrete(n_choices) if n_assets == 1 else spaces.MultiDiscrete([n_choices] * n_assets)
