"""The distribution of one setting: reads and checks a line of a search space, and turns it into Optuna's terms."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from ml_pipeline.config.conversion import convert
from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import in_one_line

_LARGEST_POWER = 62  # of two, below the largest whole number that is a float's and an int64's


@dataclass(frozen=True)
class Distribution:
    """The values of the setting `name`, which Optuna draws as its parameter `parameter` from `drawn`.

    to_value: converts Optuna's value to the setting's. shown: the distribution in a space file's normal form.
    Optuna's parameter has the setting's name unless it is drawn on another scale, such as one_minus_gamma.
    """

    name: str
    parameter: str
    drawn: BaseDistribution
    to_value: Callable[[Any], Any]
    shown: Mapping[str, Any]

    def suggest(self, trial: Trial) -> Any:
        """The setting's value in this trial."""
        drawn = self.drawn
        if isinstance(drawn, CategoricalDistribution):
            return self.to_value(trial.suggest_categorical(self.parameter, drawn.choices))
        assert isinstance(drawn, IntDistribution | FloatDistribution)
        ask: Callable[..., Any] = trial.suggest_int if isinstance(drawn, IntDistribution) else trial.suggest_float
        # Without log, Optuna accepts step=None only for a float.
        step = {} if drawn.log or drawn.step is None else {"step": drawn.step}
        return self.to_value(ask(self.parameter, drawn.low, drawn.high, log=drawn.log, **step))

    def points(self) -> Sequence[Any] | None:
        """All values that Optuna may draw, in order; None for a continuous range."""
        drawn = self.drawn
        if isinstance(drawn, CategoricalDistribution):
            return drawn.choices
        if isinstance(drawn, IntDistribution):
            return range(drawn.low, drawn.high + 1, drawn.step)
        assert isinstance(drawn, FloatDistribution)
        if drawn.step is None:
            return None
        n_steps = round((drawn.high - drawn.low) / drawn.step)
        return [float(_exact(drawn.low) + i * _exact(drawn.step)) for i in range(n_steps + 1)]

    def edges(self) -> list[Any]:
        """Values of the setting: every choice, or both ends of a range."""
        drawn = self.drawn
        if isinstance(drawn, CategoricalDistribution):
            return [self.to_value(choice) for choice in drawn.choices]
        assert isinstance(drawn, IntDistribution | FloatDistribution)
        return [self.to_value(drawn.low), self.to_value(drawn.high)]


def read_distribution(name: str, content: Any, hint: Any, *, where: str) -> Distribution:
    """The distribution of the setting `name`, of the type `hint`, that `content` describes.

    content: a list of choices, or a mapping with one of the forms `FORMS`. where: the start of error messages.
    Raises UserError if the form is unknown, a range is empty or has no logarithm, or the setting rejects a value.

    >>> read_distribution("gamma", {"uniform": [0.9, "0.999"]}, float, where="space.yaml: gamma").drawn
    FloatDistribution(high=0.999, log=False, low=0.9, step=None)
    >>> read_distribution("n_steps", {"int": [512, 256]}, int, where="n_steps")
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: n_steps: the range 512 to 256 is empty; write the smaller end first.
    """
    if isinstance(content, list):
        content = {"choice": content}
    if not isinstance(content, Mapping):
        raise UserError(
            f"{where} must be a list of choices, or a range such as {{uniform: [0, 1]}}, but got "
            f"{in_one_line(content)}; set a value that all trials share on the command line."
        )
    forms = [str(key) for key in content if key in FORMS and not (key == "log" and "int" in content)]
    if len(forms) != 1:
        asked = next((str(key) for key in content if key not in _OPTIONS), None)
        remedy = f" {nearest(asked, FORMS)}" if asked and not forms else ""
        raise UserError(
            f"{where} must have one of {', '.join(FORMS)}, but got "
            f"{' and '.join(forms) or in_one_line(', '.join(map(str, content)) or 'none')}.{remedy}"
        )
    form = forms[0]
    for key in content:
        if key != form and key not in _OPTIONS_OF.get(form, ()):
            takes = " and ".join(_OPTIONS_OF.get(form, ())) or "nothing"
            raise UserError(f'{where}: {form} takes {takes} in addition, but got "{in_one_line(key)}".')
    return FORMS[form](name, content, hint, where)


def _choice(name: str, content: Mapping[str, Any], hint: Any, where: str) -> Distribution:
    given = content["choice"]
    if not isinstance(given, list) or not given:
        raise UserError(f"{where}: choice must be a list of at least one value, but got {in_one_line(given)}.")
    values = [_finite(convert(value, hint, name=where), where) for value in given]
    labels = [_label(value) for value in values]
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise UserError(f"{where} names {in_one_line(given[i])} twice; name each choice once.")
    by_label = dict(zip(labels, values, strict=True))
    shown = {"choice": [list(value) if isinstance(value, tuple) else value for value in values]}
    return Distribution(name, name, CategoricalDistribution(labels), by_label.__getitem__, shown)


def _log(name: str, content: Mapping[str, Any], hint: Any, where: str) -> Distribution:
    _need_numbers(hint, where)
    low, high = _ends(content, "log", float, where)
    _need_logarithm(low, "log", where)
    return _plain(name, FloatDistribution(low, high, log=True), hint, {"log": [low, high]}, where)


def _uniform(name: str, content: Mapping[str, Any], hint: Any, where: str) -> Distribution:
    _need_numbers(hint, where)
    low, high = _ends(content, "uniform", float, where)
    if content.get("step") is None:
        return _plain(name, FloatDistribution(low, high), hint, {"uniform": [low, high]}, where)
    step = _step(convert(content["step"], float, name=f"{where}: step"), low, high, where)
    # Counted as Optuna does; if no step leads to the upper end, Optuna would lower it with a warning.
    try:
        n_steps = (_exact(high) - _exact(low)) // _exact(step)
    except InvalidOperation:  # more digits than a Decimal has
        raise UserError(f"{where}: step {step} is too small for the range {low} to {high}; leave it out.") from None
    drawn = FloatDistribution(low, float(_exact(low) + n_steps * _exact(step)), step=step)
    return _plain(name, drawn, hint, {"uniform": [low, high], "step": step}, where)


