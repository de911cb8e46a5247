"""Mistakes that are easily made from the first step of a rollout to its advantages."""

from tests.mutations.mutation import RL, RL_TESTS, Mutation

GAE = (
    Mutation(
        "no bootstrap at truncation",
        f"{RL}/rollout/estimates.py",
        "next_values * ~terminated",
        "next_values * ~done",
        f"{RL_TESTS}/rollout/test_estimates.py::test_truncation_bootstraps_from_final_obs_and_cuts_the_trace",
        "P1a",
    ),
    Mutation(
        "bootstrap past a termination",
        f"{RL}/rollout/estimates.py",
        "next_values * ~terminated",
        "next_values",
        f"{RL_TESTS}/rollout/test_estimates.py::test_termination_neither_bootstraps_nor_lets_the_trace_through",
        "P1a",
    ),
    Mutation(
        "the trace runs through a truncation",
        f"{RL}/rollout/estimates.py",
        "decay = ~done *",
        "decay = ~terminated *",
        f"{RL_TESTS}/rollout/test_estimates.py::test_truncation_bootstraps_from_final_obs_and_cuts_the_trace",
        "P1b",
    ),
    Mutation(
        "the trace runs through a termination",
        f"{RL}/rollout/estimates.py",
        "decay = ~done *",
        "decay = (~done | terminated) *",
        f"{RL_TESTS}/rollout/test_estimates.py::test_termination_neither_bootstraps_nor_lets_the_trace_through",
        "P1b",
    ),
    Mutation(
        "V of the next episode in place of V(final_obs)",
        f"{RL}/rollout/estimates.py",
        "if buffer.final_observations:",
        "if False:",
        f"{RL_TESTS}/rollout/test_estimates.py::test_truncation_bootstraps_from_final_obs",
        "P1c",
    ),
    Mutation(
        "V of the last observation in place of V(final_obs)",
        f"{RL}/rollout/estimates.py",
        "values_of(policy, rows, remembered).cpu().numpy()",
        "values[list(steps), list(envs)]",
        f"{RL_TESTS}/rollout/test_estimates.py::test_truncation_bootstraps_from_final_obs",
        "P1c",
    ),
    Mutation(
        "final observations forgotten while collecting",
        f"{RL}/rollout/host_collector.py",
        "(truncated & ~terminated).nonzero()",
        "(truncated & terminated).nonzero()",
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::"
        "test_advantages_returns_values_and_log_probs_are_theirs[box]",
        "P1c",
    ),
    Mutation(
        "rewards of truncated steps edited",
        f"{RL}/rollout/host_collector.py",
        "self._rewards[t], self._times[t] = rewards, ",
        "self._rewards[t], self._times[t] = rewards + truncated, ",
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::"
        "test_advantages_returns_values_and_log_probs_are_theirs[box]",
        "P1c",
    ),
    Mutation(
        "steps that only reset are transitions",
        f"{RL}/rollout/next_step_collector.py",
        "acting = self.rollout_start_step, ~self._ended",
        "acting = self.rollout_start_step, ~self._ended | True",
        f"{RL_TESTS}/algorithms/test_own_vector_envs.py::test_every_transition_of_cartpole_counts_once",
        "P2",
    ),
    Mutation(
        "an environment that steps on loses the observation that its last value is bootstrapped from",
        f"{RL}/rollout/next_step_collector.py",
        "if not (buffer.terminated[last, i] or buffer.truncated[last, i]):",
        "if False:",
        f"{RL_TESTS}/rollout/test_next_step_collector.py::"
        "test_the_last_value_of_an_environment_that_stepped_on_is_that_of_its_own_next_observation",
        "P2",
    ),
    Mutation(
        "memory keeps what it made of the last observation of an episode",
        f"{RL}/rollout/next_step_collector.py",
        "self._memory.forget(done | self._ended)",
        "self._memory.forget(done)",
        f"{RL_TESTS}/rollout/test_next_step_collector.py::"
        "test_rollouts_are_those_of_plain_loops_without_the_steps_that_only_reset",
        "P2",
    ),
)

