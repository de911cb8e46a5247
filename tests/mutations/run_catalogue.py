"""Mistakes that are easily made in what surrounds an update: saving, resuming, evaluating, exporting."""

from tests.mutations.mutation import RL, RL_TESTS, Mutation

SAVING = (
    Mutation(
        "normalization is not saved with the policy",
        f"{RL}/policies/policy.py",
        'self.observations.normalizer.load_state_dict(state["normalizer"])',
        "pass",
        f"{RL_TESTS}/policies/test_policy.py::test_a_saved_policy_acts_the_same",
        "P5c",
    ),
    Mutation(
        "the units of values are not saved with the policy",
        f"{RL}/policies/policy.py",
        'self.values.load_state_dict(state["value_normalizer"])',
        "pass",
        f"{RL_TESTS}/policies/test_policy.py::test_a_saved_policy_keeps_the_units_of_its_values",
    ),
    Mutation(
        "the optimizer's state is not saved",
        f"{RL}/update/ppo_update.py",
        'self._steps.optimizer.load_state_dict(state["optimizer"])',
        "pass",
        f"{RL_TESTS}/update/test_ppo_update.py::test_a_restored_update_goes_on_with_the_same_bits",
    ),
    Mutation(
        "memory is not saved",
        f"{RL}/rollout/host_collector.py",
        'self._memory.state = state["memory"].numpy()',
        "pass",
        f"{RL_TESTS}/algorithms/test_policy_kinds.py::"
        "test_an_interrupted_run_gone_on_with_by_workers_equals_the_uninterrupted_one[gru]",
    ),
    Mutation(
        "a checkpoint is written over the last one",
        "ml_pipeline/runtime/files.py",
        'path.with_name(path.name + ".tmp")',
        "path",
        "tests/runs/test_checkpoint.py::test_a_failed_write_leaves_the_old_checkpoint_and_no_rubbish",
    ),
    Mutation(
        "a checkpoint may run code",
        "ml_pipeline/runs/checkpoint.py",
        "weights_only=True",
        "weights_only=False",
        "tests/runs/test_checkpoint.py::test_a_checkpoint_that_holds_code_is_refused",
    ),
    Mutation(
        "pickles of somebody else are opened",
        "ml_pipeline/runs/checkpoint.py",
        'if not trusted and not is_signed(_signed(body), signature.decode("latin-1")):',
        "if False:",
        "tests/runs/test_pickled_environments.py::test_pickles_of_somebody_else_run_no_code[latest.pt]",
    ),
    Mutation(
        "the pickles of the checkpoint that was just written are removed",
        "ml_pipeline/runs/checkpoint.py",
        "if path != kept and ours.fullmatch(path.name):",
        "if ours.fullmatch(path.name):",
        "tests/runs/test_pickled_environments.py::"
        "test_an_own_run_goes_on_bit_for_bit_also_from_a_folder_that_was_moved",
    ),
    Mutation(
        "an account's holdings are not saved",
        "ml_pipeline/trading/accounts/single.py",
        'self._account[:], self._money[:2] = state["account"], state["money"]',
        'self._money[:2] = state["money"]',
        "tests/trading/envs/test_plain_states.py::"
        "test_a_state_goes_on_with_the_same_bits_in_another_environment[target_weights-compiled-FastTradingEnv]",
    ),
)

FOLDERS = (
    Mutation(
        "two runs that start at once both write a folder",
        "ml_pipeline/runtime/files.py",
        "return fcntl.flock(descriptor, fcntl.LOCK_EX if",
        "return None and (fcntl.LOCK_EX if",
        "tests/runs/test_folder_claim.py::test_of_processes_that_start_at_once_one_wins_each_folder[nothing]",
    ),
    Mutation(
        "a pid that another process has by now counts as the writer",
        "ml_pipeline/runtime/process_identity.py",
        "started == process.started",
        "True",
        "tests/runs/test_folder_claim.py::test_a_pid_of_another_process_by_now_is_no_writer",
    ),
    Mutation(
        "a killed run reads as running",
        "ml_pipeline/runs/state.py",
        'state.status != "running" or is_alive(state.writer) is not False',
        "True",
        "tests/runs/test_folder_claim.py::test_a_killed_run_reads_as_failed_and_its_folder_is_taken_over",
    ),
    Mutation(
        "a run that is being written is resumed elsewhere",
        "ml_pipeline/runs/run.py",
        "check_not_written(checkpoint.absolute().parent)",
        "pass",
        "tests/runs/test_run_folders.py::test_a_folder_that_is_being_written_is_refused_to_a_new_run_and_to_a_resumption",
    ),
    Mutation(
        "a thread that learns leaves its thread count to new threads",
        "ml_pipeline/models/rl/policies/threads_and_device.py",
        "target=torch.set_num_threads, args=(usual,)",
        "target=torch.get_num_threads",
        "tests/models/rl/policies/test_threads_and_device.py::"
        "test_threads_of_others_are_as_many_as_before_within_the_block_and_after_it",
    ),
)

