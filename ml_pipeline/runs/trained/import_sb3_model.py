"""Turns a saved model of Stable-Baselines3's PPO into a run folder: weights, Adam's state, normalization and settings.

The run acts as the model does, and trains on with `--resume` or `--init-from`.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.image_encoder import N_FEATURES
from ml_pipeline.models.rl.policies.policy import Policy, check_space
from ml_pipeline.models.rl.preprocessing.normalization import EPSILON
from ml_pipeline.models.rl.preprocessing.observations import ObservationLayout, channels_last, observation_layout
from ml_pipeline.models.rl.preprocessing.spaces import action_fitter, flat_size, leaves_of, space_name
from ml_pipeline.runs.checkpoint import save_checkpoint, settings_kept
from ml_pipeline.runs.folder import BEST_CHECKPOINT, LATEST_CHECKPOINT, make_new_folder
from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.recording import write_settings
from ml_pipeline.runs.sb3.saved_model import (
    CNN,
    MULTI_INPUT,
    Moments,
    SavedModel,
    SavedNormalization,
    read_model,
    read_normalization,
)
from ml_pipeline.runs.train_config import TrainConfig, train_config
from ml_pipeline.runs.trained.configs import ImportConfig

_NO_ENV = "given-by-env-id-of-import-sb3"
_MOST_TRANSITIONS = 100_000_000  # of a rollout
_EXTRACTORS = "stable_baselines3.common.torch_layers"
_EXTRACTOR, _OF_VALUE = "features_extractor.", "vf_features_extractor."


@dataclass(frozen=True)
class Imported:
    """The new run folder. notices: sentences about what differs from the model."""

    folder: Path
    notices: tuple[str, ...]


def import_model(config: ImportConfig) -> Imported:
    """Read the model, and write its run folder.

    Raises UserError, and writes nothing, if a file is unusable, if the model uses what has no counterpart here, or if
    it does not fit the environment.
    """
    model = read_model(config.model)
    normalization = None if config.vecnormalize is None else read_normalization(config.vecnormalize)
    if normalization is None and model.was_normalized:
        raise UserError(
            f"{config.model} was trained with VecNormalize, whose statistics it does not hold; name the file of its "
            "save() with --vecnormalize."
        )
    try:
        observation_space, action_space = _spaces(model, config)
        settings = train_config({**_settings(model, normalization, observation_space), **config.of_environment})
        _check_head(model, action_space)
        policy = Policy(observation_space, action_space, settings.ppo, seed=settings.run.seed)
        trainer = _trainer(model, normalization, policy, settings)
    except UserError as error:
        raise UserError(f"{config.model} cannot be imported: {str(error).rstrip('.')}.") from error
    except MemoryError as error:
        raise UserError(f"{config.model} cannot be imported: its rollouts or layers need too much memory.") from error
    return Imported(_written(config, settings, trainer), tuple(_notices(model, normalization, config)))


def _spaces(model: SavedModel, config: ImportConfig) -> tuple[spaces.Space, spaces.Space]:
    """The spaces of the environment, which the model must fit, or without one those of the model."""
    if config.env_id is None:
        try:
            return model.observation_space(), model.action_space()
        except UserError as error:
            raise UserError(f"{str(error).rstrip('.')}; name its environment with --env-id") from error
    task = GymTask.of(train_config(config.of_environment).run)
    with closing(task.evaluation_env()) as env:
        found = env.observation_space, env.action_space
    try:
        saved = model.observation_space(), model.action_space()
    except UserError:
        return found  # the weights are compared in any case
    check_space("observations", of_policy=saved[0], of_envs=_channels_first(found[0]))
    check_space("actions", of_policy=saved[1], of_envs=found[1])
    return found


def _settings(
    model: SavedModel, normalization: SavedNormalization | None, observation_space: spaces.Space
) -> dict[str, Any]:
    """The settings of the run. Raises UserError if the network has no counterpart here."""
    extractor = _extractor(model, observation_space)
    sizes = {}
    for name in ("policy", "value"):
        layers = _linear_layers(model.weights, f"mlp_extractor.{name}_net")
        sizes[name] = tuple(len(layer) for layer in layers)
        if any(layer.shape[1] != len(before) for before, layer in pairwise(layers)):
            raise UserError(f"its weights mlp_extractor.{name}_net do not fit each other")
        if layers and extractor is None and model.policy != CNN:
            width = sum(flat_size(part) for part in leaves_of(observation_space))
            if layers[0].shape[1] != width:
                raise UserError(f"its weights are for {layers[0].shape[1]} inputs, but its observations have {width}")
    n_steps = model.settings.get("n_steps") or PPOConfig.n_steps
    if model.n_envs * n_steps > _MOST_TRANSITIONS:
        raise UserError(f"its rollouts have more than {_MOST_TRANSITIONS:,} transitions")
    settings = {
        **model.settings,
        "hidden_sizes": sizes["policy"],
        "value_hidden_sizes": None if sizes["value"] == sizes["policy"] else sizes["value"],
        "share_encoder": model.shares_extractor or (model.policy != CNN and extractor is None),
        **({} if extractor is None else {"network": extractor, "network_kwargs": model.extractor_kwargs}),
        "normalize_obs": normalization is not None and normalization.observations is not None,
        "normalize_rewards": normalization is not None and normalization.returns is not None,
        "n_envs": model.n_envs,
        "seed": model.seed,
        "total_timesteps": max(1, model.num_timesteps),
        "env_id": _NO_ENV,
    }
    if settings["normalize_obs"]:
        assert normalization is not None
        settings["clip_obs"] = normalization.clip_obs
    if isinstance(batch := settings.get("minibatch_size"), int):  # Stable-Baselines3 shortens it as well
        settings["minibatch_size"] = min(batch, model.n_envs * n_steps)
    return settings


def _check_head(model: SavedModel, action_space: spaces.Space) -> None:
    """Raise UserError if the last layer does not fit, before a layer for that many actions is made."""
    action_fitter(action_space)  # raises for other kinds of spaces
    layers = _linear_layers(model.weights, "mlp_extractor.policy_net")
    head = model.weights.get("action_net.weight")
    shape = () if head is None else tuple(head.shape)
    expected = (spaces.flatdim(action_space), *((len(layers[-1]),) if layers else shape[1:]))
    if shape != expected:
        raise UserError(f"its weights action_net.weight have the shape {shape}, but its actions need {expected}")


def _extractor(model: SavedModel, observation_space: spaces.Space) -> str | None:
    """The extractor of Stable-Baselines3 that becomes the user's own network; None if a network of ours is the same.

    Raises UserError if neither fits the observations.
    """
    layout = observation_layout(observation_space)
    if layout.mask is not None:
        raise UserError("its observations have an action_mask, which is an ordinary part of them there")
    sizes = {len(weight) for weight in model.weights.values() if weight.ndim}
    if any(isinstance(size, int) and size > 1 and size not in sizes for size in model.extractor_kwargs.values()):
        raise UserError("its features_extractor_kwargs do not fit its weights")
    has_images = any(map(_is_image, leaves_of(observation_space)))
    if model.policy == MULTI_INPUT and has_images:
        return f"{_EXTRACTORS}:CombinedExtractor"
    if model.policy == CNN and has_images:
        is_ours = layout.is_images_alone and model.extractor_kwargs.get("features_dim", N_FEATURES) == N_FEATURES
        return None if is_ours else f"{_EXTRACTORS}:NatureCNN"
    if has_images or model.policy == CNN:
        raise UserError(f"{model.policy} cannot be imported for observations in {space_name(observation_space)}")
    return None


def _is_image(part: spaces.Space) -> bool:
    """Whether Stable-Baselines3 takes this part of an observation for an image."""
    if not isinstance(part, spaces.Box) or part.dtype != np.uint8 or len(part.shape) != 3:
        return False
    return not part.low.any() and bool((part.high == 255).all())


def _channels_first(space: spaces.Space) -> spaces.Space:
    """The space as a model keeps it: with the channels of images in front."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, _channels_first(part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Box) and _is_image(space) and channels_last(space.shape):
        return spaces.Box(space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=np.uint8)
    return space


