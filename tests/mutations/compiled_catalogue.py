"""Mistakes that are easily made in the compiled update, which repeats in loops what torch does."""

from tests.mutations.mutation import RL, RL_TESTS, Mutation

COMPILED = (
    Mutation(
        "compiled: the ratio clipped the wrong way round",
        f"{RL}/compiled/losses.py",
        "min(max(ratio, low), high)",
        "max(min(ratio, low), high)",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: no entropy in the gradient",
        f"{RL}/compiled/losses.py",
        "by_entropy = -settings.ent_coef * share",
        "by_entropy = 0.0",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: half of the gradient of the squared error",
        f"{RL}/compiled/losses.py",
        "2.0 * settings.vf_coef * share",
        "settings.vf_coef * share",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
        "P9",
    ),
    Mutation(
        "compiled: the smaller value loss where values are clipped",
        f"{RL}/compiled/losses.py",
        "or error > near_error",
        "or error < near_error",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::"
        "test_the_gradient_is_that_of_autograd[clipped values-(8,)-tanh-discrete]",
        "P8b",
    ),
    Mutation(
        "compiled: one chunk of the minibatch counted twice",
        f"{RL}/compiled/adam.py",
        "range(1, len(learner.gradients))",
        "range(0, len(learner.gradients))",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: deviation of advantages by the size of the minibatch",
        f"{RL}/compiled/losses.py",
        "variance / (size - 1)",
        "variance / size",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
    ),
    Mutation(
        "compiled: Adam without the correction of its mean",
        f"{RL}/compiled/adam.py",
        "correction / (1.0 - 0.9**n_steps)",
        "correction",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
    ),
    Mutation(
        "compiled: advantages are not normalized",
        f"{RL}/compiled/losses.py",
        "if size < 2 or not settings.normalizes:",
        "if True:",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::"
        "test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
        "P7a",
    ),
    Mutation(
        "compiled: a minibatch of one is normalized",
        f"{RL}/compiled/losses.py",
        "if size < 2 or",
        "if size < 1 or",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::"
        "test_a_last_minibatch_of_one_is_stepped_on_as_in_torch[discrete]",
        "P7b",
    ),
    Mutation(
        "compiled: a partial last minibatch is dropped",
        f"{RL}/compiled/kernel.py",
        "range(0, n_samples, settings.minibatch_size)",
        "range(0, n_samples - settings.minibatch_size + 1, settings.minibatch_size)",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::"
        "test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
        "P15a",
    ),
    Mutation(
        "compiled: target KL never stops",
        f"{RL}/compiled/kernel.py",
        "> settings.kl_limit",
        "> math.inf",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_steps_end_before_the_one_that_would_go_further",
        "P10b",
    ),
    Mutation(
        "compiled: KL by mean(-log ratio)",
        f"{RL}/compiled/losses.py",
        "kl += ratio - 1.0 - log_ratio",
        "kl += -log_ratio",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::test_steps_end_before_the_one_that_would_go_further",
        "P10a",
    ),
    Mutation(
        "compiled: Adam's own epsilon",
        f"{RL}/compiled/adam.py",
        "f32(settings.epsilon * correction)",
        "f32(1e-8 * correction)",
        f"{RL_TESTS}/algorithms/test_compiled_steps.py::"
        "test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
        "P6a",
    ),
    Mutation(
        "compiled: a numba that fails ends the training",
        f"{RL}/networks/compiled_networks.py",
        "except Exception as error:",
        "except ArithmeticError as error:",
        f"{RL_TESTS}/networks/test_compiled_networks.py::test_where_numba_cannot_be_imported_training_goes_on_in_torch",
    ),
)
