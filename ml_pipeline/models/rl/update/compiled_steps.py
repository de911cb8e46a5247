"""Gradient steps by a compiled kernel, for perceptrons and recurrent networks on a CPU. Needs numba.

Check `can_compile` first. B samples, P numbers in a padded vector, E epochs, T steps, M sequences.
"""

import math
import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic
from ml_pipeline.models.rl.transitions import LossInputs, Minibatch, Sequences
from ml_pipeline.models.rl.update.gradient_steps import (
    FlatAdam,
    Generator,
    StepSettings,
    StepsTaken,
    draw_orders,
    normalizes_minibatches,
)
from ml_pipeline.models.rl.update.ppo_loss import LossRows, LossWeights
from ml_pipeline.runtime.cores import usable_cores

if TYPE_CHECKING:
    from ml_pipeline.models.rl.compiled.layout import Layout, Results, Settings


Array = np.ndarray


_WORTH_SHARING = 128
"""With fewer samples in a minibatch, threads would wait for each other longer than they work."""


class CompiledSteps:
    """Steps by the kernel; the number of threads does not change their bits.

    The vectors of the optimizer are copied into the padded ones of the kernel and back, once per update. A minibatch of
    a recurrent network holds whole sequences: at least one, and at most minibatch_size samples otherwise.
    """

    kind = "compiled"

    def __init__(
        self,
        network: ActorCritic | GeneralActorCritic,
        optimizer: FlatAdam,
        config: PPOConfig,
        generator: Generator,
        *,
        n_threads: int | None = None,
    ) -> None:
        """Compile the kernel. Raises numba's exception if that fails.

        n_threads: None means one per core if minibatches are large enough, else one.
        """
        self._kernel = kernel_for(network)
        self._layout = self._kernel.layout
        self.optimizer = optimizer
        self._config = config
        self.generator = generator
        size = config.minibatch_size
        self._n_chunks = max(1, min(max(2, size // 256), 8) // self._kernel.n_units)
        if n_threads is None:
            n_threads = max(1, int(usable_cores())) if size >= _WORTH_SHARING else 1
        self._n_threads = min(n_threads, self._n_chunks * self._kernel.n_units)
        one = self._kernel.smallest_batch()
        self.gradient(one, LossWeights(clip_range=0.2, clip_range_vf=None, ent_coef=0.0, vf_coef=0.5))

    def __call__(self, batch: Minibatch, settings: StepSettings) -> StepsTaken:
        config, n_samples = self._config, len(batch.observations)
        length, n_sequences = _shape_of(batch)
        size = max(1, config.minibatch_size // length) * length
        orders = torch.stack(draw_orders(n_sequences, config.n_epochs, self.generator)).numpy()
        vectors = [self.optimizer.parameters, self.optimizer.mean, self.optimizer.square]
        learner = self._learner(*vectors)
        results, n_done = self._run(
            learner,
            batch,
            orders,
            self._settings(settings.weights, settings.learning_rate, settings.kl_limit, size, length),
            n_threads=self._n_threads,
        )
        for vector, padded in zip(vectors, (learner.networks.parameters, learner.means, learner.squares), strict=True):
            vector.detach().numpy()[:] = padded[self._layout.places]
        self.optimizer.n_steps += n_done
        whole, more = divmod(n_done, -(-n_samples // size))
        n_stepped = whole * n_samples + more * size
        rows = torch.from_numpy(results.rows).transpose(0, 1).flatten(1)[:, :n_stepped]
        first = LossRows(*rows[:, :size])
        return StepsTaken(first, LossRows(*rows), torch.from_numpy(results.norms[:n_done]))

    def gradient(self, minibatch: Minibatch, weights: LossWeights) -> Tensor:
        """The gradient of a step of length 0, on copies, without clipping, in this thread only."""
        length, n_sequences = _shape_of(minibatch)
        parameters = self.optimizer.parameters
        learner = self._learner(parameters, torch.zeros_like(parameters), torch.zeros_like(parameters))
        settings = self._settings(weights, 0.0, math.inf, length * n_sequences, length)
        settings = settings._replace(normalizes=False, max_grad_norm=math.inf)
        self._run(learner, minibatch, np.arange(n_sequences)[None], settings, n_threads=1)
        return torch.from_numpy(learner.gradients[0, self._layout.places])

    def _run(
        self, learner: Any, batch: Minibatch, orders: np.ndarray, settings: "Settings", *, n_threads: int
    ) -> tuple["Results", int]:
        """Take the steps. orders: int64 (E, M), of sequences; without memory, of samples."""
        from ml_pipeline.models.rl.compiled import layout

        n_epochs, n_sequences = orders.shape
        n_samples = n_sequences * settings.sequence_length
        of_steps = n_sequences * np.arange(settings.sequence_length)
        samples = self._kernel.samples(batch, (orders[:, :, None] + of_steps).reshape(n_epochs, n_samples))
        results = layout.Results(
            rows=np.zeros((n_epochs, 4, n_samples), np.float32),
            norms=np.zeros(n_epochs * -(-n_samples // settings.minibatch_size)),
            kls=np.zeros((self._n_chunks, self._kernel.n_units)),
            squares=np.zeros(2),
            arrivals=np.zeros(1, np.int64),
        )
        workspaces = self._kernel.workspaces(n_threads, batch)

        def run(thread: int) -> int:
            worker = layout.Worker(thread, n_threads, workspaces[thread])
            n_done: int = self._kernel.update(worker, learner, samples, settings, results)
            return n_done

        others = [threading.Thread(target=run, args=(thread,)) for thread in range(1, n_threads)]
        for other in others:
            other.start()
        n_done = run(0)
        for other in others:
            other.join()
        return results, n_done

    def _learner(self, *vectors: Tensor) -> Any:
        layout = self._layout
        parameters, means, squares, transposed = np.zeros((4, layout.size), np.float32)
        for padded, vector in zip((parameters, means, squares), vectors, strict=True):
            padded[layout.places] = vector.detach().numpy()
        gradients = np.zeros((self._n_chunks, layout.size), np.float32)
        return self._kernel.learner(
            parameters=parameters, transposed=transposed, means=means, squares=squares, gradients=gradients
        )

    def _settings(
        self, weights: LossWeights, learning_rate: float, kl_limit: float, size: int, length: int
    ) -> "Settings":
        from ml_pipeline.models.rl.compiled import layout

        bound = weights.clip_range_vf
        return layout.Settings(
            minibatch_size=size,
            sequence_length=length,
            normalizes=normalizes_minibatches(self._config),
            n_steps_before=self.optimizer.n_steps,
            learning_rate=float(learning_rate),
            clip_range=float(weights.clip_range),
            clip_range_vf=math.inf if bound is None else float(bound),
            ent_coef=float(weights.ent_coef),
            vf_coef=float(weights.vf_coef),
            max_grad_norm=float(self._config.max_grad_norm),
            kl_limit=float(kl_limit),
            epsilon=self.optimizer.epsilon,
        )


class NetworkKernel(Protocol):
    """The kernel of one kind of network, and its arguments, which the modules `layout` in `compiled` describe."""

    update: Any
    layout: "Layout"
    n_units: int
    """Parts of a chunk's gradient that threads compute in parallel."""

    def learner(self, *, parameters: Array, **vectors: Array) -> Any:
        """The kernel's view of weights and optimizer.

        parameters: float32 (P,). vectors: transposed, means and squares, float32 (P,); gradients, float32 (C, P) for C
        chunks.
        """

    def samples(self, batch: Minibatch, orders: Array) -> Any:
        """The kernel's view of a batch. orders: int64 (E, B)."""

    def workspaces(self, n_threads: int, batch: Minibatch) -> list[Any]:
        """One workspace per thread. batch: a batch with the size, or the shape of sequences, to make room for."""

    def smallest_batch(self) -> Minibatch:
        """A batch of one sample, all zeros."""


def kernel_for(network: ActorCritic | GeneralActorCritic) -> NetworkKernel:
    """The kernel for this network. Raises numba's exception if it cannot be compiled."""
    return PerceptronKernel(network) if isinstance(network, ActorCritic) else RecurrentKernel(network)


class PerceptronKernel:
    """The kernel for two perceptrons."""

    n_units = 1

    def __init__(self, network: ActorCritic) -> None:
        from ml_pipeline.models.rl.compiled import kernel, layout

        self.update = kernel.update
        self.layout = layout.layout_of(network)
        self._arguments = layout
        self._new_workspace = layout.new_workspace
        self._workspaces: list[Any] = []
        self._network = network

    def learner(self, *, parameters: Array, **vectors: Array) -> Any:
        return self._arguments.Learner(self.layout.networks(parameters), self.layout.ends, **vectors)

    def samples(self, batch: Minibatch, orders: Array) -> Any:
        observations, inputs = batch.observations.contiguous().numpy(), torch.stack(batch.inputs).numpy()
        return self._arguments.Samples(observations, batch.actions.numpy(), inputs, orders)

    def workspaces(self, n_threads: int, batch: Minibatch) -> list[Any]:
        while len(self._workspaces) < n_threads:
            self._workspaces.append(self._new_workspace(self.layout))
        return self._workspaces

    def smallest_batch(self) -> Minibatch:
        return _one_sample(self._network, observation_size=self.layout.layer(0, 0).inputs)


class RecurrentKernel:
    """The kernel for one or two recurrent networks; each is a unit."""

    def __init__(self, network: GeneralActorCritic) -> None:
        from ml_pipeline.models.rl.compiled.recurrent import kernel, layout

        self.update = kernel.update
        self._layout = layout.layout_of(network)
        self.layout = self._layout.heads
        self.n_units = len(self._layout.cells.places)
        self._arguments = layout
        self._new_workspace = layout.new_workspace
        self._workspaces: list[Any] = []
        self._shape = torch.Size((0, 0))
        self._network = network

    def learner(self, *, parameters: Array, **vectors: Array) -> Any:
        networks = self.layout.networks(parameters)
        return self._arguments.RecurrentLearner(networks, self.layout.ends, **vectors, cells=self._layout.cells)

    def samples(self, batch: Minibatch, orders: Array) -> Any:
        assert batch.sequences is not None
        starts, state = batch.sequences
        sequences = self._arguments.SequenceArrays(
            len(starts),
            batch.observations.contiguous().numpy(),
            starts.contiguous().view(-1).numpy(),
            state.contiguous().numpy(),
        )
        inputs = torch.stack(batch.inputs).numpy()
        return self._arguments.RecurrentSamples(batch.actions.numpy(), inputs, orders, sequences)

    def workspaces(self, n_threads: int, batch: Minibatch) -> list[Any]:
        assert batch.sequences is not None
        shape = batch.sequences.starts.shape
        if shape != self._shape or len(self._workspaces) < n_threads:
            length, n_sequences = self._shape = shape
            self._workspaces = [
                self._new_workspace(self._layout, length=length, n_sequences=n_sequences) for _ in range(n_threads)
            ]
        return self._workspaces

    def smallest_batch(self) -> Minibatch:
        sequences = Sequences(torch.zeros(1, 1, dtype=torch.bool), torch.zeros(1, self._network.state_size))
        return _one_sample(self._network, observation_size=self._layout.cells.inputs)._replace(sequences=sequences)


def _shape_of(batch: Minibatch) -> tuple[int, int]:
    """The length and the number of sequences; without memory, each sample is a sequence."""
    if batch.sequences is None:
        return 1, len(batch.observations)
    length, n_sequences = batch.sequences.starts.shape
    return length, n_sequences


def _one_sample(network: ActorCritic | GeneralActorCritic, *, observation_size: int) -> Minibatch:
    action = network.distribution.mode(np.zeros((1, network.distribution.num_parameters), np.float32))
    zero = torch.zeros(1)
    return Minibatch(torch.zeros(1, observation_size), torch.from_numpy(action), LossInputs(zero, zero, zero, zero))
