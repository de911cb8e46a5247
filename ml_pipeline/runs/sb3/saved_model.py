"""Reads a model that PPO of Stable-Baselines3 2.x saved, and its VecNormalize, without running their pickles.

A model is a ZIP archive: "data" is JSON, in which everything that JSON cannot hold is a pickle; "policy.pth" and
"policy.optimizer.pth" are tensors, which torch loads with `weights_only`. `VecNormalize.save` writes a pickle.
"""

import base64
import binascii
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.preprocessing.normalization import EPSILON
from ml_pipeline.runs.sb3.arguments import SAME
from ml_pipeline.runtime.files import open_regular, read_regular, unpacked_bytes
from ml_pipeline.runtime.inert_pickle import Call, Name, as_array, as_dtype, read_inert

MLP, CNN, MULTI_INPUT = "MlpPolicy", "CnnPolicy", "MultiInputPolicy"
_POLICIES = {
    "stable_baselines3.common.policies.ActorCriticPolicy": MLP,
    "stable_baselines3.common.policies.ActorCriticCnnPolicy": CNN,
    "stable_baselines3.common.policies.MultiInputActorCriticPolicy": MULTI_INPUT,
}
_EXTRACTORS = {
    f"stable_baselines3.common.torch_layers.{name}" for name in ("FlattenExtractor", "NatureCNN", "CombinedExtractor")
}
_ACTIVATIONS = {
    "Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "GELU": "gelu", "SiLU": "silu", "LeakyReLU": "leaky_relu",
}  # fmt: skip
_ONLY_PPO = ("n_steps", "target_kl", "clip_range_vf", "clip_range", "use_sde", "sde_sample_freq")
_SETTINGS = {theirs: ours for ours, theirs in SAME.items()} | {name: name for name in _ONLY_PPO}
_SCHEDULED = ("learning_rate", "clip_range")
_PLAIN = bool | int | float | str | None
_MOST_UNPACKED = 20  # times the size of the file; weights cannot be packed that tightly
_MOST_BYTES = 200_000_000  # of a pickle of VecNormalize


@dataclass(frozen=True)
class SavedModel:
    """A model of PPO. weights, optimizer: by Stable-Baselines3's names; optimizer: None if it is not Adam.

    policy: MlpPolicy, CnnPolicy or MultiInputPolicy. observation_space, action_space: functions, because spaces may be
    unreadable; they raise UserError. settings: of `PPOConfig`, which have a readable value. extractor_kwargs: of its
    features extractor. shares_extractor: whether policy and value network share it. was_normalized: whether
    VecNormalize scaled its observations. unread: settings whose value is a function.
    """

    policy: str
    observation_space: Callable[[], spaces.Space]
    action_space: Callable[[], spaces.Space]
    settings: Mapping[str, Any]
    unread: tuple[str, ...]
    weights: Mapping[str, Tensor]
    optimizer: "AdamState | None"
    extractor_kwargs: Mapping[str, Any]
    shares_extractor: bool
    was_normalized: bool
    n_envs: int
    num_timesteps: int
    seed: int


@dataclass(frozen=True)
class AdamState:
    """Steps so far, and the moments of the gradient, by the names of the weights."""

    n_steps: int
    mean: Mapping[str, Tensor]
    square: Mapping[str, Tensor]


@dataclass(frozen=True)
class Moments:
    """Running mean and variance, float64 (size,), of `count` samples."""

    mean: np.ndarray
    variance: np.ndarray
    count: int

    def state_dict(self) -> dict[str, Any]:
        """The state of our `RunningMoments`."""
        return {"mean": self.mean.tolist(), "variance": self.variance.tolist(), "count": self.count}


@dataclass(frozen=True)
class SavedNormalization:
    """A VecNormalize. observations: moments by key of a Dict, or under None of a Box; None if not normalized.

    returns: None if rewards are not normalized.
    """

    observations: Mapping[str | None, Moments] | None
    returns: Moments | None
    clip_obs: float
    clip_reward: float
    gamma: float