def _trainer(
    model: SavedModel, normalization: SavedNormalization | None, policy: Policy, settings: TrainConfig
) -> dict[str, Any]:
    """The state of a trainer that goes on from the model."""
    load = policy.network.state_dict()
    converted = _converted(model.weights, policy)
    for name, weight in converted.items():
        if name not in load or load.pop(name).shape != weight.shape:
            shown, shape = ascii(name)[1:-1][:100], tuple(weight.shape)
            raise UserError(f"its weights {shown} have the shape {shape}, which does not fit its spaces")
    if load:
        raise UserError(f"it lacks the weights {', '.join(load)}")
    policy.network.load_state_dict(converted)
    envs = _SpacesAlone(policy.observation_space, policy.action_space, settings.run.n_envs)
    with PPOTrainer(envs, settings.ppo, total_timesteps=settings.timesteps, policy=policy) as trainer:
        state = trainer.state_dict()
    collector = state["collector"]
    collector["global_step"] = model.num_timesteps
    state["iteration"] = model.num_timesteps // (settings.run.n_envs * settings.ppo.n_steps)
    state["environments_missing"] = "the run was imported from Stable-Baselines3, which does not save them."
    if model.optimizer is not None:
        names = {id(parameter): name for name, parameter in policy.network.named_parameters()}
        order = [names[id(parameter)] for parameter in policy.network.parameter_order()]
        state["update"]["optimizer"] = {
            "n_steps": model.optimizer.n_steps,
            **{
                name: torch.cat([converted[each].reshape(-1) for each in order])
                for name in ("mean", "square")
                for converted in [_converted(getattr(model.optimizer, name), policy)]
            },
        }
    if normalization is not None:
        if normalization.observations is not None:
            moments = _of_columns(normalization, policy.observation_space)
            state["policy"]["normalizer"] = moments.state_dict()
        if normalization.returns is not None:
            collector["reward_scaler"]["moments"] = normalization.returns.state_dict()
    return state


