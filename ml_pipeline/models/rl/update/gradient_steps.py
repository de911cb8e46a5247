"""Gradient steps in torch, for any network: random minibatches, each with a clipped gradient and a step of Adam.

All weights are stored in one vector, so that one operation computes each norm, scaling and step. For small networks,
this saves most of the time. B samples, P parameters, T steps, M sequences.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.threads_and_device import in_threads
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, of_sequences
from ml_pipeline.models.rl.update.ppo_loss import (
    LossRows,
    LossWeights,
    MinibatchGradients,
    approx_kl,
    normalize_advantages,
)
from ml_pipeline.runtime.seeding import generator_state, restore_generator

Generator = np.random.Generator | torch.Generator
"""The source of random orders. A torch generator draws them on its device, which saves a transfer."""


_SLICE = 1 << 18  # weights per part of a step: 1.7 million take one thread 2.9 ms, two threads 2.0 ms (Zen 4)


class FlatAdam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1) with beta1 0.9 and beta2 0.999.

    parameters, gradient, mean, square: float (P,). Code that takes steps instead must update these and `n_steps` in the
    same way.
    """

    def __init__(self, parameters: Tensor, gradient: Tensor, *, epsilon: float) -> None:
        """Steps change `parameters` in place, by `gradient`; both are float (P,)."""
        self.parameters = parameters
        self.gradient = gradient
        self.epsilon = epsilon
        self.mean = torch.zeros_like(parameters)
        self.square = torch.zeros_like(parameters)
        self._root = torch.empty_like(parameters)
        self.n_steps = 0

    def step(self, learning_rate: float) -> None:
        self.n_steps += 1
        # With the bias corrections c1 and c2, and s = sqrt(c2), one division of vectors suffices:
        # lr * (m / c1) / (sqrt(v) / s + eps) = (lr * s / c1) * m / (sqrt(v) + s * eps).
        correction = math.sqrt(1.0 - 0.999**self.n_steps)
        size = learning_rate * correction / (1.0 - 0.9**self.n_steps)
        vectors = (self.parameters, self.gradient, self.mean, self.square, self._root)
        length = _SLICE if self.parameters.device.type == "cpu" else len(self.parameters)

        def move(i: int) -> None:
            parameters, gradient, mean, square, root = (v[i * length : (i + 1) * length] for v in vectors)
            with torch.no_grad():  # holds per thread
                mean.lerp_(gradient, 0.1)
                square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                torch.sqrt(square, out=root).add_(self.epsilon * correction)
                parameters.addcdiv_(mean, root, value=-size)

        in_threads(move, -(-len(self.parameters) // length))

    def state_dict(self) -> dict[str, Any]:
        """Copies, not views."""
        return {"n_steps": self.n_steps, "mean": self.mean.clone(), "square": self.square.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n_steps = state["n_steps"]
        self.mean.copy_(state["mean"])
        self.square.copy_(state["square"])


def flatten_parameters(parameters: Sequence[Tensor]) -> nn.Parameter:
    """Move the parameters into one new vector, in this order, and their gradients into its `.grad`; return the vector.

    Device and dtype must be final: calling `.to()` on the module later would separate its parameters from the vector.
    """
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view(parameter.shape)
        parameter.grad = flat.grad[start:end].view(parameter.shape)
        start = end
    return flat


class StepSettings(NamedTuple):
    """Settings of one update.

    kl_limit: the update ends before the step whose approximate KL exceeds this; infinity means no limit.
    """

    weights: LossWeights
    learning_rate: float
    kl_limit: float


class StepsTaken(NamedTuple):
    """The result of an update.

    first: the loss of the first minibatch, before any step. rows: the loss of all samples in all steps. norms: float
    (n_minibatches,), norms of the gradients before clipping.
    """

    first: LossRows
    rows: LossRows
    norms: Tensor


class GradientSteps(Protocol):
    """Takes all steps of an update; `fastest_steps` chooses an implementation."""

    @property
    def kind(self) -> str:
        """Either "torch" or "compiled"; steps of the same kind give the same bits."""

    @property
    def optimizer(self) -> FlatAdam:
        """The optimizer, which holds the weights that the steps change."""

    @property
    def generator(self) -> Generator:
        """The generator that draws the order of the minibatches."""

    def __call__(self, batch: Minibatch, settings: StepSettings) -> StepsTaken:
        """Update the weights by n_epochs passes over the batch."""

    def gradient(self, minibatch: Minibatch, weights: LossWeights) -> Tensor:
        """The gradient by all parameters, float (P,), without a step. Advantages are not normalized."""


class TorchSteps:
    """Takes steps in torch, one minibatch after another."""

    kind = "torch"

    def __init__(
        self,
        gradients: MinibatchGradients,
        optimizer: FlatAdam,
        config: PPOConfig,
        generator: Generator,
        *,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """check: called before each minibatch; raises an exception to end the update, such as after a lost rank."""
        self.optimizer = optimizer
        self.generator = generator
        self._gradients = gradients
        self._config = config
        self._check = check

    def __call__(self, batch: Minibatch, settings: StepSettings) -> StepsTaken:
        gradient, limited = self.optimizer.gradient, math.isfinite(settings.kl_limit)
        history: list[LossRows] = []
        norms: list[Tensor] = []
        for minibatch in self._minibatches(batch):
            self._check()
            rows = self._gradients(minibatch, settings.weights)
            if limited and history and approx_kl(rows.log_ratios) > settings.kl_limit:
                break
            norm = torch.linalg.vector_norm(gradient)
            gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
            self.optimizer.step(settings.learning_rate)
            history.append(rows)
            norms.append(norm)
        return StepsTaken(history[0], LossRows(*map(torch.cat, zip(*history, strict=True))), torch.stack(norms))

    def gradient(self, minibatch: Minibatch, weights: LossWeights) -> Tensor:
        self._gradients(minibatch, weights)
        return self.optimizer.gradient.clone()

    def _minibatches(self, batch: Minibatch) -> Iterator[Minibatch]:
        config = self._config
        epochs = epochs_of_samples if batch.sequences is None else epochs_of_sequences
        for minibatch in epochs(batch, n_epochs=config.n_epochs, size=config.minibatch_size, generator=self.generator):
            yield with_normalized_advantages(minibatch) if normalizes_minibatches(config) else minibatch


def normalizes_minibatches(config: PPOConfig) -> bool:
    """Whether advantages are normalized within each minibatch, rather than within the batch or not at all."""
    return config.normalize_advantages and config.normalize_advantages_over == "minibatch"


def with_normalized_advantages(batch: Minibatch) -> Minibatch:
    """The batch with its advantages normalized over all its samples."""
    advantages = normalize_advantages(batch.inputs.advantages)
    return batch._replace(inputs=batch.inputs._replace(advantages=advantages))


def epochs_of_samples(batch: Minibatch, *, n_epochs: int, size: int, generator: Generator) -> Iterator[Minibatch]:
    """Minibatches of `size` samples, in a new random order per epoch; the last one of an epoch may be smaller."""
    n_samples = len(batch.observations)
    inputs = torch.stack(batch.inputs)
    for drawn in draw_orders(n_samples, n_epochs, generator):
        order = drawn.to(batch.observations.device)
        if batch.observations.dtype == torch.uint8:
            # Images are copied minibatch by minibatch, to save memory.
            for chosen in order.split(size):
                frames = batch.observations.index_select(0, chosen)  # 128 of 84x84x4: 0.09 ms; with [chosen], 2.1 ms
                yield Minibatch(frames, batch.actions[chosen], LossInputs(*inputs[:, chosen].unbind()))
            continue
        parts = zip(
            batch.observations[order].split(size),
            batch.actions[order].split(size),
            inputs[:, order].split(size, dim=1),
            strict=True,
        )
        for observations, actions, columns in parts:
            yield Minibatch(observations, actions, LossInputs(*columns.unbind()))


def epochs_of_sequences(batch: Minibatch, *, n_epochs: int, size: int, generator: Generator) -> Iterator[Minibatch]:
    """Minibatches of whole sequences: as many as fit into `size` samples, but at least one.

    The last minibatch of an epoch may be smaller.
    """
    assert batch.sequences is not None
    length, n_sequences = batch.sequences.starts.shape
    for drawn in draw_orders(n_sequences, n_epochs, generator):
        for chosen in drawn.to(batch.observations.device).split(max(1, size // length)):
            yield of_sequences(batch, chosen)


def draw_orders(n: int, n_epochs: int, generator: Generator) -> list[torch.Tensor]:
    """A permutation of n for each epoch. All are drawn at once, so that an update that stops early draws as many."""
    if isinstance(generator, torch.Generator):
        return [torch.randperm(n, generator=generator, device=generator.device) for _ in range(n_epochs)]
    return [torch.from_numpy(generator.permutation(n)) for _ in range(n_epochs)]


def state_of(generator: Generator) -> Any:
    """The state of a generator, for a checkpoint."""
    return generator.get_state() if isinstance(generator, torch.Generator) else generator_state(generator)


def restore(generator: Generator, state: Any) -> None:
    """Put `generator` into a state that `state_of` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    else:
        restore_generator(generator, state)
