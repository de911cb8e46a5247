"""Several distributions side by side, for actions that consist of several parts. B samples, K action columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ml_pipeline.models.rl.networks.distributions import ActionDistribution, Array, Backward, Categorical


class Joint(nn.Module):
    """Parts that are independent given the state: log-probabilities and entropies are sums over them.

    Parameters, noise and actions of the parts stand side by side. Actions are float32 (B, K), one column per choice and
    per number; choices are integers, exact in float32.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self._parts = list(parts)
        self._is_choice = [isinstance(part, Categorical) for part in parts]  # their actions and noise are (B,)
        self._parameters_of = _slices([part.num_parameters for part in self._parts])
        self._columns_of = _slices(
            [1 if choice else part.num_parameters for part, choice in zip(self._parts, self._is_choice, strict=True)]
        )
        self.num_parameters = self._parameters_of[-1].stop

    def draw_noise(self, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.concatenate(
            [part.draw_noise(generator, shape).reshape(*shape, -1) for part in self._parts], axis=-1, dtype=np.float32
        )

    def sample(self, parameters: Array, noise: Array) -> Array:
        return self._joined(part.sample(parameters[:, p], drawn) for part, p, drawn in self._with_columns(noise))

    def mode(self, parameters: Array) -> Array:
        return self._joined(
            part.mode(parameters[:, p]) for part, p in zip(self._parts, self._parameters_of, strict=True)
        )

    def log_probs_and_entropies(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        of_parts = [
            part.log_probs_and_entropies(parameters[:, p], columns) for part, p, columns in self._with_columns(actions)
        ]
        log_probs, entropies = zip(*of_parts, strict=True)
        return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)

    def closed_form(self, parameters: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Backward]:
        of_parts = [part.closed_form(parameters[:, p], columns) for part, p, columns in self._with_columns(actions)]
        log_probs, entropies, backwards = zip(*of_parts, strict=True)

        def backward(d_log_probs: Tensor, d_entropy: float) -> Tensor:
            return torch.cat([each(d_log_probs, d_entropy) for each in backwards], dim=1)

        return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0), backward

    def _with_columns(self, columns: Any) -> list[tuple[ActionDistribution, slice, Any]]:
        """Each part with the slice of its parameters and its own actions or noise, in the part's own form."""
        found = []
        for part, p, c, choice in zip(self._parts, self._parameters_of, self._columns_of, self._is_choice, strict=True):
            own = columns[:, c.start] if choice else columns[:, c]
            found.append((part, p, own.long() if choice and isinstance(own, Tensor) else own))
        return found

    def _joined(self, actions: Any) -> Array:
        return np.concatenate([own.reshape(len(own), -1) for own in actions], axis=1, dtype=np.float32)


def _slices(widths: Sequence[int]) -> list[slice]:
    ends = np.cumsum(widths).tolist()
    return [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