def read_model(path: Path) -> SavedModel:
    """Read a model. Raises UserError if it is damaged, no model of PPO, or uses what has no counterpart here."""
    with _reading(path, "a model of Stable-Baselines3"), open_regular(path) as file:
        size = path.stat().st_size
        if unpacked_bytes(file) > _MOST_UNPACKED * size:
            raise UserError(f"it unpacks to more than {_MOST_UNPACKED} times its size")
        with zipfile.ZipFile(file) as archive:
            data = json.loads(archive.read("data"))
            weights = _tensors(archive.read("policy.pth"))
            optimizer = _tensors(archive.read("policy.optimizer.pth")) if _has_optimizer(archive) else None
        if not isinstance(data, dict) or not isinstance(weights, dict):
            raise ValueError("no model")
        return _model(data, weights, optimizer)


def read_normalization(path: Path) -> SavedNormalization:
    """Read the file of `VecNormalize.save`. Raises UserError if it is damaged or another kind of file."""
    with _reading(path, "a VecNormalize of Stable-Baselines3"):
        saved = read_inert(read_regular(path, most_bytes=_MOST_BYTES))
        if not isinstance(saved, Call) or not saved.name.endswith(".vec_normalize.VecNormalize"):
            raise UserError(f"it holds {_shown(saved)}")
        state = saved.state
        epsilon = float(_number(state["epsilon"]))
        observations = None
        if state["norm_obs"]:
            by_key: Mapping[Any, Any] | None = _entries(state["obs_rms"])
            if not by_key:
                by_key = {None: state["obs_rms"]}
            observations = {key: _moments(each, epsilon) for key, each in by_key.items()}
        returns = _moments(state["ret_rms"], epsilon) if state["norm_reward"] else None
        if returns is not None and len(returns.mean) != 1:
            raise UserError("its statistics of rewards are not one number")
        return SavedNormalization(
            observations=observations,
            returns=returns,
            clip_obs=float(_number(state["clip_obs"])),
            clip_reward=float(_number(state["clip_reward"])),
            gamma=float(_number(state["gamma"])),
        )


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Turn errors in the block, which reads a file that may hold anything, into one sentence."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path} cannot be imported: {str(error).rstrip('.')}.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # the exception depends on the bytes
        raise UserError(f"{path} is not {kind}, or is damaged or cut short.") from error


def _has_optimizer(archive: zipfile.ZipFile) -> bool:
    return "policy.optimizer.pth" in archive.namelist()


def _tensors(saved: bytes) -> Any:
    if unpacked_bytes(BytesIO(saved)) > len(saved):  # torch does not compress
        raise UserError("its weights unpack to more than their size")
    return torch.load(BytesIO(saved), map_location="cpu", weights_only=True)


def _is_usable(tensor: Any) -> bool:
    """Whether it is a tensor of finite numbers.

    Raises UserError if it is larger than what is saved of it, as an expanded tensor is, or if it has no numbers.
    """
    if not isinstance(tensor, Tensor):
        return False
    if not 0 < tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes():
        raise UserError("it has weights of another size than their numbers")
    return bool(tensor.isfinite().all())


def _model(data: Mapping[str, Any], weights: Mapping[str, Any], optimizer: Any) -> SavedModel:
    named = _value(data["policy_class"])
    if "clip_range" not in data or "n_epochs" not in data:
        raise UserError("it is of another algorithm than PPO, and only PPO can be imported")
    policy = _POLICIES.get(named.name) if isinstance(named, Name) else None
    if policy is None:
        raise UserError(f"its policy is {_shown(named)}, and only {MLP}, {CNN} and {MULTI_INPUT} can be imported")
    kwargs = _value(data["policy_kwargs"])
    _check_policy(kwargs)
    settings, unread = _settings(data)
    activation = kwargs.get("activation_fn", Name("Tanh"))
    settings["activation"] = _ACTIVATIONS.get(_shown(activation).rpartition(".")[2])
    if settings["activation"] is None:
        raise UserError(f"its activation_fn is {_shown(activation)}, and known are {', '.join(_ACTIVATIONS)}")
    if not all(map(_is_usable, weights.values())):
        raise UserError("its weights are not all finite numbers")
    return SavedModel(
        policy=policy,
        observation_space=lambda: _read_space(data["observation_space"]),
        action_space=lambda: _read_space(data["action_space"]),
        settings=settings,
        unread=unread,
        weights={name: each.float() for name, each in weights.items()},
        optimizer=_adam(weights, optimizer, shares=kwargs.get("share_features_extractor", True)),
        extractor_kwargs=dict(kwargs.get("features_extractor_kwargs") or {}),
        shares_extractor=bool(kwargs.get("share_features_extractor", True)),
        was_normalized=_was_normalized(data),
        n_envs=int(_number(data["n_envs"])),
        num_timesteps=int(_number(data["num_timesteps"])),
        seed=int(_number(data["seed"]) or 0),
    )


