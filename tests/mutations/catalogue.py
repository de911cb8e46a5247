"""Mistakes that are easily made in PPO, each as a change of one place in the source, with the test that must notice."""

from typing import NamedTuple

RL = "ml_pipeline/models/rl"
TESTS = "tests/models/rl"
CONTRACT = "tests/contracts/test_vector_env_contract.py::TestSerialEnv"


class Mutation(NamedTuple):
    """`old` stands once in the file `source`; with `new` in its place the test `caught_by` must fail."""

    mistake: str
    source: str
    old: str
    new: str
    caught_by: str


DEVICE_TESTS = f"{TESTS}/algorithms/test_device_rollout.py"
ON_A_DEVICE = (
    Mutation(
        "the next episode's value at an end",
        f"{RL}/algorithms/estimates.py",
        "torch.where(done, final_values, judged.values[1:])",
        "judged.values[1:]",
        f"{DEVICE_TESTS}::test_the_same_noise_gives_what_arrays_give",
    ),
    Mutation(
        "the host looks whether an episode ended",
        f"{RL}/algorithms/device_rollout.py",
        "if self._memory is not None:\n            self._memory = torch.where",
        "if done.any() and self._memory is not None:\n            self._memory = torch.where",
        f"{DEVICE_TESTS}::test_nothing_is_asked_of_the_device_but_once_an_iteration",
    ),
    Mutation(
        "what is new in a rollout is counted twice",
        f"{RL}/algorithms/device_rollout.py",
        "part.moments.begin()",
        "pass",
        f"{DEVICE_TESTS}::test_the_same_noise_gives_what_arrays_give",
    ),
    Mutation(
        "actions on a device begin anew after a resumption",
        f"{RL}/algorithms/device_rollout.py",
        'self._generator.set_state(state["generator"])',
        "pass",
        f"{DEVICE_TESTS}::test_resumed_equals_uninterrupted",
    ),
)

GAE = (
    Mutation(
        "no bootstrap at truncation",
        f"{RL}/core/gae.py",
        "next_values * ~terminated",
        "next_values * ~done",
        f"{TESTS}/core/test_gae.py::test_truncation_bootstraps_from_final_obs_and_cuts_the_trace",
    ),
    Mutation(
        "bootstrap past a termination",
        f"{RL}/core/gae.py",
        "next_values * ~terminated",
        "next_values",
        f"{TESTS}/core/test_gae.py::test_termination_neither_bootstraps_nor_lets_the_trace_through",
    ),
    Mutation(
        "the trace runs through a truncation",
        f"{RL}/core/gae.py",
        "decay = ~done *",
        "decay = ~terminated *",
        f"{TESTS}/core/test_gae.py::test_truncation_bootstraps_from_final_obs_and_cuts_the_trace",
    ),
    Mutation(
        "V of the next episode in place of V(final_obs)",
        f"{RL}/algorithms/estimates.py",
        "if buffer.final_observations:",
        "if False:",
        f"{TESTS}/algorithms/test_estimates.py::test_truncation_bootstraps_from_final_obs",
    ),
    Mutation(
        "final observations forgotten while collecting",
        f"{RL}/algorithms/rollout.py",
        "(truncated & ~terminated).nonzero()",
        "(truncated & terminated).nonzero()",
        f"{TESTS}/algorithms/test_against_stable_baselines3.py::"
        "test_advantages_returns_values_and_log_probs_are_theirs[box]",
    ),
    Mutation(
        "rewards of truncated steps edited",
        f"{RL}/algorithms/rollout.py",
        "buffer.store(actions, scaled, terminated",
        "buffer.store(actions, scaled + truncated, terminated",
        f"{TESTS}/algorithms/test_against_stable_baselines3.py::"
        "test_advantages_returns_values_and_log_probs_are_theirs[box]",
    ),
)

