"""Settings files in sections, as pipelines around Stable-Baselines3 have them, as the flat settings of this program.

The sections are `agent_config` (with `kwargs` of Stable-Baselines3's PPO), `stock_env`, `reward_config`,
`portfolio_config`, `feature_config` and `data_config`; a section may be the path of a JSON or YAML file that holds it.
What changes no result, such as a description, is left out; what would change it and has no counterpart is refused.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.files import read_mapping
from ml_pipeline.trading.envs.rewards import reward_parameters

Flat = dict[str, Any]
Reader = Callable[[Any, Path], Flat]

# Keys that change no result: names, places to save to, and how much is printed.
_WITHOUT_EFFECT = frozenset(
    {"name", "description", "version", "out_dir", "save_path", "deterministic", "backtest_config"}
)
_NOT_OUR_MATTER = frozenset({"verbose", "stats_window_size", "tensorboard_log", "rollout_buffer_class"})
# The most that a trade_limit_percent of these files can be: it is a fraction there, and 0.1 means 10 %.
_WHOLE = 1.0


def is_sectioned(content: Mapping[Any, Any]) -> bool:
    """Whether a file has sections, and is not flat."""
    return any(key in _SECTIONS for key in content)


def flat_settings(content: Mapping[Any, Any], source: Path) -> Flat:
    """The settings of a file in sections by the names of the flags. Flat settings may stand beside the sections.

    Raises UserError for what is unknown, has no counterpart here, or is set twice.
    """
    flat: Flat = {}
    for key, value in content.items():
        if key not in _WITHOUT_EFFECT:
            _add(flat, _SECTIONS[key](value, source) if key in _SECTIONS else {str(key): value}, source)
    return flat


def _section(name: str, readers: Mapping[str, Reader], ignored: frozenset[str] = frozenset()) -> Reader:
    """Reads the section of this name, where each key has a reader."""

    def read(value: Any, source: Path) -> Flat:
        if isinstance(value, str):
            source = source.parent / value
            value = read_mapping(source)
        if not isinstance(value, Mapping):
            raise UserError(f"{source}: {name} must be a section of settings, but got {value!r}.")
        flat: Flat = {}
        for key, inner in value.items():
            if key in ignored or key in _WITHOUT_EFFECT:
                continue
            if key not in readers:
                raise UserError(f'{source}: unknown setting "{key}" in {name}. {nearest(str(key), readers)}')
            _add(flat, readers[key](inner, source), source)
        return flat

    return read


def _add(flat: Flat, more: Flat, source: Path) -> None:
    for name, value in more.items():
        if name in flat:
            raise UserError(f"{source}: {name} is set twice; keep one of the two.")
        flat[name] = value


def _same(name: str) -> Reader:
    """The key is the setting `name`."""
    return lambda value, source: {name: value}


def _only(name: str, *allowed: Any) -> Reader:
    """The key must have one of these values, which are how this program works anyway."""

    def read(value: Any, source: Path) -> Flat:
        if value not in allowed:
            expected = " or ".join(map(str, allowed))
            raise UserError(f"{source}: {name} must be {expected}, for there is no counterpart, but got {value}.")
        return {}

    return read


def _algorithm(value: Any, source: Path) -> Flat:
    if str(value).lower() != "ppo":
        raise UserError(f'{source}: algo must be "ppo", which is what this program trains, but got "{value}".')
    return {}


def _policy(value: Any, source: Path) -> Flat:
    if value not in {"MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy"}:
        raise UserError(f'{source}: policy must be "MlpPolicy" or "MlpLstmPolicy", but got "{value}".')
    return {"memory": "lstm"} if value == "MlpLstmPolicy" else {}


def _learning_rate(value: Any, source: Path) -> Flat:
    """A number, or {"type": "linear", "initial_value": 3e-4}."""
    if not isinstance(value, Mapping):
        return {"learning_rate": value}
    if set(value) != {"type", "initial_value"}:
        raise UserError(f"{source}: learning_rate must be a number, or have type and initial_value, but got {value}.")
    return {"learning_rate": value["initial_value"], "learning_rate_schedule": value["type"]}


def _net_arch(value: Any, source: Path) -> Flat:
    """[64, 64], {"pi": [64, 64], "vf": [64, 64]}, or the latter in a list, as older versions have it."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]
    if not isinstance(value, Mapping):
        return {"hidden_sizes": value}
    if set(value) != {"pi", "vf"} or value["pi"] != value["vf"]:
        raise UserError(f"{source}: net_arch must give pi and vf the same layers, but got {dict(value)}.")
    return {"hidden_sizes": value["pi"]}


def _activation(value: Any, source: Path) -> Flat:
    """tanh, Tanh, nn.Tanh or torch.nn.Tanh."""
    return {"activation": str(value).rpartition(".")[2].lower()}


