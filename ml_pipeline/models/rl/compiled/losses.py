"""PPO's loss and its slopes by the networks' outputs, sample by sample, in float64; see `ppo_loss`."""

import math
from typing import NamedTuple

from ml_pipeline.models.rl.compiled.arguments import Networks, Settings, Workspace, last_layer, layer_of
from ml_pipeline.models.rl.compiled.distributions import (
    Slopes,
    categorical_slopes,
    gaussian_slopes,
    softmax,
    standardize,
)
from ml_pipeline.models.rl.compiled.machine import TILE, Array, jit


class Minibatch(NamedTuple):
    """size: number of samples. mean, scale: a normalized advantage is (advantage - mean) * scale."""

    settings: Settings
    size: int
    mean: float
    scale: float


class Part(NamedTuple):
    """A part of a minibatch. chosen: int64 (n,), its samples. rows: float32 (4, n or more), filled in the order of
    `LossRows`. gradient: float32 (P,), added to.
    """

    minibatch: Minibatch
    chosen: Array
    rows: Array
    gradient: Array


@jit
def minibatch_of(chosen: Array, advantages: Array, settings: Settings) -> Minibatch:
    """Of these samples, int64 (n,). advantages: float32 (B,). A minibatch of one is not normalized."""
    size = len(chosen)
    if size < 2 or not settings.normalizes:
        return Minibatch(settings, size, 0.0, 1.0)
    mean = 0.0
    for i in chosen:
        mean += advantages[i]
    mean /= size
    variance = 0.0
    for i in chosen:
        variance += (advantages[i] - mean) ** 2
    return Minibatch(settings, size, mean, 1.0 / (math.sqrt(variance / (size - 1)) + 1e-8))


@jit
def policy_slopes(part: Part, actions: Array, inputs: Array, networks: Networks, workspace: Workspace) -> float:
    """Replaces the actor's outputs for at most TILE samples by the slopes of the loss by them.

    actions, inputs: as in `Samples`. Adds the slopes by a Gaussian's log_std to the gradient, and fills three of the
    rows. Returns the sum of the KL.
    """
    minibatch, settings, rows = part.minibatch, part.minibatch.settings, part.rows
    last = last_layer(networks, 0)
    layer = layer_of(networks, 0, last)
    n_parameters = layer.outputs if len(networks.layers) > 1 else layer.outputs - 1  # a value follows in a shared layer
    actor = workspace.activations.outputs[0, last].reshape(-1, layer.width)[:TILE]
    row = workspace.row[:n_parameters]
    log_std = networks.parameters[networks.log_std : networks.log_std + n_parameters]
    by_log_std = part.gradient[networks.log_std : networks.log_std + n_parameters]
    low, high = 1.0 - settings.clip_range, 1.0 + settings.clip_range
    share, kl = 1.0 / minibatch.size, 0.0
    by_entropy = -settings.ent_coef * share
    for s in range(len(part.chosen)):
        i = part.chosen[s]
        outputs = actor[s, :n_parameters]
        if actions.ndim == 1:  # known when compiling, since it is an argument
            likelihood = softmax(outputs, actions[i], row)
            log_prob, entropy = likelihood.log_prob, likelihood.entropy
        else:
            log_prob, entropy = standardize(outputs, actions[i], log_std, row)
        log_ratio = log_prob - inputs[0, i]
        ratio = math.exp(log_ratio)
        kl += ratio - 1.0 - log_ratio
        advantage = (inputs[1, i] - minibatch.mean) * minibatch.scale
        surrogate, clipped = advantage * ratio, advantage * min(max(ratio, low), high)
        slopes = Slopes(-share * surrogate * (1.0 if surrogate <= clipped else 0.0), by_entropy)
        if actions.ndim == 1:
            categorical_slopes(slopes, likelihood, actions[i], row, outputs)
        else:
            gaussian_slopes(slopes, row, log_std, outputs, by_log_std)
        actor[s, layer.outputs :] = 0.0
        rows[0, s] = surrogate if surrogate <= clipped else clipped
        rows[2, s] = entropy
        rows[3, s] = log_ratio
    actor[len(part.chosen) :] = 0.0  # padding of the tile
    return kl


@jit
def value_slopes(part: Part, inputs: Array, networks: Networks, workspace: Workspace) -> None:
    """Replaces the values, the last network's last outputs, by the slopes by them; fills the row of squared errors."""
    settings, share = part.minibatch.settings, 1.0 / part.minibatch.size
    bound = settings.clip_range_vf
    n = len(networks.layers) - 1
    last = last_layer(networks, n)
    layer = layer_of(networks, n, last)
    column = layer.outputs - 1
    critic = workspace.activations.outputs[n, last].reshape(-1, layer.width)[:TILE]
    for s in range(len(part.chosen)):
        i = part.chosen[s]
        value = float(critic[s, column])
        residual, moved = value - inputs[2, i], value - inputs[3, i]
        near = residual - moved + min(max(moved, -bound), bound) if abs(moved) > bound else residual
        error, near_error = residual * residual, near * near
        inside = not abs(moved) > bound or error > near_error
        critic[s, layer.outputs :] = 0.0
        critic[s, column] = 2.0 * settings.vf_coef * share * residual * (1.0 if inside else 0.0)
        part.rows[1, s] = near_error if near_error > error else error
    critic[len(part.chosen) :] = 0.0
