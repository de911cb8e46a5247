"""The PPO loss and its derivatives by the networks' outputs (slopes), sample by sample, in float64; see `ppo_loss`.

Log-probabilities, their slopes, and sampling are those of `networks.distributions`, for one sample.
"""

import math
from typing import NamedTuple

from ml_pipeline.models.rl.compiled.layout import Networks, Settings, Workspace, last_layer, layer_of
from ml_pipeline.models.rl.compiled.machine import TILE, Array, jit


class Chosen(NamedTuple):
    """The log-probability of a discrete action, the entropy, and the logarithm of the sum of exp(logits)."""

    log_prob: float
    entropy: float
    log_total: float


class Slopes(NamedTuple):
    """Derivatives of the loss by the log-probability of a sample's action and by its entropy."""

    by_log_prob: float
    by_entropy: float


class MinibatchMoments(NamedTuple):
    """size: number of samples. mean, scale: a normalized advantage is (advantage - mean) * scale."""

    settings: Settings
    size: int
    mean: float
    scale: float


class Part(NamedTuple):
    """A part of a minibatch. chosen: int64 (n,), its samples. rows: float32 (4, n or more), filled in the order of
    `LossRows`. gradient: float32 (P,), added to.
    """

    minibatch: MinibatchMoments
    chosen: Array
    rows: Array
    gradient: Array


@jit
def minibatch_of(chosen: Array, advantages: Array, settings: Settings) -> MinibatchMoments:
    """The moments of these samples, int64 (n,). advantages: float32 (B,). A minibatch of one is not normalized."""
    size = len(chosen)
    if size < 2 or not settings.normalizes:
        return MinibatchMoments(settings, size, 0.0, 1.0)
    mean = 0.0
    for i in chosen:
        mean += advantages[i]
    mean /= size
    variance = 0.0
    for i in chosen:
        variance += (advantages[i] - mean) ** 2
    return MinibatchMoments(settings, size, mean, 1.0 / (math.sqrt(variance / (size - 1)) + 1e-8))


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


@jit
def softmax(logits: Array, action: int, p: Array) -> Chosen:
    """logits: float32 (A,). Fills p, float64 (A,), with the probabilities."""
    largest = float(logits[0])
    for a in range(1, len(logits)):
        largest = max(largest, float(logits[a]))
    total = 0.0
    for a in range(len(logits)):
        p[a] = math.exp(logits[a] - largest)
        total += p[a]
    log_total = math.log(total) + largest
    entropy = 0.0
    for a in range(len(logits)):
        p[a] /= total
        entropy -= p[a] * (logits[a] - log_total)
    return Chosen(logits[action] - log_total, entropy, log_total)


@jit
def categorical_slopes(loss: Slopes, chosen: Chosen, action: int, p: Array, logits: Array) -> None:
    """Replaces the logits, float32 (A,), by the slopes by them; p: from `softmax`."""
    # d log p[a] / d logits = onehot(a) - p;  d H / d logits = -p (log p + H)
    for a in range(len(logits)):
        by_entropy = -p[a] * (logits[a] - chosen.log_total + chosen.entropy)
        logits[a] = loss.by_log_prob * ((1.0 if a == action else 0.0) - p[a]) + loss.by_entropy * by_entropy


@jit
def draw(logits: Array, noise: float, cumulative: Array) -> int:
    """The discrete action for noise that is uniform in [0, 1), by the rule of `choices_of`, for one sample.

    logits: float32 (A,). cumulative: float64, A or more, is overwritten.
    """
    largest = logits[0]
    for a in range(1, len(logits)):
        largest = max(largest, logits[a])
    total = 0.0
    for a in range(len(logits)):
        total += math.exp(float(logits[a] - largest))
        cumulative[a] = total
    chosen = 0
    for a in range(len(logits)):
        chosen += 1 if cumulative[a] <= noise * total else 0
    return chosen


@jit
def standardize(means: Array, action: Array, log_std: Array, z: Array) -> tuple[float, float]:
    """The log-probability of the action and the entropy; arrays are (A,). Fills z, float64: (action - mean) / std."""
    log_prob = entropy = 0.0
    half_log_two_pi = 0.5 * math.log(2.0 * math.pi)
    for a in range(len(means)):
        z[a] = (float(action[a]) - means[a]) * math.exp(-float(log_std[a]))
        log_prob -= 0.5 * z[a] * z[a] + log_std[a] + half_log_two_pi
        entropy += log_std[a] + 0.5 + half_log_two_pi
    return log_prob, entropy


@jit
def gaussian_slopes(loss: Slopes, z: Array, log_std: Array, by_means: Array, by_log_std: Array) -> None:
    """Fills by_means and adds to by_log_std, float32 (A,); z: from `standardize`."""
    # d log p / d mean = z / std;  d log p / d log_std = z^2 - 1;  d H / d log_std = 1
    for a in range(len(by_means)):
        by_means[a] = loss.by_log_prob * z[a] * math.exp(-float(log_std[a]))
        by_log_std[a] += loss.by_log_prob * (z[a] * z[a] - 1.0) + loss.by_entropy