def _reward(value: Any, source: Path) -> Flat:
    """type, reward_scaling and kwargs; a reward that has no argument reward_scaling is multiplied by it."""
    read = _section("reward_config", {name: _same(name) for name in ("type", "reward_scaling", "kwargs")})
    found = read(value, source)
    if "type" not in found:
        raise UserError(f'{source}: reward_config needs a type, such as "fast_profit_reward".')
    name, arguments = str(found["type"]), dict(found.get("kwargs") or {})
    flat: Flat = {"reward": name}
    if (scaling := found.get("reward_scaling")) is not None:
        if "reward_scaling" in reward_parameters(name):
            _add(arguments, {"reward_scaling": scaling}, source)
        else:
            flat["reward_scale"] = scaling
    return {**flat, "reward_kwargs": arguments} if arguments else flat


def _fee(setting: str) -> Reader:
    """A cost as a fraction of the traded value, or one for each symbol, in basis points."""

    def read(value: Any, source: Path) -> Flat:
        costs = {*value} if isinstance(value, list) else {value}
        if len(costs) != 1:
            raise UserError(f"{source}: costs must be the same for all symbols, but got {value}.")
        return {setting: _number(setting, costs.pop(), source) * 10_000}

    return read


def _trade_limit(value: Any, source: Path) -> Flat:
    """A fraction, in spite of its name: 0.1 is 10 % of the equity."""
    fraction = _number("trade_limit_percent", value, source)
    if fraction > _WHOLE:
        raise UserError(
            f"{source}: trade_limit_percent of a portfolio_config is a fraction, where 0.1 means 10 %, but got {value}."
        )
    return {"trade_limit_percent": fraction * 100}


def _trade_mode(value: Any, source: Path) -> Flat:
    modes = {"cont": "trade", "continuous": "trade", "discrete": "buy_hold_sell"}
    if value not in modes:
        raise UserError(f'{source}: trade_mode must be "cont" or "discrete", but got "{value}".')
    return {"action_mode": modes[value]}


def _number(name: str, value: Any, source: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{source}: {name} must be a number, but got {value!r}.")
    return float(value)


def _portfolio(value: Any, source: Path) -> Flat:
    """The account: actions buy and sell, and nothing is sold short, unless the section says so."""
    flat = _section("portfolio_config", _PORTFOLIO)(value, source)
    return {"action_mode": "trade", "allow_short": False, **flat}


_POLICY_KWARGS: dict[str, Reader] = {
    "net_arch": _net_arch,
    "activation_fn": _activation,
    "ortho_init": _only("ortho_init", True),
}
_AGENT_KWARGS: dict[str, Reader] = {
    **{
        name: _same(name)
        for name in (
            "n_steps", "n_epochs", "gamma", "gae_lambda", "clip_range", "clip_range_vf", "ent_coef", "vf_coef",
            "max_grad_norm", "target_kl", "seed", "device",
        )
    },
    "policy": _policy,
    "learning_rate": _learning_rate,
    "batch_size": _same("minibatch_size"),
    "normalize_advantage": _same("normalize_advantages"),
    "policy_kwargs": _section("policy_kwargs", _POLICY_KWARGS),
    "use_sde": _only("use_sde", False),
    "sde_sample_freq": _only("sde_sample_freq", -1),
    "rollout_buffer_kwargs": _only("rollout_buffer_kwargs", None, {}),
}  # fmt: skip
_AGENT: dict[str, Reader] = {
    "algo": _algorithm,
    "total_timesteps": _same("total_timesteps"),
    "kwargs": _section("kwargs", _AGENT_KWARGS, ignored=_NOT_OUR_MATTER),
}
_PORTFOLIO: dict[str, Reader] = {
    "initial_cash": _same("initial_cash"),
    "maintain_history": lambda value, source: {},  # training keeps none, and an evaluation always does
    "buy_cost_pct": _fee("fee_bps"),
    "sell_cost_pct": _fee("sell_fee_bps"),
    "action_threshold": _same("action_threshold"),
    "trade_limit_percent": _trade_limit,
    "trade_mode": _trade_mode,
    "max_exposure": _same("max_gross"),
    "short_selling": _same("allow_short"),
    "max_positions": _only("max_positions", None),
    "turbulence_threshold": _only("turbulence_threshold", None),
}
_SECTIONS: dict[str, Reader] = {
    "algo": _AGENT["algo"],
    "kwargs": _AGENT["kwargs"],
    "agent_config": _section("agent_config", _AGENT),
    "reward_config": _reward,
    "portfolio_config": _portfolio,
    "stock_env": _section(
        "stock_env",
        {
            "reward_config": _reward,
            "portfolio_config": _portfolio,
            "lookback_window": _same("window"),
            "turbulence_threshold": _only("turbulence_threshold", None),
        },
    ),
    "feature_config": _section("feature_config", {"features": _same("features")}),
    "data_config": _section(
        "data_config",
        {"path": _same("data"), "symbols": _same("symbols"), "validation_split": _same("validation_fraction")},
    ),
}