ENVIRONMENTS = (
    Mutation(
        "environments that reset in the next step are accepted",
        f"{RL}/algorithms/ppo_trainer.py",
        'envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP',
        "False",
        f"{TESTS}/algorithms/test_ppo_trainer.py::test_environments_that_reset_in_another_way_are_refused",
    ),
    Mutation(
        "the final observation is kept after the reset",
        f"{RL}/core/env_block.py",
        """                            self._keep_final(answer, index, observation, info)
                            observation, info = self._reset_after_episode(slot)
""",
        """                            final = observation
                            observation, info = self._reset_after_episode(slot)
                            self._keep_final(answer, index, final, info)
""",
        f"{CONTRACT}::test_final_observation_is_copied_before_the_reset",
    ),
    Mutation(
        "every environment has the same seed",
        f"{RL}/core/reset_arguments.py",
        "int(seed) + index for index",
        "int(seed) for index",
        f"{CONTRACT}::test_environment_i_is_seeded_by_its_index",
    ),
    Mutation(
        "an explicit reset leaves the autoreset pending",
        f"{RL}/core/env_block.py",
        "slot.needs_reset = expired",
        "slot.needs_reset = slot.needs_reset or expired",
        f"{CONTRACT}::test_explicit_reset_clears_a_pending_autoreset",
    ),
)

NORMALIZATION = (
    Mutation(
        "reward scaling subtracts the mean",
        f"{RL}/core/normalization.py",
        "rewards / deviation",
        "(rewards - self._moments.mean[0]) / deviation",
        f"{TESTS}/core/test_normalization.py::"
        "test_reward_scaling_divides_by_the_deviation_of_the_discounted_return_and_keeps_signs",
    ),
    Mutation(
        "reward scaling remembers the last episode",
        f"{RL}/core/normalization.py",
        "self._returns[done] = 0.0",
        "pass",
        f"{TESTS}/core/test_normalization.py::"
        "test_reward_scaling_divides_by_the_deviation_of_the_discounted_return_and_keeps_signs",
    ),
    Mutation(
        "normalizing learns",
        f"{RL}/core/normalization.py",
        "scaled = (observations - self._shift) * self._scale",
        "self.update(observations)\n        scaled = (observations - self._shift) * self._scale",
        f"{TESTS}/core/test_normalization.py::test_normalizing_does_not_learn_nor_change_what_it_is_given",
    ),
    Mutation(
        "evaluation learns",
        f"{RL}/networks/policy.py",
        "return self.encode(observation)",
        "self.normalizer and self.normalizer.update(np.ones((1, self.observation_size)))\n"
        "        return self.encode(observation)",
        f"{TESTS}/networks/test_policy.py::test_acting_changes_nothing_in_the_policy",
    ),
    Mutation(
        "final observations are not normalized",
        f"{RL}/algorithms/rollout.py",
        'policy.normalize(policy.encode_one(infos["final_obs"][i]))[0]',
        'policy.encode_one(infos["final_obs"][i])[0]',
        f"{TESTS}/algorithms/test_rollout.py::test_final_observations_are_normalized_as_all_others",
    ),
    Mutation(
        "normalization is not saved with the policy",
        f"{RL}/networks/policy.py",
        'self.normalizer.load_state_dict(state["normalizer"])',
        "pass",
        f"{TESTS}/networks/test_policy.py::test_a_saved_policy_acts_the_same",
    ),
    Mutation(
        "values change with their units",
        f"{RL}/networks/policy.py",
        "output.weight.mul_(scale)",
        "pass",
        f"{TESTS}/algorithms/test_estimates.py::"
        "test_normalized_values_mean_what_plain_ones_do_before_and_after_learning_their_units[False]",
    ),
    Mutation(
        "advantages from normalized values",
        f"{RL}/algorithms/estimates.py",
        "_in_units_of_rewards(values, policy).view(",
        "values.view(",
        f"{TESTS}/algorithms/test_estimates.py::"
        "test_normalized_values_mean_what_plain_ones_do_before_and_after_learning_their_units[False]",
    ),
    Mutation(
        "final values are left normalized",
        f"{RL}/algorithms/estimates.py",
        "return _in_units_of_rewards(_values_of(policy.network, observations, remembered), policy)",
        "return _values_of(policy.network, observations, remembered)",
        f"{TESTS}/algorithms/test_estimates.py::"
        "test_normalized_values_mean_what_plain_ones_do_before_and_after_learning_their_units[False]",
    ),
    Mutation(
        "the units of values are not saved with the policy",
        f"{RL}/networks/policy.py",
        'self.value_normalizer.load_state_dict(state["value_normalizer"])',
        "pass",
        f"{TESTS}/networks/test_policy.py::test_a_saved_policy_keeps_the_units_of_its_values",
    ),
    Mutation(
        "an exported policy forgets its normalization",
        f"{RL}/networks/portable_policy.py",
        "scaled = (encoded - self.shift) * self.scale",
        "scaled = encoded",
        "tests/test_export_policy.py::test_a_torch_file_is_proven_for_every_kind_of_policy[plain]",
    ),
)

