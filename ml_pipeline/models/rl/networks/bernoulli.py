"""Several yes-or-no choices at once. B samples, A choices."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ml_pipeline.models.rl.networks.distributions import Array, Backward


class Bernoulli(nn.Module):
    """A independent choices between 0 and 1; the parameters are the logits of 1. Actions are int64 (B, A)."""

    def __init__(self, num_choices: int) -> None:
        super().__init__()
        self.num_parameters = num_choices

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return generator.random((*shape, self.num_parameters), dtype=np.float32)

    def sample(self, parameters: Array, noise: Array) -> Array:
        with np.errstate(over="ignore"):  # exp of a large number is infinite, and 1 / infinity the 0 that is meant
            return (noise < 1.0 / (1.0 + np.exp(-parameters))).astype(np.int64)

    def mode(self, parameters: Array) -> Array:
        return (parameters > 0.0).astype(np.int64)

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        # log p(a) = a l - log(1 + e^l);  H = log(1 + e^l) - p l
        log_normalizers = F.softplus(parameters)
        log_probs = (actions * parameters - log_normalizers).sum(dim=1)
        return log_probs, (log_normalizers - torch.sigmoid(parameters) * parameters).sum(dim=1)

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        p = torch.sigmoid(parameters)

        def backward(d_log_probs: Tensor, d_entropy: float) -> Tensor:
            # d log p(a) / d l = a - p;  d H / d l = -l p (1 - p)
            d_parameters = (actions - p) * d_log_probs[:, None]
            return d_parameters.sub_(parameters * p * (1.0 - p), alpha=d_entropy)

        return *self.log_probs_and_entropies(parameters, actions), backward