def _int(name: str, content: Mapping[str, Any], hint: Any, where: str) -> Distribution:
    _need_numbers(hint, where, whole=True)
    low, high = _ends(content, "int", int, where)
    is_log = convert(content.get("log", False), bool, name=f"{where}: log")
    step = content.get("step")
    if is_log:
        _need_logarithm(low, "int with log", where)
        if step is not None:
            raise UserError(f"{where}: an int has a step or log, but got both; use one of them.")
        return _plain(name, IntDistribution(low, high, log=True), hint, {"int": [low, high], "log": True}, where)
    step = 1 if step is None else _step(convert(step, int, name=f"{where}: step"), low, high, where)
    drawn = IntDistribution(low, high - (high - low) % step, step=step)
    return _plain(name, drawn, hint, {"int": [low, high], "step": step}, where)


def _power_of_two(name: str, content: Mapping[str, Any], hint: Any, where: str) -> Distribution:
    _need_numbers(hint, where, whole=True)
    low, high = _ends(content, "power_of_two", int, where)
    for end in (low, high):
        if end < 1 or end.bit_count() != 1 or end.bit_length() > _LARGEST_POWER:
            raise UserError(f"{where}: both ends of power_of_two must be powers of two, such as 32, but got {end}.")
    drawn = IntDistribution(low.bit_length() - 1, high.bit_length() - 1)

    def to_value(exponent: int) -> Any:
        return convert(2**exponent, hint, name=where)

    return _checked(Distribution(name, f"log2_{name}", drawn, to_value, {"power_of_two": [low, high]}))


def _one_minus_log(name: str, content: Mapping[str, Any], hint: Any, where: str) -> Distribution:
    _need_numbers(hint, where)
    low, high = _ends(content, "one_minus_log", float, where)
    if high >= 1:
        raise UserError(
            f"{where}: one_minus_log draws the logarithm of 1 minus the value, so both ends must be below 1, but got "
            f"{high:g}."
        )
    drawn = FloatDistribution(1 - high, 1 - low, log=True)

    def to_value(rest: float) -> Any:
        return convert(1 - rest, hint, name=where)

    return _checked(Distribution(name, f"one_minus_{name}", drawn, to_value, {"one_minus_log": [low, high]}))


FORMS: Mapping[str, Callable[[str, Mapping[str, Any], Any, str], Distribution]] = {
    "choice": _choice,
    "uniform": _uniform,
    "log": _log,
    "one_minus_log": _one_minus_log,
    "int": _int,
    "power_of_two": _power_of_two,
}
"""The forms of a setting in a search space, by name."""
_OPTIONS_OF = {"uniform": ("step",), "int": ("step", "log")}
# log is a form, and an option of int.
_OPTIONS = frozenset({"step", "log"})


def _plain(name: str, drawn: BaseDistribution, hint: Any, shown: Mapping[str, Any], where: str) -> Distribution:
    """A distribution of the values themselves."""

    def to_value(number: Any) -> Any:
        return convert(number, hint, name=where)

    return _checked(Distribution(name, name, drawn, to_value, shown))


def _checked(distribution: Distribution) -> Distribution:
    """The distribution. Raises UserError if its values have another type than the setting."""
    distribution.edges()
    return distribution


def _need_numbers(hint: Any, where: str, *, whole: bool = False) -> None:
    """Raise UserError if a setting takes no numbers, or only whole ones although a range has others."""
    try:
        convert(1, hint, name=where)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}, and a range has numbers; give it choices.") from None
    if not whole:
        try:
            convert(0.5, hint, name=where)
        except UserError:
            raise UserError(
                f"{where} takes whole numbers; write {{int: [1, 20]}}, with log: true for a logarithmic scale."
            ) from None


def _ends(content: Mapping[str, Any], form: str, of: type, where: str) -> tuple[Any, Any]:
    """Both ends of a range, the lower one first. Raises UserError if they are not two numbers in order."""
    ends = content[form]
    if not isinstance(ends, list) or len(ends) != 2:
        raise UserError(f"{where}: {form} must be both ends of a range, such as [1, 20], but got {in_one_line(ends)}.")
    low, high = (_finite(convert(end, of, name=f"{where}: {form}"), where) for end in ends)
    if low > high:
        raise UserError(f"{where}: the range {low} to {high} is empty; write the smaller end first.")
    if low == high:
        raise UserError(f"{where}: the range {low} to {high} has one value; give it on the command line instead.")
    return low, high


def _need_logarithm(low: float, form: str, where: str) -> None:
    if low <= 0:
        raise UserError(f"{where}: {form} draws on a logarithmic scale, which begins above 0, but got {low}.")


def _step(step: Any, low: float, high: float, where: str) -> Any:
    if not step > 0 or _exact(step) > _exact(high) - _exact(low):  # 0.3 - 0.1 is not 0.2 in binary
        raise UserError(f"{where}: step must be above 0 and at most the width of the range, but got {step}.")
    return step


def _exact(number: float) -> Decimal:
    """The number as written, without a binary rounding error."""
    return Decimal(str(number))


def _finite(value: Any, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise UserError(f"{where} must be finite, but got {value}.")
    return value


def _label(value: Any) -> bool | int | float | str | None:
    """A value as Optuna stores it: unchanged if it is a JSON scalar, else its JSON text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return json.dumps(value)