UPDATE = (
    Mutation(
        "Adam's own epsilon",
        f"{RL}/algorithms/ppo_update.py",
        "_ADAM_EPSILON = 1e-5",
        "_ADAM_EPSILON = 1e-8",
        f"{TESTS}/algorithms/test_against_stable_baselines3.py::test_weights_after_an_update_are_theirs",
    ),
    Mutation(
        "schedules decay before the first update",
        f"{RL}/algorithms/ppo_trainer.py",
        "progress=self.iteration / self.total_iterations",
        "progress=(self.iteration + 1) / self.total_iterations",
        f"{TESTS}/algorithms/test_ppo_trainer.py::test_the_first_update_runs_before_the_first_decay",
    ),
    Mutation(
        "advantages are not normalized",
        f"{RL}/algorithms/gradient_steps.py",
        "return config.normalize_advantages and",
        "return False and",
        f"{TESTS}/algorithms/test_ppo_update.py::test_equals_a_plain_loop_of_autograd_and_adam[torch-box]",
    ),
    Mutation(
        "a minibatch of one is normalized",
        f"{RL}/algorithms/ppo_loss.py",
        "if len(advantages) < 2:",
        "if len(advantages) < 1:",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_advantages_are_normalized_and_a_single_one_is_left_alone",
    ),
    Mutation(
        "advantages divided by the biased deviation",
        f"{RL}/algorithms/ppo_loss.py",
        "torch.var_mean(advantages)",
        "torch.var_mean(advantages, correction=0)",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_advantages_are_normalized_and_a_single_one_is_left_alone",
    ),
    Mutation(
        "value clipping is on by default",
        "ml_pipeline/config/ppo.py",
        "clip_range_vf: float | None = None",
        "clip_range_vf: float | None = 0.2",
        "tests/config/test_ppo.py::test_value_clipping_and_early_stopping_are_off_by_default",
    ),
    Mutation(
        "with value clipping the better of the two losses counts",
        f"{RL}/algorithms/ppo_loss.py",
        "errors = torch.max(errors, (near",
        "errors = torch.min(errors, (near",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_with_value_clipping_the_worse_error_counts",
    ),
    Mutation(
        "the gradient of a clipped value flows",
        f"{RL}/algorithms/ppo_loss.py",
        "d_values *= inside | (errors > near_errors)",
        "pass",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_closed_form_gradients_equal_autograd",
    ),
    Mutation(
        "half the mean square error",
        f"{RL}/algorithms/ppo_loss.py",
        "errors = (values - inputs.returns).square()",
        "errors = 0.5 * (values - inputs.returns).square()",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_the_loss_of_two_samples_worked_by_hand",
    ),
    Mutation(
        "half the value gradient in closed form",
        f"{RL}/algorithms/ppo_loss.py",
        "2.0 * weights.vf_coef * scale",
        "weights.vf_coef * scale",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_closed_form_gradients_equal_autograd",
    ),
    Mutation(
        "target KL never stops",
        f"{RL}/algorithms/gradient_steps.py",
        "settings.kl_limit:\n                break",
        "settings.kl_limit:\n                pass",
        f"{TESTS}/algorithms/test_ppo_update.py::test_target_kl_stops_before_the_step_that_would_go_further[torch]",
    ),
    Mutation(
        "the gradient is not clipped",
        f"{RL}/algorithms/gradient_steps.py",
        ".clamp_(max=1.0)",
        ".clamp_(min=1.0, max=1.0)",
        f"{TESTS}/algorithms/test_ppo_update.py::test_gradients_are_clipped_to_their_norm[torch]",
    ),
    Mutation(
        "nobody checks that the first ratio is 1",
        f"{RL}/algorithms/ppo_update.py",
        "        _check_first(taken.first)\n",
        "",
        f"{TESTS}/algorithms/test_ppo_update.py::test_a_policy_that_contradicts_its_rollout_is_told",
    ),
    Mutation(
        "a partial last minibatch is dropped",
        f"{RL}/algorithms/minibatches.py",
        "order = drawn.to(batch",
        "order = drawn[: n_samples // size * size].to(batch",
        f"{TESTS}/algorithms/test_ppo_update.py::test_equals_a_plain_loop_of_autograd_and_adam[torch-box]",
    ),
    Mutation(
        "every epoch in the same order",
        f"{RL}/algorithms/minibatches.py",
        "torch.from_numpy(generator.permutation(n)) for",
        "torch.arange(n) for",
        f"{TESTS}/algorithms/test_ppo_update.py::test_equals_a_plain_loop_of_autograd_and_adam[torch-box]",
    ),
    Mutation(
        "KL by mean(-log ratio)",
        f"{RL}/algorithms/ppo_loss.py",
        "return (log_ratios.exp() - 1.0 - log_ratios).mean()",
        "return (-log_ratios).mean()",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_the_kl_is_that_of_the_third_estimator_and_never_negative",
    ),
    Mutation(
        "the unclipped objective",
        f"{RL}/algorithms/ppo_loss.py",
        "objectives = torch.min(inputs.advantages * ratios, inputs.advantages * clipped)",
        "objectives = inputs.advantages * ratios",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_the_loss_of_two_samples_worked_by_hand",
    ),
    Mutation(
        "the gradient of the unclipped objective in closed form",
        f"{RL}/algorithms/ppo_loss.py",
        "(surrogates * (surrogates <= clipped))",
        "(surrogates * 1.0)",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_closed_form_gradients_equal_autograd",
    ),
    Mutation(
        "entropy is punished",
        f"{RL}/algorithms/ppo_loss.py",
        "- weights.ent_coef * entropies.mean()",
        "+ weights.ent_coef * entropies.mean()",
        f"{TESTS}/algorithms/test_ppo_loss.py::test_the_loss_of_two_samples_worked_by_hand",
    ),
    Mutation(
        "a cosine that begins at zero",
        f"{RL}/algorithms/schedules.py",
        "(1.0 - math.cos(math.pi * left))",
        "(1.0 + math.cos(math.pi * left))",
        f"{TESTS}/algorithms/test_ppo_update.py::test_a_quarter_into_training_schedules_are_where_their_formulas_say",
    ),
    Mutation(
        "the optimizer's state is not saved",
        f"{RL}/algorithms/ppo_update.py",
        'self._optimizer.load_state_dict(state["optimizer"])',
        "pass",
        f"{TESTS}/algorithms/test_ppo_update.py::test_a_restored_update_goes_on_with_the_same_bits",
    ),
    Mutation(
        "the order of minibatches begins anew after a resumption",
        f"{RL}/algorithms/ppo_update.py",
        'restore(self._generator, state["generator"])',
        "pass",
        f"{TESTS}/algorithms/test_ppo_update.py::test_a_restored_update_goes_on_with_the_same_bits",
    ),
)

