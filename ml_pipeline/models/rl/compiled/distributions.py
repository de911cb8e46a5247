"""Likelihoods of actions, their slopes, and sampling, for one sample; the same as in `networks.distributions`."""

import math
from typing import NamedTuple

from ml_pipeline.models.rl.compiled.machine import Array, jit


class Chosen(NamedTuple):
    """The log-probability of a choice, the entropy, and the logarithm of the sum of exp(logits)."""

    log_prob: float
    entropy: float
    log_total: float


class Slopes(NamedTuple):
    """Derivatives of the loss by the log-probability of a sample's action and by its entropy."""

    by_log_prob: float
    by_entropy: float


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
    """The choice that noise, uniform in [0, 1), falls on, by the rule of `choices_of`, for one sample.

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
