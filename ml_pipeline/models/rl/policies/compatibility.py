"""What a saved policy, the policy that loads it, and the environments that it acts in must have in common."""

from collections.abc import Mapping

from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.preprocessing.observation_layout import observation_layout

_ENCODERS = "encoders of images"
"""A trait of policies that see images; those of versions before it read them in another order of points."""


def traits_of(observation_space: spaces.Space, action_space: spaces.Space, config: PPOConfig) -> dict[str, str]:
    """The traits of a policy by name; a checkpoint holds them, and a policy with others cannot load it."""
    sizes = str(list(config.hidden_sizes))
    if config.value_hidden_sizes not in (None, config.hidden_sizes):
        sizes += f" and of the value network {list(config.value_hidden_sizes)}"
    normalization = _on_or_off(config.normalize_obs)
    if config.clip_obs != PPOConfig.clip_obs:
        normalization += f", clipped to {config.clip_obs:g}"
    encoders = {} if not observation_layout(observation_space).images else {_ENCODERS: _encoders(config)}
    return {
        "observation space": _describe(observation_space),
        "action space": _describe(action_space),
        "hidden sizes": sizes,
        "activation": config.activation,
        "observation normalization": normalization,
        "value normalization": _on_or_off(config.normalize_values),
        "squashing of actions": _on_or_off(config.squash_actions),
        "sharing of layers": _on_or_off(config.share_layers),
        "memory": "none" if config.memory == "none" else f"{config.memory} of {config.memory_size}",
        **encoders,
    }


def check_traits(saved: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise UserError at the first trait in which a saved policy differs from the one that loads it."""
    for trait, ours in here.items():  # spaces come first: other ones are told before what follows from them
        if trait == _ENCODERS and trait not in saved:
            raise UserError(
                "The saved policy reads images by a network of an earlier version of this package, which this version "
                "does not have; train it anew, or load it with that version."
            )
        if saved[trait] != ours:
            raise UserError(
                f"The saved policy has {trait} {saved[trait]}, but here it is {ours}; load it where that is the same."
            )


def check_space(what: str, *, of_policy: spaces.Space, of_envs: spaces.Space) -> None:
    """Raise UserError if a policy was made for another space than that of a single environment; what: its name."""
    if _describe(of_envs) != _describe(of_policy):
        raise UserError(
            f"The policy was made for {what} {of_policy}, but those of the environments are {of_envs}; make it anew "
            "for their spaces."
        )


def _encoders(config: PPOConfig) -> str:
    return "one for both networks" if config.share_encoder or config.share_layers else "one per network"


def _on_or_off(value: bool) -> str:
    return "on" if value else "off"


def _describe(space: spaces.Space) -> str:
    """Kind and shape, without bounds: a Box whose bounds moved still fits."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    return str(space)
