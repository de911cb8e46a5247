"""Mistakes that are easily made in networks, distributions and masks of actions."""

from tests.mutations.mutation import RL, RL_TESTS, Mutation

BEGINNINGS = (
    Mutation(
        "weights are not orthogonal",
        f"{RL}/networks/mlp.py",
        "nn.init.orthogonal_(linear.weight, output_gain if last else math.sqrt(2.0), generator=generator)",
        "nn.init.xavier_uniform_(linear.weight, output_gain if last else math.sqrt(2.0), generator=generator)",
        f"{RL_TESTS}/networks/test_mlp.py::test_weights_are_orthogonal_with_their_gain_and_biases_zero",
        "P11a",
    ),
    Mutation(
        "hidden gain 1",
        f"{RL}/networks/mlp.py",
        "math.sqrt(2.0)",
        "1.0",
        f"{RL_TESTS}/networks/test_mlp.py::test_weights_are_orthogonal_with_their_gain_and_biases_zero",
        "P11b",
    ),
    Mutation(
        "policy gain 1",
        f"{RL}/networks/actor_critic.py",
        "self.actor = build_mlp(of_actor, activation=activation, output_gain=0.01",
        "self.actor = build_mlp(of_actor, activation=activation, output_gain=1.0",
        f"{RL_TESTS}/networks/test_actor_critic.py::test_the_last_layers_have_gains_of_a_hundredth_and_one",
        "P11b",
    ),
    Mutation(
        "value gain 0.01",
        f"{RL}/networks/actor_critic.py",
        "self.critic = build_mlp(of_critic, activation=activation, output_gain=1.0",
        "self.critic = build_mlp(of_critic, activation=activation, output_gain=0.01",
        f"{RL_TESTS}/networks/test_actor_critic.py::test_the_last_layers_have_gains_of_a_hundredth_and_one",
        "P11b",
    ),
    Mutation(
        "policy gain 1 where layers are shared",
        f"{RL}/networks/actor_critic.py",
        "self.actor_head = build_mlp(of_actor, activation=activation, output_gain=0.01",
        "self.actor_head = build_mlp(of_actor, activation=activation, output_gain=1.0",
        f"{RL_TESTS}/networks/test_general_actor_critic.py::test_gains_are_those_of_two_perceptrons",
        "P11b",
    ),
    Mutation(
        "value gain 0.01 where layers are shared",
        f"{RL}/networks/actor_critic.py",
        "self.critic_head = build_mlp(of_critic, activation=activation, output_gain=1.0",
        "self.critic_head = build_mlp(of_critic, activation=activation, output_gain=0.01",
        f"{RL_TESTS}/networks/test_general_actor_critic.py::test_gains_are_those_of_two_perceptrons",
        "P11b",
    ),
    Mutation(
        "hidden gain 1 where layers are shared",
        f"{RL}/networks/actor_critic.py",
        "hidden = build_mlp(sizes, activation=config.activation, output_gain=np.sqrt(2.0)",
        "hidden = build_mlp(sizes, activation=config.activation, output_gain=1.0",
        f"{RL_TESTS}/networks/test_general_actor_critic.py::test_gains_are_those_of_two_perceptrons",
        "P11b",
    ),
    Mutation(
        "a value network of its own sizes has the policy's",
        f"{RL}/networks/actor_critic.py",
        "*(value_hidden_sizes or hidden_sizes), 1)",
        "*hidden_sizes, 1)",
        f"{RL_TESTS}/networks/test_actor_critic.py::test_the_critic_may_have_sizes_of_its_own",
    ),
    Mutation(
        "log-deviation begins at -0.5",
        f"{RL}/networks/distributions.py",
        "nn.Parameter(torch.zeros(size))",
        "nn.Parameter(torch.full((size,), -0.5))",
        f"{RL_TESTS}/networks/test_distributions.py::test_a_new_gaussian_has_deviation_one_everywhere",
        "P11c",
    ),
)

DISTRIBUTIONS = (
    Mutation(
        "log-probabilities of the parts are averaged",
        f"{RL}/networks/distributions.py",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)\n",
        "return torch.stack(log_probs).mean(dim=0), torch.stack(entropies).sum(dim=0)\n",
        f"{RL_TESTS}/networks/test_distributions.py::test_log_probs_and_entropies_equal_those_of_torch",
        "P13c",
    ),
    Mutation(
        "entropies of the parts are averaged",
        f"{RL}/networks/distributions.py",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)\n",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).mean(dim=0)\n",
        f"{RL_TESTS}/networks/test_distributions.py::test_log_probs_and_entropies_equal_those_of_torch",
        "P13c",
    ),
    Mutation(
        "choices: log-probabilities are averaged",
        f"{RL}/networks/distributions.py",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)\n",
        "return torch.stack(log_probs).mean(dim=0), torch.stack(entropies).sum(dim=0)\n",
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::"
        "test_advantages_returns_values_and_log_probs_are_theirs[choices]",
        "P13c",
    ),
    Mutation(
        "choices: entropies are averaged",
        f"{RL}/networks/distributions.py",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0)\n",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).mean(dim=0)\n",
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::test_entropies_are_theirs[choices]",
        "P13c",
    ),
    Mutation(
        "in closed form: log-probabilities of the parts are averaged",
        f"{RL}/networks/distributions.py",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0), backward",
        "return torch.stack(log_probs).mean(dim=0), torch.stack(entropies).sum(dim=0), backward",
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::"
        "test_losses_and_gradients_are_theirs[float64--choices]",
        "P13c",
    ),
    Mutation(
        "in closed form: entropies of the parts are averaged",
        f"{RL}/networks/distributions.py",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).sum(dim=0), backward",
        "return torch.stack(log_probs).sum(dim=0), torch.stack(entropies).mean(dim=0), backward",
        f"{RL_TESTS}/algorithms/test_against_stable_baselines3.py::"
        "test_losses_and_gradients_are_theirs[float64--choices]",
        "P13c",
    ),
    Mutation(
        "squashing without its log-determinant",
        f"{RL}/networks/distributions.py",
        "return log_probs - _log_determinant(actions).sum(dim=1), entropies",
        "return log_probs, entropies",
        f"{RL_TESTS}/networks/test_distributions.py::test_log_probs_and_entropies_equal_those_of_torch",
    ),
    Mutation(
        "a forbidden choice is taken by the least noise",
        f"{RL}/networks/distributions.py",
        "(cumulative <= noise",
        "(cumulative < noise",
        f"{RL_TESTS}/networks/test_distributions.py::test_an_impossible_first_choice_is_not_taken",
    ),
)

