"""Mistakes that are easily made in this field, by subject, each with the test that must notice."""

from tests.mutations.device_catalogue import ON_A_DEVICE
from tests.mutations.metrics_catalogue import METRICS, SANITY
from tests.mutations.mutation import RL, RL_TESTS, Mutation
from tests.mutations.network_catalogue import BEGINNINGS, DISTRIBUTIONS, MASKS
from tests.mutations.rollout_catalogue import ACTIONS_TAKEN, GAE, MEMORY, NORMALIZATION
from tests.mutations.run_catalogue import JUDGING, RESUMING, SAVING
from tests.mutations.trading_catalogue import ACCOUNTS, EPISODES, MARKETS
from tests.mutations.update_catalogue import LOSS, SEQUENCES, STEPS
from tests.mutations.vec_env_catalogue import ENVIRONMENTS, WORKERS

COMPILED = (
    Mutation(
        "compiled: the ratio clipped the wrong way round",
        f"{RL}/compiled/kernel.py",
        "min(max(ratio, low), high)",
        "max(min(ratio, low), high)",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: no entropy in the gradient",
        f"{RL}/compiled/kernel.py",
        "d_entropy = -settings.ent_coef * share",
        "d_entropy = 0.0",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: half of the gradient of the squared error",
        f"{RL}/compiled/kernel.py",
        "2.0 * settings.vf_coef * share",
        "settings.vf_coef * share",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: the smaller value loss where values are clipped",
        f"{RL}/compiled/kernel.py",
        "or error > near_error",
        "or error < near_error",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::"
        "test_the_gradient_is_that_of_autograd[clipped values-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: one chunk of the minibatch counted twice",
        f"{RL}/compiled/kernel.py",
        "range(1, len(gradients))",
        "range(0, len(gradients))",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: deviation of advantages by the size of the minibatch",
        f"{RL}/compiled/kernel.py",
        "variance / (size - 1)",
        "variance / size",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
    ),
    Mutation(
        "compiled: Adam without the correction of its mean",
        f"{RL}/compiled/kernel.py",
        "correction / (1.0 - 0.9**n_steps)",
        "correction",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
    ),
    Mutation(
        "compiled: a numba that fails ends the training",
        f"{RL}/networks/compiled_networks.py",
        "except Exception as error:",
        "except ArithmeticError as error:",
        f"{RL_TESTS}/networks/test_compiled_networks.py::test_where_numba_cannot_be_imported_training_goes_on_in_torch",
    ),
)


MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "environments": (*ENVIRONMENTS, *WORKERS),
    "rollouts": (*GAE, *NORMALIZATION, *MEMORY, *ACTIONS_TAKEN),
    "devices": ON_A_DEVICE,
    "updates": (*LOSS, *STEPS, *SEQUENCES),
    "compiled": COMPILED,
    "networks": (*BEGINNINGS, *DISTRIBUTIONS, *MASKS),
    "runs": (*SAVING, *RESUMING, *JUDGING),
    "trading": (*MARKETS, *ACCOUNTS, *EPISODES),
    "figures": (*METRICS, *SANITY),
}
"""By subject."""