def _converted(theirs: Mapping[str, Tensor], policy: Policy) -> dict[str, Tensor]:
    """Weights, or one number for each of them, under the names and in the layout of our network.

    Raises UserError if there are weights that our network does not have.
    """
    left = {name: each for name, each in theirs.items() if not name.startswith(f"pi_{_EXTRACTOR}")}
    towers = [(name, len(_linear_layers(theirs, f"mlp_extractor.{name}_net"))) for name in ("policy", "value")]
    names = {"log_std": "distribution.log_std"} if "log_std" in theirs else {}
    network: Any = policy.network
    is_plain = isinstance(network, ActorCritic)
    has_own = not is_plain and network.user_network is not None
    for i, (name, n_layers) in enumerate(towers):
        inner, head = ("actor", "action_net") if i == 0 else ("critic", "value_net")
        hidden, last = (inner, f"{inner}.{2 * n_layers}") if is_plain else (f"towers.{i}.hidden", f"{inner}_head.0")
        for kind in ("weight", "bias"):
            names[f"{head}.{kind}"] = f"{last}.{kind}"
            for k in range(0, 2 * n_layers, 2):
                names[f"mlp_extractor.{name}_net.{k}.{kind}"] = f"{hidden}.{k}.{kind}"
    for i, prefix in enumerate((_EXTRACTOR, _OF_VALUE)):
        if i and (is_plain or len(network.inputs) == 1):
            left = {name: each for name, each in left.items() if not name.startswith(prefix)}
        elif has_own:
            of_module = [name.removeprefix(prefix) for name in left if name.startswith(prefix)]
            names.update({prefix + name: f"inputs.{i}.module.{name}" for name in of_module})
        elif not is_plain:
            encoder = f"inputs.{i}.encoders.0"
            for kind in ("weight", "bias"):
                names[f"{prefix}linear.0.{kind}"] = f"{encoder}.last.{kind}"
                names.update({f"{prefix}cnn.{2 * k}.{kind}": f"{encoder}.convolutions.{k}.{kind}" for k in range(3)})
    unknown = [name for name in left if name not in names]
    if unknown:
        raise UserError(
            f"it has the weights {ascii(unknown[0])[1:-1][:100]}, of a network of its own or an extension of PPO"
        )
    layout = policy.observations.layout
    return {names[name]: each if has_own else _in_our_order(name, each, layout) for name, each in left.items()}