BOUNDS = (
    Mutation(
        "normalized observations are clipped to 10 whatever is asked for",
        f"{RL}/preprocessing/observations.py",
        "columns=columns, clip=clip)",
        "columns=columns)",
        f"{RL_TESTS}/policies/test_policy.py::test_normalized_observations_are_clipped_where_the_configuration_says",
    ),
    Mutation(
        "on a device, normalized observations are clipped to 10 whatever is asked for",
        f"{RL}/rollout/device_collector.py",
        "clamp_(-self._clip, self._clip)",
        "clamp_(-CLIP, CLIP)",
        f"{RL_TESTS}/rollout/test_device_collector.py::"
        "test_the_same_noise_gives_what_arrays_give[settings4-one choice]",
    ),
)

MASKS = (
    Mutation(
        "masks are not applied in the update",
        f"{RL}/networks/actor_critic.py",
        "return self._of_actor(observations, tops[0])",
        "return self.actor_head(tops[0])",
        f"{RL_TESTS}/networks/test_general_actor_critic.py::"
        "test_forbidden_choices_have_no_probability_no_entropy_and_no_gradient",
        "P13b",
    ),
    Mutation(
        "masks are not applied in the rollout",
        f"{RL}/networks/actor_critic.py",
        "return self._of_actor(observations, self._towers[0](self._inputs[0](observations)[0]))",
        "return self.actor_head(self._towers[0](self._inputs[0](observations)[0]))",
        f"{RL_TESTS}/networks/test_general_actor_critic.py::"
        "test_a_policy_keeps_to_its_mask_and_says_where_that_forbids_everything",
        "P13a",
    ),
    Mutation(
        "a mask shifted by a choice",
        f"{RL}/networks/actor_critic.py",
        "torch.where(observations[:, self._mask] > 0.5",
        "torch.where(observations[:, self._mask].roll(1, 1) > 0.5",
        f"{RL_TESTS}/networks/test_general_actor_critic.py::"
        "test_a_policy_keeps_to_its_mask_and_says_where_that_forbids_everything",
        "P13a",
    ),
    Mutation(
        "masks beside the observation never become part of it",
        "ml_pipeline/runs/gym_task.py",
        "return ActionMaskInObservation(made) if mask_outside_observation else made",
        "return made",
        "tests/runs/test_gym_task.py::test_masks_are_kept_to_in_training_and_evaluation",
    ),
    Mutation(
        "nobody checks that a mask allows something",
        f"{RL}/preprocessing/action_mask.py",
        "if not allowed.all():",
        "if False:",
        "tests/runs/test_gym_task.py::test_a_mask_that_forbids_everything_is_one_sentence",
    ),
)

IMAGES = (
    Mutation(
        "the gradient through a convolution is not rectified",
        f"{RL}/networks/image_encoder.py",
        "_backward_of_relu.grad_input(gradient, inputs[i], 0, grad_input=gradient)",
        "pass",
        f"{RL_TESTS}/networks/test_image_encoder.py::test_outputs_and_gradients_are_those_of_autograd[dtype0]",
    ),
    Mutation(
        "memory taken while acting cannot be learned from",
        f"{RL}/networks/image_encoder.py",
        "with torch.inference_mode(False):",
        "with torch.inference_mode(torch.is_inference_mode_enabled()):",
        f"{RL_TESTS}/networks/test_image_encoder.py::test_a_thread_that_acted_first_can_learn",
    ),
    Mutation(
        "large weights learn from the first chunk alone",
        f"{RL}/update/gradient_chunks.py",
        "rows, *factors = (torch.cat(parts) for parts in zip(*columns, strict=True))",
        "rows, *factors = columns[0]",
        f"{RL_TESTS}/update/test_gradient_chunks.py::test_gradients_of_chunks_add_up_to_that_of_the_whole[images-2]",
    ),
    Mutation(
        "another thread learns no large weights",
        f"{RL}/networks/image_encoder.py",
        "_of_pass = threading.local()",
        "_of_pass = type(threading)('shared')",
        f"{RL_TESTS}/networks/test_image_encoder.py::test_another_thread_and_what_comes_after_get_whole_gradients",
    ),
    Mutation(
        "the last weights are never moved",
        f"{RL}/update/gradient_steps.py",
        "-(-len(self.parameters) // length)",
        "max(1, len(self.parameters) // length)",
        f"{RL_TESTS}/update/test_gradient_steps.py::test_slices_that_threads_share_move_every_weight_as_one_slice_does",
    ),
)