def _check_policy(kwargs: Any) -> None:
    """Raise UserError about the first argument of the policy that changes what it computes and has no counterpart."""
    if not isinstance(kwargs, dict):
        raise UserError(f"its policy_kwargs are {_shown(kwargs)}")
    extractor = kwargs.get("features_extractor_class")
    if extractor is not None and _shown(extractor) not in _EXTRACTORS:
        raise UserError(f"its features_extractor_class is {_shown(extractor)}, a network of its own")
    for name, usual in (("squash_output", False), ("normalize_images", True), ("full_std", True), ("use_expln", False)):
        if kwargs.get(name, usual) != usual:
            raise UserError(f"its policy has {name}={_shown(kwargs[name])}, which is not supported")
    own = kwargs.get("features_extractor_kwargs") or {}
    if not isinstance(own, dict) or not all(isinstance(each, _PLAIN) for each in own.values()):
        raise UserError("its features_extractor_kwargs are not all numbers or texts")


def _settings(data: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings of `PPOConfig` with a readable value, and the names of the others."""
    found: dict[str, Any] = {}
    unread = []
    for theirs, ours in _SETTINGS.items():
        try:
            value = _value(data[theirs])
            if theirs in _SCHEDULED:
                found[ours], found[f"{ours}_schedule"] = _scheduled(value)
            elif theirs == "clip_range_vf" and value is not None:
                found[ours] = _constant(value)
            else:
                found[ours] = _number(value)
        except UserError:
            unread.append(ours)
    return found, tuple(unread)


def _scheduled(value: Any) -> tuple[float, str]:
    """The first value and the schedule of a setting. Raises UserError if it follows another function."""
    if not isinstance(value, Call) or value.name.startswith("numpy."):
        return float(_number(value)), "constant"
    state, kind = value.state, value.name.rpartition(".")[2]
    if kind == "FloatSchedule":
        return _scheduled(state["value_schedule"])
    if kind == "ConstantSchedule":
        return float(_number(state["val"])), "constant"
    if kind == "LinearSchedule" and _number(state["end"]) == 0 and _number(state["end_fraction"]) == 1:
        return float(_number(state["start"])), "linear"
    raise UserError(f"{kind} is no schedule of Stable-Baselines3")


def _constant(value: Any) -> float:
    number, schedule = _scheduled(value)
    if schedule != "constant":
        raise UserError(f"it has a {schedule} schedule in the place of a constant")
    return number


def _adam(weights: Mapping[str, Tensor], saved: Any, *, shares: bool) -> AdamState | None:
    """The state of Adam; None if there is none, if it does not fit the weights, or if the optimizer is another one."""
    again = ("pi_features_extractor.", *(["vf_features_extractor."] if shares else []))
    names = [name for name in weights if not name.startswith(again)]  # torch lists shared weights several times
    states = saved["state"] if isinstance(saved, dict) else {}
    if {*states} != {*range(len(names))} or any(
        {*each} != {"step", "exp_avg", "exp_avg_sq"} for each in states.values()
    ):
        return None
    mean, square = ({name: states[i][key] for i, name in enumerate(names)} for key in ("exp_avg", "exp_avg_sq"))
    n_steps = int(states[0]["step"])
    fits = all(
        _is_usable(each) and each.shape == weights[name].shape
        for moments in (mean, square)
        for name, each in moments.items()
    )
    if not fits or n_steps < 1 or any((each < 0).any() for each in square.values()):
        return None
    mean, square = ({name: each.float() for name, each in moments.items()} for moments in (mean, square))
    return AdamState(n_steps, mean, square)


def _was_normalized(data: Mapping[str, Any]) -> bool:
    """Whether the last observations differ from those of the environments."""
    seen, original = (_value(data.get(name)) for name in ("_last_obs", "_last_original_obs"))
    if seen is None or original is None:
        return False
    pairs = [(seen, original)]
    if (parts := _entries(seen)) is not None:
        pairs = [(each, (_entries(original) or {})[key]) for key, each in parts.items()]
    return any(not np.array_equal(as_array(each), as_array(other)) for each, other in pairs)


def _moments(saved: Any, epsilon: float) -> Moments:
    """Statistics that scale, with our epsilon, as the saved ones do with theirs."""
    mean, variance = (as_array(saved.state[name]).astype(np.float64).ravel() for name in ("mean", "var"))
    if not (np.isfinite(mean).all() and np.isfinite(variance).all()):
        raise UserError("its statistics are not all finite numbers")
    if len(mean) != len(variance):
        raise UserError("its means and variances differ in number")
    return Moments(mean, np.maximum(variance + (epsilon - EPSILON), 0.0), round(_number(saved.state["count"])))


def _read_space(entry: Any) -> spaces.Space:
    try:
        return _space(_value(entry))
    except UserError:
        raise
    except Exception as error:  # the exception depends on the bytes
        raise UserError("its spaces cannot be read") from error


def _space(described: Any) -> spaces.Space:
    """The space that a pickle describes. Raises UserError if it is of another kind, or does not start at 0."""
    kind, state = _shown(described), described.state
    if not kind.startswith("gymnasium.spaces."):
        raise UserError(f"{kind} is no space of Gymnasium's own")
    name = kind.rpartition(".")[2]
    if np.any(as_array(state.get("start", 0))):
        raise UserError("a space starts at another number than 0, which Stable-Baselines3 does not add to actions")
    if name == "Box":
        low, high = as_array(state["low"]), as_array(state["high"])
        return spaces.Box(low, high, dtype=as_dtype(state["dtype"]).type)
    if name == "Discrete":
        return spaces.Discrete(int(_number(state["n"])))
    if name == "MultiDiscrete":
        return spaces.MultiDiscrete(as_array(state["nvec"]))
    if name == "MultiBinary":
        return spaces.MultiBinary(state["n"] if isinstance(state["n"], int) else [int(n) for n in state["n"]])
    if name == "Dict":
        return spaces.Dict([(key, _space(part)) for key, part in (_entries(state["spaces"]) or {}).items()])
    raise UserError(f"{kind} is no space that can be imported")


def _value(entry: Any) -> Any:
    """An entry of the JSON: the value itself, or what its pickle describes."""
    if not isinstance(entry, dict) or ":serialized:" not in entry:
        return entry
    try:
        return read_inert(base64.b64decode(entry[":serialized:"], validate=True))
    except binascii.Error as error:
        raise UserError("a pickle in it is damaged") from error


def _entries(value: Any) -> Mapping[str, Any] | None:
    """The entries of a dict or an OrderedDict; None for anything else."""
    if isinstance(value, Call) and value.name == "collections.OrderedDict":
        return value.entries
    return value if isinstance(value, dict) else None


def _number(value: Any) -> Any:
    """A number, a truth value or None, also from NumPy."""
    value = as_array(value).item() if isinstance(value, Call) else value
    if value is not None and not isinstance(value, bool | int | float):
        raise UserError(f"it has {_shown(value)} in the place of a number")
    return value


def _shown(value: Any) -> str:
    """A number, what a pickle names, or the type of anything else, because the text of nested values can be endless."""
    if isinstance(value, bool | int | float):
        return shorten(repr(value), 100)
    name = value.name if isinstance(value, Name | Call) else type(value).__name__
    if isinstance(value, Call) and name.endswith("._make_skeleton_class") and isinstance(value.args[1], str):
        name = value.args[1]  # a class of a script, pickled as a whole
    return shorten(ascii(name)[1:-1], 100)  # it may hold anything