NORMALIZATION = (
    Mutation(
        "reward scaling subtracts the mean",
        f"{RL}/preprocessing/normalization.py",
        "rewards / deviation",
        "(rewards - self._moments.mean[0]) / deviation",
        f"{RL_TESTS}/preprocessing/test_normalization.py::"
        "test_reward_scaling_divides_by_the_deviation_of_the_discounted_return_and_keeps_signs",
        "P4b",
    ),
    Mutation(
        "rewards are divided by their own deviation",
        f"{RL}/preprocessing/normalization.py",
        "self._moments.update(self._returns[:, None])",
        "self._moments.update(np.asarray(rewards)[:, None])",
        f"{RL_TESTS}/preprocessing/test_normalization.py::"
        "test_reward_scaling_divides_by_the_deviation_of_the_discounted_return_and_keeps_signs",
        "P4a",
    ),
    Mutation(
        "reward scaling remembers the last episode",
        f"{RL}/preprocessing/normalization.py",
        "self._returns[done] = 0.0",
        "pass",
        f"{RL_TESTS}/preprocessing/test_normalization.py::"
        "test_reward_scaling_divides_by_the_deviation_of_the_discounted_return_and_keeps_signs",
        "P4c",
    ),
    Mutation(
        "compiled reward scaling remembers the last episode",
        f"{RL}/preprocessing/compiled_moments.py",
        "if done[t, i]:",
        "if done[0, i]:",
        f"{RL_TESTS}/preprocessing/test_compiled_moments.py::test_scaled_rewards_and_their_statistics",
    ),
    Mutation(
        "compiled statistics count a batch as one sample",
        f"{RL}/preprocessing/normalization.py",
        "self.moments.count += n\n",
        "self.moments.count += 1\n",
        f"{RL_TESTS}/preprocessing/test_compiled_moments.py::test_observations_and_their_statistics",
    ),
    Mutation(
        "the steps before an interruption are counted again",
        f"{RL}/rollout/host_collector.py",
        "self._count(first, ",
        "self._count(0, ",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one",
    ),
    Mutation(
        "normalizing learns",
        f"{RL}/preprocessing/normalization.py",
        "scaled = (observations - self._shift) * self._scale",
        "self.update(observations)\n        scaled = (observations - self._shift) * self._scale",
        f"{RL_TESTS}/preprocessing/test_normalization.py::test_normalizing_does_not_learn_nor_change_what_it_is_given",
        "P5a",
    ),
    Mutation(
        "observations are learnt again in the update",
        f"{RL}/algorithms/ppo_trainer.py",
        "estimates = self._collector.estimates()\n",
        "estimates = self._collector.estimates()\n"
        "            self.policy.observations.normalizer.update(estimates.batch.observations.numpy())\n",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::test_normalization_is_frozen_during_an_update",
        "P5a",
    ),
    Mutation(
        "evaluation learns",
        f"{RL}/preprocessing/observations.py",
        "return self.encode(observation)",
        "self.normalizer and self.normalizer.update(np.ones((1, self.size)))\n        return self.encode(observation)",
        f"{RL_TESTS}/policies/test_policy.py::test_acting_changes_nothing_in_the_policy",
        "P5b",
    ),
    Mutation(
        "final observations are not normalized",
        f"{RL}/rollout/host_collector.py",
        "buffer.observations[t], policy.observations.process_one",
        "buffer.observations[t], policy.observations.encode_one",
        f"{RL_TESTS}/rollout/test_host_collector.py::test_final_observations_are_normalized_as_all_others",
        "P5d",
    ),
    Mutation(
        "final observations are learnt from",
        f"{RL}/rollout/host_collector.py",
        'finish(infos["final_obs"][i])[0]',
        'self._learn_and_normalize(policy.observations.encode_one(infos["final_obs"][i]))[0]',
        f"{RL_TESTS}/rollout/test_host_collector.py::test_final_observations_are_normalized_as_all_others",
        "P5d",
    ),
    Mutation(
        "values change with their units",
        f"{RL}/policies/policy.py",
        "output.weight.mul_(scale)",
        "pass",
        f"{RL_TESTS}/rollout/test_estimates.py::"
        "test_normalized_values_mean_what_plain_ones_do_before_and_after_learning_their_units[False]",
    ),
    Mutation(
        "advantages from normalized values",
        f"{RL}/rollout/estimates.py",
        "policy.values.to_rewards(values).view(",
        "values.view(",
        f"{RL_TESTS}/rollout/test_estimates.py::"
        "test_normalized_values_mean_what_plain_ones_do_before_and_after_learning_their_units[False]",
    ),
    Mutation(
        "final values are left normalized",
        f"{RL}/rollout/estimates.py",
        "return policy.values.to_rewards(_values_of(policy.network, observations, remembered))",
        "return _values_of(policy.network, observations, remembered)",
        f"{RL_TESTS}/rollout/test_estimates.py::"
        "test_normalized_values_mean_what_plain_ones_do_before_and_after_learning_their_units[False]",
    ),
    Mutation(
        "rewards are kept as float64",
        f"{RL}/rollout/buffer.py",
        "self.rewards: Array = np.zeros((n_steps, num_envs), dtype=reward_type)",
        "self.rewards: Array = np.zeros((n_steps, num_envs))",
        f"{RL_TESTS}/rollout/test_estimates.py::test_everything_that_an_update_learns_from_is_float32",
        "P16",
    ),
)