NETWORKS = (
    Mutation(
        "hidden gain 1",
        f"{RL}/networks/mlp.py",
        "math.sqrt(2.0)",
        "1.0",
        f"{TESTS}/networks/test_mlp.py::test_weights_are_orthogonal_with_their_gain_and_biases_zero",
    ),
    Mutation(
        "policy gain 1",
        f"{RL}/networks/actor_critic.py",
        "output_gain=0.01",
        "output_gain=1.0",
        f"{TESTS}/networks/test_actor_critic.py::test_the_last_layers_have_gains_of_a_hundredth_and_one",
    ),
    Mutation(
        "value gain 0.01",
        f"{RL}/networks/actor_critic.py",
        "output_gain=1.0",
        "output_gain=0.01",
        f"{TESTS}/networks/test_actor_critic.py::test_the_last_layers_have_gains_of_a_hundredth_and_one",
    ),
    Mutation(
        "log-deviation begins at -0.5",
        f"{RL}/networks/distributions.py",
        "nn.Parameter(torch.zeros(size))",
        "nn.Parameter(torch.full((size,), -0.5))",
        f"{TESTS}/networks/test_distributions.py::test_a_new_gaussian_has_deviation_one_everywhere",
    ),
    Mutation(
        "the clipped action is kept for the update",
        f"{RL}/algorithms/rollout.py",
        "buffer.store(actions, scaled",
        "buffer.store(policy.fit_actions(actions), scaled",
        f"{TESTS}/algorithms/test_rollout.py::test_unclipped_actions_are_kept_and_clipped_ones_are_taken",
    ),
    Mutation(
        "float64 reaches the network",
        f"{RL}/core/spaces.py",
        "np.asarray(batch, dtype=np.float32).reshape(-1, size), size",
        "np.asarray(batch).reshape(-1, size), size",
        f"{TESTS}/core/test_spaces.py::test_encoded_observations_equal_gymnasiums_flattening",
    ),
    Mutation(
        "float64 statistics reach the network",
        f"{RL}/core/normalization.py",
        "self._shift = self.moments.mean.astype(np.float32)",
        "self._shift = self.moments.mean",
        f"{TESTS}/core/test_normalization.py::test_observations_come_out_standardized_clipped_and_in_float32",
    ),
    Mutation(
        "numbers reach the environment unclipped",
        f"{RL}/core/spaces.py",
        "actions.reshape(shape).clip(low, high)",
        "actions.reshape(shape)",
        f"{TESTS}/algorithms/test_rollout.py::test_unclipped_actions_are_kept_and_clipped_ones_are_taken",
    ),
)