RESUMING = (
    Mutation(
        "a finished run that is resumed gets new settings though nothing is trained",
        "ml_pipeline/runs/run.py",
        "if not self.trainer.finished and ranks.is_first:",
        "if ranks.is_first:",
        "tests/runs/test_run_folders.py::test_a_finished_run_that_is_resumed_keeps_its_files",
    ),
    Mutation(
        "new settings of a resumed run are lost if it is killed",
        "ml_pipeline/runs/run.py",
        " and not self._is_latest(self._resumed_from):",
        " and trainer.global_step == 0:",
        "tests/runs/test_run_folders.py::test_new_settings_of_a_resumed_run_are_in_its_checkpoint_from_the_beginning",
    ),
    Mutation(
        "the order of minibatches begins anew after a resumption",
        f"{RL}/update/ppo_update.py",
        'restore(self._steps.generator, state["generator"])',
        "pass",
        f"{RL_TESTS}/update/test_ppo_update.py::test_a_restored_update_goes_on_with_the_same_bits",
    ),
    Mutation(
        "actions on a device begin anew after a resumption",
        f"{RL}/rollout/device_collector.py",
        'self._generator.set_state(state["generator"])',
        "pass",
        f"{RL_TESTS}/rollout/test_device_collector.py::test_resumed_equals_uninterrupted",
    ),
    Mutation(
        "a resumed run waits anew for its plateau",
        f"{RL}/algorithms/callbacks.py",
        'self._best, self._since = state["best"], state["since"]',
        "pass",
        f"{RL_TESTS}/algorithms/test_early_stopping.py::"
        "test_a_resumed_run_stops_on_its_plateau_where_the_uninterrupted_one_does",
    ),
    Mutation(
        "actions begin anew after a resumption",
        f"{RL}/rollout/host_collector.py",
        'restore_generator(self._noise_generator, state["noise_generator"])',
        "pass",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::"
        "test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one[box-17]",
    ),
    Mutation(
        "environments begin anew after a resumption",
        f"{RL}/algorithms/ppo_trainer.py",
        "restore_states(self._envs, environments, self._ranks)",
        "self._envs.reset(seed=0)",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::"
        "test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one[box-17]",
    ),
    Mutation(
        "reward scaling begins anew after a resumption",
        f"{RL}/rollout/collector.py",
        'self._reward_scaler.load_state_dict(state["reward_scaler"])',
        "pass",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::"
        "test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one[box-17]",
    ),
    Mutation(
        "a schedule begins anew after a resumption",
        f"{RL}/rollout/collector.py",
        'self.global_step = state["global_step"]',
        "pass",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::"
        "test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one[box-17]",
    ),
    Mutation(
        "iterations are counted anew after a resumption",
        f"{RL}/algorithms/ppo_trainer.py",
        'self.iteration = state["iteration"]',
        "pass",
        f"{RL_TESTS}/algorithms/test_ppo_trainer.py::"
        "test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one[box-17]",
    ),
    Mutation(
        "steps that do not divide are left out",
        f"{RL}/algorithms/ppo_trainer.py",
        "return -(-(self._requested_timesteps - self._collector.rollout_start_step) // self._rollout_size)",
        "return (self._requested_timesteps - self._collector.rollout_start_step) // self._rollout_size",
        f"{RL_TESTS}/algorithms/test_training_length.py::test_steps_are_rounded_up_to_whole_rollouts",
        "P15b",
    ),
)

JUDGING = (
    Mutation(
        "an evaluation remembers the episode before",
        f"{RL}/algorithms/evaluation.py",
        "        begin_episode(act)\n",
        "        pass\n",
        f"{RL_TESTS}/algorithms/test_evaluation.py::test_an_actor_that_remembers_is_told_where_episodes_begin",
        "P3b",
    ),
    Mutation(
        "an exported policy forgets its normalization",
        f"{RL}/policies/exported.py",
        "scaled = (encoded - self.shift) * self.scale",
        "scaled = encoded",
        "tests/runs/trained/test_export.py::test_a_torch_file_is_proven_for_every_kind_of_policy[plain]",
        "P5c",
    ),
    Mutation(
        "a policy that gives NaN goes on learning",
        f"{RL}/rollout/estimates.py",
        "if not math.isfinite(rows.sum().item()):",
        "if False:",
        f"{RL_TESTS}/rollout/test_estimates.py::test_a_policy_that_gives_nan_is_named[actor-log-probability]",
    ),
)
