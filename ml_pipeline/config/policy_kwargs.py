"""The `policy_kwargs` of Stable-Baselines3's PPO as our settings, for files and for `PPOConfig(policy_kwargs=...)`."""

from collections.abc import Callable, Mapping
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.familiar_names import meant_setting
from ml_pipeline.config.settings import by_name

Flat = dict[str, Any]

_NATURE_CNN = "stable_baselines3.common.torch_layers:NatureCNN"


def policy_settings(kwargs: Mapping[Any, Any], source: str = "PPOConfig") -> Flat:
    """The settings, by name, that mean what these arguments mean there.

    Classes may be named: "my_extractors:Small" or "torch.nn.ReLU". source: the start of error messages.
    Raises UserError if an argument is unknown, or has no counterpart here.

    >>> policy_settings({"net_arch": {"pi": [64], "vf": [32]}, "activation_fn": "torch.nn.ReLU"})
    {'hidden_sizes': [64], 'value_hidden_sizes': [32], 'activation': 'relu'}
    >>> policy_settings({"features_extractor_class": "my_extractors:Small", "features_extractor_kwargs": {"width": 8}})
    {'network': 'my_extractors:Small', 'network_kwargs': {'width': 8}}
    """
    flat: Flat = {}
    for key, value in kwargs.items():
        if key not in _READERS:
            known = meant_setting(str(key), _READERS)
            raise UserError(f'{source}: unknown setting "{key}" in policy_kwargs. {known}')
        flat.update(_READERS[key](value, source))
    if flat.get("network") == _NATURE_CNN:  # their heads follow it directly
        flat.setdefault("hidden_sizes", [])
    return flat


def _net_arch(value: Any, source: str) -> Flat:
    """[64, 64], {"pi": [64, 64], "vf": [64, 64]}, or the latter in a list, as in older versions."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return {"hidden_sizes": value}
    if set(value) != {"pi", "vf"}:
        raise UserError(f"{source}: net_arch must give the layers of pi and of vf, but got {dict(value)}.")
    own = {} if value["pi"] == value["vf"] else {"value_hidden_sizes": value["vf"]}
    return {"hidden_sizes": value["pi"], **own}


def _activation(value: Any, _: str) -> Flat:
    """tanh, Tanh, nn.Tanh, torch.nn.Tanh, or the class itself."""
    name = getattr(value, "__name__", str(value)).rpartition(".")[2].lower()
    return {"activation": "leaky_relu" if name == "leakyrelu" else name}


def _extractor(value: Any, source: str) -> Flat:
    if callable(value):
        return {"network": by_name(value)}
    module, _, name = str(value).replace(":", ".").rpartition(".")
    if not module:
        raise UserError(
            f"{source}: features_extractor_class must name a class and its module, such as my_extractors:Small, but "
            f"got {value}."
        )
    return {"network": f"{module}:{name}"}


def _same(name: str) -> Callable[[Any, str], Flat]:
    return lambda value, _: {name: value}


_READERS: Mapping[str, Callable[[Any, str], Flat]] = {
    "net_arch": _net_arch,
    "activation_fn": _activation,
    "features_extractor_class": _extractor,
    "features_extractor_kwargs": lambda value, _: {"network_kwargs": value} if value else {},
    "share_features_extractor": _same("share_encoder"),
    "ortho_init": _same("ortho_init"),
    "log_std_init": _same("log_std_init"),
}