MEMORY = (
    Mutation(
        "memory outlives the episode while acting",
        f"{RL}/networks/acting.py",
        "self.state = np.where(done[:, None], np.float32(0.0), self.state)",
        "pass",
        f"{TESTS}/algorithms/test_policy_kinds.py::test_the_update_sees_the_policy_that_acted[gru]",
    ),
    Mutation(
        "memory outlives the episode in the update",
        f"{RL}/networks/memory.py",
        "torch.where(starts[:, None], torch.zeros_like(state), state)",
        "state",
        f"{TESTS}/networks/test_general_actor_critic.py::"
        "test_no_gradient_reaches_back_over_the_start_of_an_episode[gru-False]",
    ),
    Mutation(
        "memory is lost between two rollouts",
        f"{RL}/algorithms/rollout.py",
        "None if self._memory is None else self._memory.state)",
        "None if self._memory is None else 0 * self._memory.state)",
        f"{TESTS}/algorithms/test_policy_kinds.py::test_the_update_sees_the_policy_that_acted[gru]",
    ),
    Mutation(
        "V(final_obs) knows nothing of its episode",
        f"{RL}/algorithms/estimates.py",
        "else judged.states[list(steps), list(envs)]",
        "else 0 * judged.states[list(steps), list(envs)]",
        f"{TESTS}/algorithms/test_policy_kinds.py::"
        "test_the_value_of_a_final_observation_knows_the_episode_that_ended_there[gru]",
    ),
    Mutation(
        "sequences are given the memory of others",
        f"{RL}/algorithms/minibatches.py",
        "state[chosen]",
        "state[: len(chosen)]",
        f"{TESTS}/algorithms/test_minibatches.py::test_sequences_stay_whole_with_their_starts_and_state",
    ),
    Mutation(
        "an evaluation remembers the episode before",
        f"{RL}/core/evaluation.py",
        'getattr(act, "begin_episode", lambda: None)()',
        "pass",
        f"{TESTS}/core/test_evaluation.py::test_an_actor_that_remembers_is_told_where_episodes_begin",
    ),
    Mutation(
        "memory is not saved",
        f"{RL}/algorithms/rollout.py",
        'self._memory.state = state["memory"].numpy()',
        "pass",
        f"{TESTS}/algorithms/test_policy_kinds.py::"
        "test_an_interrupted_run_gone_on_with_by_workers_equals_the_uninterrupted_one[gru]",
    ),
)

