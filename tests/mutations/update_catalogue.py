"""Mistakes that are easily made in the update of PPO."""

from tests.mutations.mutation import RL, RL_TESTS, Mutation

LOSS = (
    Mutation(
        "value clipping is on by default",
        "ml_pipeline/config/ppo.py",
        "clip_range_vf: float | None = None",
        "clip_range_vf: float | None = 0.2",
        "tests/config/test_ppo.py::test_value_clipping_and_early_stopping_are_off_by_default",
        "P8a",
    ),
    Mutation(
        "with value clipping the better of the two losses counts",
        f"{RL}/update/ppo_loss.py",
        "errors = torch.max(errors, (near",
        "errors = torch.min(errors, (near",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_with_value_clipping_the_worse_error_counts",
        "P8b",
    ),
    Mutation(
        "the gradient of a clipped value flows",
        f"{RL}/update/ppo_loss.py",
        "d_values *= inside | (errors > near_errors)",
        "pass",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_closed_form_gradients_equal_autograd",
    ),
    Mutation(
        "half the mean square error",
        f"{RL}/update/ppo_loss.py",
        "errors = (values - inputs.returns).square()",
        "errors = 0.5 * (values - inputs.returns).square()",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_the_loss_of_two_samples_worked_by_hand",
        "P9",
    ),
    Mutation(
        "half the value gradient in closed form",
        f"{RL}/update/ppo_loss.py",
        "2.0 * weights.vf_coef * scale",
        "weights.vf_coef * scale",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_closed_form_gradients_equal_autograd",
        "P9",
    ),
    Mutation(
        "KL by mean(-log ratio)",
        f"{RL}/update/ppo_loss.py",
        "return (log_ratios.exp() - 1.0 - log_ratios).mean()",
        "return (-log_ratios).mean()",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_the_kl_is_that_of_the_third_estimator_and_never_negative",
        "P10a",
    ),
    Mutation(
        "the unclipped objective",
        f"{RL}/update/ppo_loss.py",
        "torch.min(*_surrogates(log_ratios, inputs.advantages, weights.clip_range))",
        "inputs.advantages * log_ratios.exp()",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_the_loss_of_two_samples_worked_by_hand",
    ),
    Mutation(
        "the gradient of the unclipped objective in closed form",
        f"{RL}/update/ppo_loss.py",
        "(surrogates * (surrogates <= clipped))",
        "(surrogates * 1.0)",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_closed_form_gradients_equal_autograd",
    ),
    Mutation(
        "entropy is punished",
        f"{RL}/update/ppo_loss.py",
        "- weights.ent_coef * entropies.mean()",
        "+ weights.ent_coef * entropies.mean()",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_the_loss_of_two_samples_worked_by_hand",
    ),
)

