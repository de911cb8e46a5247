"""Running a network over a rollout, images in parts that threads share; how many threads does not change the bits.

T steps, N environments, D observation size, P parameters of the distribution, S state size.
"""

from typing import Any

import torch
from torch import Tensor

from ml_pipeline.models.rl.networks.general_actor_critic import GeneralActorCritic
from ml_pipeline.models.rl.networks.memory import Sequences
from ml_pipeline.models.rl.policies.one_thread import in_threads

_ROWS = 256
_ENVS = 8
"""In a part: of images without memory, and of images with memory, whose steps follow each other."""


def outputs_of(network: GeneralActorCritic, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Parameters (B, P) and values (B,) for observations (B, D), without gradients."""
    if not _shares(network, rows):
        return network(rows)
    parts = _evaluated(list(rows.split(_ROWS)), network)
    parameters, values = (torch.cat(column) for column in zip(*parts, strict=True))
    return parameters, values


def outputs_over_sequences(
    network: GeneralActorCritic, observations: Tensor, sequences: Sequences
) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters (T * N, P), values (T * N,) and states (T, N, S) for observations (T, N, D), without gradients."""
    if not _shares(network, observations):
        return network.over_sequences(observations.flatten(0, 1), sequences)

    def run(part: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        own, starts, state = part
        parameters, values, states = network.over_sequences(own.flatten(0, 1), Sequences(starts, state))
        return [parameters.unflatten(0, starts.shape), values.view(starts.shape), states]

    columns = (observations.split(_ENVS, 1), sequences.starts.split(_ENVS, 1), sequences.state.split(_ENVS))
    parts = _evaluated(list(zip(*columns, strict=True)), run)
    parameters, values, states = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
    return parameters.flatten(0, 1), values.flatten(), states


def _shares(network: GeneralActorCritic, observations: Tensor) -> bool:
    return network.sees_images and observations.device.type == "cpu"


def _evaluated(parts: list[Any], run: Any) -> list[Any]:
    found = [None] * len(parts)

    def evaluate(i: int) -> None:
        with torch.no_grad():  # holds for one thread
            found[i] = run(parts[i])

    in_threads(evaluate, len(parts))
    return found
