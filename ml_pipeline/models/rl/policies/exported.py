"""A policy as one torch module: encode, normalize, choose the most likely action, fit it to the action space.

It computes what `Policy.act` computes, with operations that torch can export. N observations, K columns.
"""

import copy
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.observations import ObservationPreprocessor
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace

_DTYPES = {
    np.dtype(name): getattr(torch, name) for name in ("float32", "float64", "uint8", "int8", "int16", "int32", "int64")
}


class Port(NamedTuple):
    """An input or an output: its name, and the space of each of its N rows."""

    name: str
    space: spaces.Space

    @property
    def shape(self) -> tuple[int, ...]:
        return self.space.shape or ()

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.space.dtype)


def ports_of(space: spaces.Space, name: str) -> list[Port]:
    """The parts of a space of a single environment, in encoding order; a part of a Dict is called name.key.

    >>> [port.name for port in ports_of(spaces.Dict(b=spaces.Discrete(2), a=spaces.Discrete(3)), "action")]
    ['action.b', 'action.a']
    >>> [port.name for port in ports_of(spaces.Discrete(2), "action")]
    ['action']
    """
    if isinstance(space, spaces.Dict):
        return [port for key, part in space.spaces.items() for port in ports_of(part, f"{name}.{key}")]
    if isinstance(space, spaces.Tuple):
        return [port for key, part in enumerate(space.spaces) for port in ports_of(part, f"{name}.{key}")]
    return [Port(name, space)]