ACTIONS = (
    Mutation(
        "masks are not applied in the update",
        f"{RL}/networks/general_actor_critic.py",
        "return self._allowed(observations, self.actor_head(tops[0]))",
        "return self.actor_head(tops[0])",
        f"{TESTS}/networks/test_general_actor_critic.py::"
        "test_forbidden_choices_have_no_probability_no_entropy_and_no_gradient",
    ),
    Mutation(
        "masks are not applied in the rollout",
        f"{RL}/networks/general_actor_critic.py",
        "return self._allowed(observations, self.actor_head(self._towers[0](observations)))",
        "return self.actor_head(self._towers[0](observations))",
        f"{TESTS}/networks/test_general_actor_critic.py::"
        "test_a_policy_keeps_to_its_mask_and_says_where_that_forbids_everything",
    ),
    Mutation(
        "log-probabilities of the parts are averaged",
        f"{RL}/networks/joint_distribution.py",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)\n",
        "return torch.stack(log_probs).mean(dim=0), torch.stack(entropies).sum(dim=0)\n",
        f"{TESTS}/networks/test_distributions.py::test_log_probs_and_entropies_equal_those_of_torch",
    ),
    Mutation(
        "entropies of the parts are averaged",
        f"{RL}/networks/joint_distribution.py",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)\n",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).mean(dim=0)\n",
        f"{TESTS}/networks/test_distributions.py::test_log_probs_and_entropies_equal_those_of_torch",
    ),
    Mutation(
        "squashing without its log-determinant",
        f"{RL}/networks/squashed_gaussian.py",
        "return log_probs - _log_determinant(actions).sum(dim=1), entropies",
        "return log_probs, entropies",
        f"{TESTS}/networks/test_distributions.py::test_log_probs_and_entropies_equal_those_of_torch",
    ),
    Mutation(
        "a forbidden choice is taken by the least noise",
        f"{RL}/networks/distributions.py",
        "(cumulative <= noise",
        "(cumulative < noise",
        f"{TESTS}/networks/test_distributions.py::test_an_impossible_first_choice_is_not_taken",
    ),
    Mutation(
        "masks of infos never become part of the observation",
        "ml_pipeline/gym_task.py",
        "return ActionMaskInObservation(env) if masks_in_info else env",
        "return env",
        "tests/test_gym_task.py::test_masks_of_infos_are_kept_to_in_training_and_evaluation",
    ),
    Mutation(
        "a resumed run waits anew for its plateau",
        f"{RL}/algorithms/early_stopping.py",
        'self._best, self._since = state["best"], state["since"]',
        "pass",
        f"{TESTS}/algorithms/test_ten_lines.py::"
        "test_a_resumed_run_stops_on_its_plateau_where_the_uninterrupted_one_does",
    ),
    Mutation(
        "nobody checks that a mask allows something",
        f"{RL}/core/action_mask.py",
        "if not allowed.all():",
        "if False:",
        "tests/test_gym_task.py::test_a_mask_that_forbids_everything_is_one_sentence",
    ),
    Mutation(
        "a policy that gives NaN goes on learning",
        f"{RL}/algorithms/alarms.py",
        "if not math.isfinite(rows.sum().item()):",
        "if False:",
        f"{TESTS}/algorithms/test_alarms.py::test_a_policy_that_gives_nan_is_named[actor-log-probability]",
    ),
)

COMPILED = (
    Mutation(
        "compiled: the ratio clipped the wrong way round",
        f"{RL}/compiled/kernel.py",
        "min(max(ratio, low), high)",
        "max(min(ratio, low), high)",
        f"{TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: no entropy in the gradient",
        f"{RL}/compiled/kernel.py",
        "d_entropy = -settings.ent_coef * share",
        "d_entropy = 0.0",
        f"{TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: half of the gradient of the squared error",
        f"{RL}/compiled/kernel.py",
        "2.0 * settings.vf_coef * share",
        "settings.vf_coef * share",
        f"{TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: the smaller value loss where values are clipped",
        f"{RL}/compiled/kernel.py",
        "or error > near_error",
        "or error < near_error",
        f"{TESTS}/algorithms/test_compiled_steps.py::"
        "test_the_gradient_is_that_of_autograd[clipped values-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: one chunk of the minibatch counted twice",
        f"{RL}/compiled/kernel.py",
        "range(1, len(gradients))",
        "range(0, len(gradients))",
        f"{TESTS}/algorithms/test_compiled_steps.py::test_the_gradient_is_that_of_autograd[-(8,)-tanh-discrete]",
    ),
    Mutation(
        "compiled: deviation of advantages by the size of the minibatch",
        f"{RL}/compiled/kernel.py",
        "variance / (size - 1)",
        "variance / size",
        f"{TESTS}/algorithms/test_compiled_steps.py::test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
    ),
    Mutation(
        "compiled: Adam without the correction of its mean",
        f"{RL}/compiled/kernel.py",
        "correction / (1.0 - 0.9**n_steps)",
        "correction",
        f"{TESTS}/algorithms/test_compiled_steps.py::test_steps_rows_and_norms_are_those_of_torch[minibatch-discrete]",
    ),
    Mutation(
        "compiled: a numba that fails ends the training",
        f"{RL}/networks/compiled_networks.py",
        "except Exception as error:",
        "except ArithmeticError as error:",
        f"{TESTS}/networks/test_compiled_networks.py::test_where_numba_cannot_be_imported_training_goes_on_in_torch",
    ),
)

MUTATIONS = (*ON_A_DEVICE, *GAE, *ENVIRONMENTS, *NORMALIZATION, *UPDATE, *COMPILED, *NETWORKS, *MEMORY, *ACTIONS)