def _in_our_order(name: str, weights: Tensor, layout: ObservationLayout) -> Tensor:
    """The layer behind the convolutions reads (height, width, channel) here, and (channel, height, width) there."""
    if not name.endswith("features_extractor.linear.0.weight"):
        return weights
    _, *sides = layout.images[0].shape
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        sides = [(side - kernel) // stride + 1 for side in sides]
    if weights.shape[1:] != (64 * prod(sides),):
        return weights  # its shape will be refused
    return weights.unflatten(1, (64, *sides)).permute(0, 2, 3, 1).flatten(1)


def _linear_layers(weights: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    """The weights (units, inputs) of the hidden layers, in order."""
    layers: list[Tensor] = []
    while (weight := weights.get(f"{prefix}.{2 * len(layers)}.weight")) is not None and weight.ndim == 2:
        layers.append(weight)
    return layers


def _of_columns(normalization: SavedNormalization, space: spaces.Space) -> Moments:
    """The moments of all columns of the encoded observations."""
    known = normalization.observations
    assert known is not None
    parts_of = space.spaces.items() if isinstance(space, spaces.Dict) else [(None, space)]
    by_key: dict[str | None, spaces.Space] = {key: part for key, part in parts_of if not _is_image(part)}
    if not {*known} <= {*by_key}:
        raise UserError(f"its VecNormalize is of other observations than those in {space_name(space)}")
    count = max((each.count for each in known.values()), default=0)
    parts = []
    for key, part in by_key.items():
        size = flat_size(part)
        found = known.get(key)
        if found is None:  # shift 0 and scale 1
            if isinstance(part, spaces.Box) and np.abs([part.low, part.high]).max() > normalization.clip_obs:
                raise UserError(
                    f"VecNormalize leaves out {ascii(key)[:100]} (norm_obs_keys), which may exceed clip_obs; here all "
                    "are clipped"
                )
            found = Moments(np.zeros(size), np.full(size, 1.0 - EPSILON), count)
        elif len(found.mean) != size:
            raise UserError(f"its VecNormalize has {len(found.mean)} columns in the place of {size}")
        parts.append(found)
    return Moments(
        np.concatenate([each.mean for each in parts]), np.concatenate([each.variance for each in parts]), count
    )


class _SpacesAlone(VectorEnv):
    """Environments with spaces and no behavior, for a trainer that only saves."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, num_envs: int) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space


def _written(config: ImportConfig, settings: TrainConfig, trainer: Mapping[str, Any]) -> Path:
    """Write the run folder and return it."""
    given = config.checkpoint_dir
    folder = make_new_folder(config.model.stem) if given is None else given.expanduser().absolute()
    claim = FolderClaim(folder, made=given is None)
    try:
        if (folder / LATEST_CHECKPOINT).exists():
            raise UserError(f"{folder} already holds a run; choose another folder.")
        state = {
            "trainer": trainer,
            "task": {},
            "config": settings_kept(settings),
            "n_envs": settings.run.n_envs,
            "plateau": None,
            "ended_early": False,
            "best_score": -np.inf,
            "unscored": False,
        }
        for name in (BEST_CHECKPOINT, LATEST_CHECKPOINT):
            save_checkpoint(folder / name, state)
        write_settings(folder, settings)
        step, iterations = trainer["collector"]["global_step"], trainer["iteration"]
        claim.end(
            "finished", f"Imported from {config.model.name}.", global_step=step, iterations=iterations, best_score=None
        )
        claim.release()
    except BaseException:
        claim.abandon()
        raise
    return folder


def _notices(model: SavedModel, normalization: SavedNormalization | None, config: ImportConfig) -> Iterator[str]:
    if config.env_id is None:
        yield (
            "Without --env-id, load_policy and --init-from can use the run; to evaluate, show, export or resume it, "
            "import it again with --env-id."
        )
    for name in model.unread:
        yield f"{name} is a function, which is not read; the run has the default, so give {flag_of(name)} to train on."
    if model.optimizer is None:
        yield "The model has no usable state of Adam, so training on starts with a new one."
    if normalization is not None and normalization.returns is not None:
        gamma = model.settings.get("gamma", PPOConfig.gamma)
        if normalization.clip_reward != 10.0 or normalization.gamma != gamma:
            yield (
                f"VecNormalize scales rewards with gamma {normalization.gamma:g} and clip_reward "
                f"{normalization.clip_reward:g}; training on here uses gamma {gamma:g} and 10."
            )
