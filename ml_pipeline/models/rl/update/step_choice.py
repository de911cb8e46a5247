"""Which gradient steps a policy learns by: the fastest that its network, this machine and this installation allow.

Fast ones must agree with autograd on the user's own network, or autograd takes their place.
"""

import math
import warnings

from torch import Tensor

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic
from ml_pipeline.models.rl.policies.compiled_networks import can_compile, give_up_compiling
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.ranks import OneRank, Ranks
from ml_pipeline.models.rl.transitions import Minibatch, first_of
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.gradient_chunks import ChunkedGradients, ChunkSharing
from ml_pipeline.models.rl.update.gradient_steps import (
    FlatAdam,
    Generator,
    GradientSteps,
    StepSettings,
    StepsTaken,
    TorchSteps,
    flatten_parameters,
    with_normalized_advantages,
)
from ml_pipeline.models.rl.update.ppo_loss import AutogradGradients, ClosedFormGradients, LossWeights

_ADAM_EPSILON = 1e-5
# Below the smaller, a second thread gained at most a third. A core's time for a minibatch of 256 in ms, whole, in 2, 4
# and 8 chunks (Zen 4): two perceptrons of 512x512, work 1.5e8, 13, 16, 18, 24; images of 40x40x3, 7e7, 42, 47, 52, 65
# (when each chunk still wrote gradients by the large weights).
_WORTH_CHUNKS = {8: 4e8, 4: 3e7}
_IMAGES_IN_CHUNK = 64
"""At least: each chunk reads all weights. Whole, in 2, 4 and 8 chunks, 128 images of 84x84x4 cost a core 82, 83, 88 and
125 ms, in bfloat16 47, 50, 59 and 69 (Zen 4)."""


_AGREEMENT = 1e-3
_NEGLIGIBLE = 1e-6


def fastest_steps(policy: Policy, config: PPOConfig, generator: Generator, ranks: Ranks | None = None) -> GradientSteps:
    """Steps that move the policy's weights, in minibatches whose order comes from `generator`.

    Two perceptrons on a CPU: by the compiled kernel if numba is installed and works and the kernel knows the
    distribution, else in closed form if their hidden sizes are the same; both are compared with autograd once, and so
    are the compiled steps of memory over plain numbers. Any other network, or device: by autograd, as all that is
    computed in chunks.
    ranks: those that take the same steps; they share chunks where that is faster. Steps in torch end where one is lost.
    """
    ranks = ranks or OneRank()
    optimizer = _optimizer_of(policy)
    network = policy.network
    if policy.device.type == "cpu" and can_compile(network):
        try:
            return CheckedSteps(CompiledSteps(network, optimizer, config, generator), network, config)
        except Exception as error:  # numba's, of any kind
            give_up_compiling(error)
    n_chunks = chunks_of_gradient(policy, config)
    if n_chunks > 1:
        sharing = None if ranks.size == 1 else ChunkSharing(ranks, device=policy.device)
        chunked = ChunkedGradients(network, optimizer.gradient, n_chunks=n_chunks, sharing=sharing)
        return TorchSteps(chunked, optimizer, config, generator, check=ranks.check)
    # Also where numba is installed: for squashed actions, for actions of several parts, and for large perceptrons. By
    # autograd, learning takes 1.9 times as long with squashed actions, 1.7 with a MultiDiscrete, 1.8 with CartPole and
    # no numba, and whole trainings 1.5, 1.4 and 1.5 (8 environments, two layers of 64; medians of 5 alternating runs);
    # with two layers of 512 it is as fast. The last bits of the weights differ from autograd's in 7 of 8 such runs.
    if isinstance(network, ActorCritic) and network.is_paired and policy.device.type == "cpu":
        steps = TorchSteps(ClosedFormGradients(network), optimizer, config, generator, check=ranks.check)
        return CheckedSteps(steps, network, config)
    return TorchSteps(AutogradGradients(network), optimizer, config, generator, check=ranks.check)


def chunks_of_gradient(policy: Policy, config: PPOConfig) -> int:
    """In how many chunks a gradient is computed; one where the compiled kernel does."""
    network = policy.network
    if policy.device.type == "cpu" and can_compile(network):
        return 1
    if config.gradient_chunks is not None:
        return config.gradient_chunks
    n_weights = sum(weight.numel() for weight in network.parameters())
    n_chunks = _chunks_that_pay(policy, n_weights * config.minibatch_size)
    if isinstance(network, GeneralActorCritic) and network.sees_images:
        return max(1, min(n_chunks, config.minibatch_size // _IMAGES_IN_CHUNK))
    return n_chunks


class CheckedSteps:
    """Compares fast steps with autograd once, on the first minibatch of the first update.

    If their gradients differ by more than rounding, it warns, and takes autograd's steps from then on.
    """

    def __init__(self, steps: GradientSteps, network: ActorCritic | GeneralActorCritic, config: PPOConfig) -> None:
        self._steps = steps
        self._network = network
        self._config = config
        self._checked = False

    @property
    def kind(self) -> str:
        return self._steps.kind

    @property
    def optimizer(self) -> FlatAdam:
        return self._steps.optimizer

    @property
    def generator(self) -> Generator:
        return self._steps.generator

    def __call__(self, batch: Minibatch, settings: StepSettings) -> StepsTaken:
        if not self._checked:
            self._checked = True
            self._check(batch, settings.weights)
        return self._steps(batch, settings)

    def gradient(self, minibatch: Minibatch, weights: LossWeights) -> Tensor:
        return self._steps.gradient(minibatch, weights)

    def _check(self, batch: Minibatch, weights: LossWeights) -> None:
        minibatch = with_normalized_advantages(first_of(batch, size=self._config.minibatch_size))
        # Ratios are 1 but for rounding, which must not decide what is clipped.
        weights = weights._replace(clip_range=max(weights.clip_range, 0.01))
        if agrees_with_autograd(self._steps, self._network, minibatch, weights):
            return
        warnings.warn(
            f"The {self._steps.kind} gradient of this network differs from autograd's, which takes its place and is "
            "slower; please report it, with the network's sizes and the versions of torch and numba.",
            stacklevel=2,
        )
        gradients = AutogradGradients(self._network)
        self._steps = TorchSteps(gradients, self._steps.optimizer, self._config, self._steps.generator)


def agrees_with_autograd(
    steps: GradientSteps, network: ActorCritic | GeneralActorCritic, minibatch: Minibatch, weights: LossWeights
) -> bool:
    """Whether the gradient for a minibatch is autograd's, but for rounding.

    True as well if autograd's is not finite: the update reports that.
    """
    found = steps.gradient(minibatch, weights)
    AutogradGradients(network)(minibatch, weights)
    expected = steps.optimizer.gradient
    distance, norm = (found - expected).norm().item(), expected.norm().item()
    return not math.isfinite(norm) or distance <= _AGREEMENT * norm + _NEGLIGIBLE


def _chunks_that_pay(policy: Policy, work: int) -> int:
    """How many parts of a gradient cost little more than the whole, so that threads gain by them.

    work: weights times samples of a minibatch. It is decided by size alone, for the same bits on all machines.
    """
    if policy.device.type != "cpu":
        return 1
    return next((n_chunks for n_chunks, least in _WORTH_CHUNKS.items() if work >= least), 1)


def _optimizer_of(policy: Policy) -> FlatAdam:
    """Adam over all weights; it moves them into one vector."""
    flat = flatten_parameters(policy.network.parameter_order())
    assert flat.grad is not None
    policy.refresh()
    return FlatAdam(flat, flat.grad, epsilon=_ADAM_EPSILON)
