"""Which gradient steps a policy learns by: the fastest that its network, this machine and this installation allow."""

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.flat_parameters import flatten_parameters
from ml_pipeline.models.rl.policies.compiled_networks import can_compile, give_up_compiling
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.update.checked_steps import CheckedSteps
from ml_pipeline.models.rl.update.compiled_steps import CompiledSteps
from ml_pipeline.models.rl.update.flat_adam import FlatAdam
from ml_pipeline.models.rl.update.gradient_steps import GradientSteps, TorchSteps
from ml_pipeline.models.rl.update.minibatch_gradients import AutogradGradients, ClosedFormGradients
from ml_pipeline.models.rl.update.minibatches import Generator

_ADAM_EPSILON = 1e-5


def fastest_steps(policy: Policy, config: PPOConfig, generator: Generator) -> GradientSteps:
    """Steps that move the policy's weights, in minibatches whose order comes from `generator`.

    Two perceptrons on a CPU: by the compiled kernel if numba is installed and works, else in closed form; both are
    compared with autograd once. Any other network, or device: by autograd.
    """
    optimizer = _optimizer_of(policy)
    network = policy.network
    if not isinstance(network, ActorCritic) or policy.device.type != "cpu":
        return TorchSteps(AutogradGradients(network), optimizer, config, generator)
    if can_compile(network):
        try:
            return CheckedSteps(CompiledSteps(network, optimizer, config, generator), network, config)
        except Exception as error:  # numba's, of any kind
            give_up_compiling(error)
    return CheckedSteps(TorchSteps(ClosedFormGradients(network), optimizer, config, generator), network, config)


def _optimizer_of(policy: Policy) -> FlatAdam:
    """Adam over all weights; it moves them into one vector."""
    flat = flatten_parameters(policy.network.parameter_order())
    assert flat.grad is not None
    policy.refresh()
    return FlatAdam(flat, flat.grad, epsilon=_ADAM_EPSILON)