class PortablePolicy(nn.Module):
    """Takes the parts of observations; returns the parts of the most likely actions, then the distribution parameters.

    A recurrent policy also takes its state as the last input, float32 (N, state_size), which is 0 at the start of an
    episode, and returns the next state as the last output.
    """

    def __init__(self, policy: Policy) -> None:
        """Copy the weights and statistics of the policy. Raises UnsupportedSpace for dtypes that cannot be exported."""
        super().__init__()
        self.observations = ports_of(policy.observation_space, "observation")
        self.actions = ports_of(policy.action_space, "action")
        for port in (*self.observations, *self.actions):
            _check_dtype(port)
        network = copy.deepcopy(policy.network).cpu().requires_grad_(False)
        if isinstance(network, ActorCritic):
            self._actor: nn.Module = network.actor
            self.state_size = 0
        else:
            network.drop_critic()
            self._actor, self.state_size = network, network.actor_state_size
        self._encoders = [_Encoder(port.space) for port in self.observations]
        self._heads = [_Head(port.space, policy.squashes_actions) for port in self.actions]
        self._of_heads = nn.ModuleList(self._heads)
        self._normalizer = _Normalizer(policy.observations) if policy.observations.normalizer else None

    @property
    def input_names(self) -> list[str]:
        return [*(port.name for port in self.observations), *(["state"] if self.state_size else [])]

    @property
    def output_names(self) -> list[str]:
        names = [*(port.name for port in self.actions), "parameters"]
        return [*names, "next_state"] if self.state_size else names

    def example_inputs(self, n: int) -> tuple[Tensor, ...]:
        """Random inputs with n rows."""
        inputs = [
            torch.from_numpy(np.stack([np.asarray(port.space.sample(), port.dtype) for _ in range(n)]))
            for port in self.observations
        ]
        return (*inputs, torch.zeros(n, self.state_size)) if self.state_size else tuple(inputs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        observations, state = (inputs[:-1], inputs[-1]) if self.state_size else (inputs, None)
        encoded = torch.cat([encode(part) for encode, part in zip(self._encoders, observations, strict=True)], dim=1)
        normalized = encoded if self._normalizer is None else self._normalizer(encoded)
        carried: tuple[Tensor, ...] = ()
        if state is not None:
            parameters, next_state = self._actor.actor_step(normalized, state)  # type: ignore[operator]
            carried = (next_state,)
        elif hasattr(self._actor, "parameters_of"):
            parameters = self._actor.parameters_of(normalized)  # type: ignore[operator]
        else:
            parameters = self._actor(normalized)
        sizes = [head.num_parameters for head in self._heads]
        parts = parameters[:, : sum(sizes)].split(sizes, dim=1)  # features follow if noise depends on the state
        actions = [head(part) for head, part in zip(self._heads, parts, strict=True)]
        return (*actions, parameters, *carried)


class _Encoder:
    """Encodes one part of an observation, (N, ...), as float32 (N, K), as `observation_encoder` does."""

    def __init__(self, space: spaces.Space) -> None:
        self._size = math.prod(space.shape or ())
        self._choices: list[tuple[int, int]] | None = None  # number of choices, and the first one
        if isinstance(space, spaces.Discrete):
            self._choices = [(int(space.n), int(space.start))]
        elif isinstance(space, spaces.MultiDiscrete):
            pairs = zip(space.nvec.ravel(), space.start.ravel(), strict=True)
            self._choices = [(int(n), int(start)) for n, start in pairs]

    def __call__(self, part: Tensor) -> Tensor:
        if self._choices is None:
            return part.reshape(-1, self._size).float()
        columns = part.reshape(-1, self._size).long()
        one_hot = [F.one_hot(columns[:, i] - start, n) for i, (n, start) in enumerate(self._choices)]
        return torch.cat(one_hot, dim=1).float()


class _Normalizer(nn.Module):
    """`ObservationNormalizer` for all columns; columns without normalization have shift 0 and scale 1."""

    shift: Tensor
    scale: Tensor
    bound: Tensor

    def __init__(self, observations: ObservationPreprocessor) -> None:
        super().__init__()
        assert observations.normalizer is not None
        shift, scale, bound = observations.normalizer.of_columns(observations.size)
        for name, values in {"shift": shift, "scale": scale, "bound": bound}.items():
            self.register_buffer(name, torch.from_numpy(values))

    def forward(self, encoded: Tensor) -> Tensor:
        scaled = (encoded - self.shift) * self.scale
        return torch.maximum(torch.minimum(scaled, self.bound), -self.bound)


class _Head(nn.Module):
    """From distribution parameters, (N, P), to the most likely value of one part of an action, in its shape."""

    first: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, space: spaces.Space, squash: bool) -> None:
        super().__init__()
        self._shape = space.shape or ()
        self._dtype = _DTYPES[np.dtype(space.dtype)]
        self._squash = squash
        self._choices: list[int] = []
        self._kind = type(space)
        if isinstance(space, spaces.Discrete):
            self._choices = [int(space.n)]
        elif isinstance(space, spaces.MultiDiscrete):
            self._choices = [int(n) for n in space.nvec.ravel()]
        if self._choices:
            self.register_buffer("first", torch.as_tensor(np.asarray(space.start)))  # type: ignore[attr-defined]
        if isinstance(space, spaces.Box):
            self.register_buffer("low", torch.from_numpy(np.array(space.low)))
            self.register_buffer("high", torch.from_numpy(np.array(space.high)))
        self.num_parameters = sum(self._choices) or math.prod(self._shape)

    def forward(self, parameters: Tensor) -> Tensor:
        if self._choices:
            logits = parameters.split(self._choices, dim=1)
            chosen = torch.stack([part.argmax(dim=1) for part in logits], dim=1)
            return (chosen.reshape(-1, *self._shape) + self.first).to(self._dtype)
        if self._kind is spaces.MultiBinary:
            return (parameters > 0.0).reshape(-1, *self._shape).to(self._dtype)
        numbers = parameters.reshape(-1, *self._shape)
        # float64 if the bounds are not float32, as in NumPy.
        low, high = (bound if bound.dtype == torch.float32 else bound.double() for bound in (self.low, self.high))
        if self._squash:
            numbers = (low + high) / 2 + (high - low) / 2 * torch.tanh(numbers)
        return torch.maximum(torch.minimum(numbers.to(low.dtype), high), low).to(self._dtype)


def _check_dtype(port: Port) -> None:
    if port.dtype not in _DTYPES:
        raise UnsupportedSpace(
            f"{port.name} is of {port.dtype}, which cannot be exported; wrap the environment so that its dtype is one "
            f"of {', '.join(map(str, _DTYPES))}."
        )