STEPS = (
    Mutation(
        "Adam's own epsilon",
        f"{RL}/update/ppo_update.py",
        "_ADAM_EPSILON = 1e-5",
        "_ADAM_EPSILON = 1e-8",
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::test_weights_after_an_update_are_theirs",
        "P6a",
    ),
    Mutation(
        "functions get the share of training that is done",
        f"{RL}/update/ppo_update.py",
        "value = function(left)",
        "value = function(1.0 - left)",
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::test_their_functions_are_ours",
    ),
    Mutation(
        "lin_3e-4 is a constant",
        "ml_pipeline/config/settings.py",
        'schedule: "linear"})',
        'schedule: "constant"})',
        "tests/config/test_ppo.py::test_the_spelling_of_the_zoo_is_a_linear_schedule",
    ),
    Mutation(
        "schedules decay before the first update",
        f"{RL}/algorithms/ppo_trainer.py",
        "progress=start_step / self.total_timesteps",
        "progress=self.global_step / self.total_timesteps",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::test_the_first_update_runs_before_the_first_decay",
        "P6b",
    ),
    Mutation(
        "a cosine that begins at zero",
        f"{RL}/update/ppo_update.py",
        "(1.0 - math.cos(math.pi * left))",
        "(1.0 + math.cos(math.pi * left))",
        f"{RL_TESTS}/update/test_ppo_update.py::test_a_quarter_into_training_schedules_are_where_their_formulas_say",
    ),
    Mutation(
        "advantages are not normalized",
        f"{RL}/update/gradient_steps.py",
        "return config.normalize_advantages and",
        "return False and",
        f"{RL_TESTS}/update/test_ppo_update.py::test_equals_a_plain_loop_of_autograd_and_adam[torch-box]",
        "P7a",
    ),
    Mutation(
        "advantages are normalized over the batch",
        "ml_pipeline/config/ppo.py",
        '= "minibatch"',
        '= "batch"',
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::"
        "test_weights_after_an_update_are_theirs[torch-discrete-20]",
        "P7a",
    ),
    Mutation(
        "acting goes on with the weights before the update",
        f"{RL}/update/ppo_update.py",
        "        self._policy.refresh()\n        terms",
        "        terms",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::"
        "test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one[box-17]",
        "P14",
    ),
    Mutation(
        "a minibatch of one is normalized",
        f"{RL}/update/ppo_loss.py",
        "if len(advantages) < 2:",
        "if len(advantages) < 1:",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_advantages_are_normalized_and_a_single_one_is_left_alone",
        "P7b",
    ),
    Mutation(
        "advantages divided by the biased deviation",
        f"{RL}/update/ppo_loss.py",
        "torch.var_mean(advantages)",
        "torch.var_mean(advantages, correction=0)",
        f"{RL_TESTS}/update/test_ppo_loss.py::test_advantages_are_normalized_and_a_single_one_is_left_alone",
    ),
    Mutation(
        "target KL never stops",
        f"{RL}/update/gradient_steps.py",
        "settings.kl_limit:\n                break",
        "settings.kl_limit:\n                pass",
        f"{RL_TESTS}/update/test_ppo_update.py::test_target_kl_stops_before_the_step_that_would_go_further[torch]",
        "P10b",
    ),
    Mutation(
        "the KL is tested after the step",
        f"{RL}/update/gradient_steps.py",
        "            if limited and history and approx_kl(rows.log_ratios) > settings.kl_limit:\n"
        "                break\n            norm = torch.linalg.vector_norm(gradient)\n"
        "            gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))\n"
        "            self.optimizer.step(settings.learning_rate)\n"
        "            history.append(rows)\n            norms.append(norm)\n",
        "            norm = torch.linalg.vector_norm(gradient)\n"
        "            gradient.mul_((self._config.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))\n"
        "            self.optimizer.step(settings.learning_rate)\n"
        "            history.append(rows)\n            norms.append(norm)\n"
        "            if limited and approx_kl(rows.log_ratios) > settings.kl_limit:\n"
        "                break\n",
        f"{RL_TESTS}/update/test_ppo_update.py::test_target_kl_stops_before_the_step_that_would_go_further[torch]",
        "P10b",
    ),
    Mutation(
        "the gradient is not clipped",
        f"{RL}/update/gradient_steps.py",
        ".clamp_(max=1.0)",
        ".clamp_(min=1.0, max=1.0)",
        f"{RL_TESTS}/update/test_ppo_update.py::test_gradients_are_clipped_to_their_norm[torch]",
    ),
    Mutation(
        "steps that differ from autograd's are gone on with",
        f"{RL}/update/ppo_update.py",
        "distance <= _AGREEMENT * norm",
        "True or distance <= _AGREEMENT * norm",
        f"{RL_TESTS}/update/test_choosing_steps.py::test_steps_that_differ_are_reported_once_and_replaced_by_autograd",
    ),
    Mutation(
        "nobody checks that the first ratio is 1",
        f"{RL}/update/ppo_update.py",
        "        _check_first(taken.first)\n",
        "",
        f"{RL_TESTS}/update/test_ppo_update.py::test_a_policy_that_contradicts_its_rollout_is_told",
        "P14",
    ),
    Mutation(
        "a partial last minibatch is dropped",
        f"{RL}/update/gradient_steps.py",
        "order = drawn.to(batch",
        "order = drawn[: n_samples // size * size].to(batch",
        f"{RL_TESTS}/update/test_ppo_update.py::test_equals_a_plain_loop_of_autograd_and_adam[torch-box]",
        "P15a",
    ),
    Mutation(
        "every epoch in the same order",
        f"{RL}/update/gradient_steps.py",
        "torch.from_numpy(generator.permutation(n)) for",
        "torch.arange(n) for",
        f"{RL_TESTS}/update/test_ppo_update.py::test_equals_a_plain_loop_of_autograd_and_adam[torch-box]",
    ),
)

SEQUENCES = (
    Mutation(
        "memory outlives the episode in the update",
        f"{RL}/networks/actor_critic.py",
        "torch.where(starts[:, None], torch.zeros_like(state), state)",
        "state",
        f"{RL_TESTS}/networks/test_general_actor_critic.py::"
        "test_no_gradient_reaches_back_over_the_start_of_an_episode[gru-False]",
        "P3b",
    ),
    Mutation(
        "sequences are given the memory of others",
        f"{RL}/transitions.py",
        "state[chosen]",
        "state[: len(chosen)]",
        f"{RL_TESTS}/update/test_gradient_steps.py::test_sequences_stay_whole_with_their_starts_and_state",
        "P3c",
    ),
    Mutation(
        "the steps of a sequence come in another order",
        f"{RL}/transitions.py",
        "Minibatch(samples(batch.observations),",
        "Minibatch(samples(batch.observations).flip(0),",
        f"{RL_TESTS}/update/test_gradient_steps.py::test_sequences_stay_whole_with_their_starts_and_state",
        "P3c",
    ),
)