MEMORY = (
    Mutation(
        "memory outlives the episode while acting",
        f"{RL}/policies/acting.py",
        "self.state = np.where(done[:, None], np.float32(0.0), self.state)",
        "pass",
        f"{RL_TESTS}/algorithms/test_policy_kinds.py::test_the_update_sees_the_policy_that_acted[gru]",
        "P3b",
    ),
    Mutation(
        "memory is lost between two rollouts",
        f"{RL}/rollout/host_collector.py",
        "None if self._memory is None else self._memory.state)",
        "None if self._memory is None else 0 * self._memory.state)",
        f"{RL_TESTS}/algorithms/test_policy_kinds.py::test_the_update_sees_the_policy_that_acted[gru]",
        "P3b",
    ),
    Mutation(
        "V(final_obs) knows nothing of its episode",
        f"{RL}/rollout/estimates.py",
        "else evaluation.states[list(steps), list(envs)]",
        "else 0 * evaluation.states[list(steps), list(envs)]",
        f"{RL_TESTS}/algorithms/test_policy_kinds.py::"
        "test_the_value_of_a_final_observation_knows_the_episode_that_ended_there[gru]",
        "P3a",
    ),
    Mutation(
        "V(final_obs) has the state before the step",
        f"{RL}/rollout/estimates.py",
        "else evaluation.states[list(steps), list(envs)]",
        "else evaluation.states[[step - 1 for step in steps], list(envs)]",
        f"{RL_TESTS}/algorithms/test_policy_kinds.py::"
        "test_the_value_of_a_final_observation_knows_the_episode_that_ended_there[gru]",
        "P3a",
    ),
)

ACTIONS_TAKEN = (
    Mutation(
        "the clipped action is kept for the update",
        f"{RL}/rollout/host_collector.py",
        "buffer.store(actions, rewards",
        "buffer.store(policy.fit_actions(actions), rewards",
        f"{RL_TESTS}/rollout/test_host_collector.py::test_unclipped_actions_are_kept_and_clipped_ones_are_taken",
        "P12a",
    ),
    Mutation(
        "numbers reach the environment unclipped",
        f"{RL}/preprocessing/spaces.py",
        "actions.reshape(shape).clip(low, high)",
        "actions.reshape(shape)",
        f"{RL_TESTS}/rollout/test_host_collector.py::test_unclipped_actions_are_kept_and_clipped_ones_are_taken",
        "P12b",
    ),
    Mutation(
        "float64 reaches the network",
        f"{RL}/preprocessing/spaces.py",
        "np.asarray(batch, dtype=dtype).reshape(-1, size), size",
        "np.asarray(batch).reshape(-1, size), size",
        f"{RL_TESTS}/preprocessing/test_spaces.py::test_encoded_observations_equal_gymnasiums_flattening",
        "P16",
    ),
    Mutation(
        "float64 statistics reach the network",
        f"{RL}/preprocessing/normalization.py",
        "self._shift = self.moments.mean.astype(np.float32)",
        "self._shift = self.moments.mean",
        f"{RL_TESTS}/preprocessing/test_normalization.py::test_observations_come_out_standardized_clipped_and_in_float32",
        "P16",
    ),
)
