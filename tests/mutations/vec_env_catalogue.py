"""Mistakes that are easily made in vectorized environments."""

from tests.mutations.mutation import RL, RL_TESTS, Mutation

CONTRACT = "tests/contracts/test_vector_env_contract.py::TestSerialEnv"


ENVIRONMENTS = (
    Mutation(
        "the final observation is kept after the reset",
        f"{RL}/core/stepping/env_block.py",
        """                            self._keep_final(reply, index, observation, info)
                            observation, info = self._reset_after_episode(slot)
""",
        """                            final = observation
                            observation, info = self._reset_after_episode(slot)
                            self._keep_final(reply, index, final, info)
""",
        f"{CONTRACT}::test_final_observation_is_copied_before_the_reset",
        "V1",
    ),
    Mutation(
        "every environment has the same seed",
        f"{RL}/core/vec_base.py",
        "int(seed) + index for index",
        "int(seed) for index",
        f"{CONTRACT}::test_environment_i_is_seeded_by_its_index",
    ),
    Mutation(
        "an explicit reset leaves the autoreset pending",
        f"{RL}/core/stepping/env_block.py",
        "slot.needs_reset = expired",
        "slot.needs_reset = slot.needs_reset or expired",
        f"{CONTRACT}::test_explicit_reset_clears_a_pending_autoreset",
        "V2",
    ),
    Mutation(
        "the caller's mask is taken out of its dict",
        f"{RL}/core/vec_base.py",
        'return mask, {key: value for key, value in options.items() if key != "reset_mask"}',
        'del options["reset_mask"]\n    return mask, options',
        "tests/contracts/test_vector_env_contract.py::TestSerialEnv::test_mask_resets_only_those",
        "V3a",
    ),
    Mutation(
        "a NumPy integer is no seed",
        f"{RL}/core/vec_base.py",
        "isinstance(seed, Integral)",
        "isinstance(seed, int)",
        "tests/contracts/test_vector_env_contract.py::TestSerialEnv::test_environment_i_is_seeded_by_its_index[np]",
        "V3b",
    ),
    Mutation(
        "a finished environment is stepped on",
        f"{RL}/core/vec_base.py",
        "if len(finished):",
        "if False:",
        "tests/contracts/test_vector_env_contract.py::TestSerialEnv::"
        "test_disabled_autoreset_refuses_a_finished_environment",
        "V3c",
    ),
)

WORKERS = (
    Mutation(
        "a late reply is taken for the next",
        f"{RL}/core/workers/pool.py",
        "            elif worker.state is not IDLE:\n                self._finish(index)",
        "            elif worker.state is not IDLE:\n                worker.state = IDLE",
        f"{RL_TESTS}/core/test_vec_env.py::test_a_late_reply_is_not_taken_for_the_next",
        "V4",
    ),
    Mutation(
        "a dead worker is a bare EOFError",
        f"{RL}/core/workers/pool.py",
        "        except EOFError:\n            self._lose(index, worker.death())",
        "        except EOFError:\n            raise",
        f"{RL_TESTS}/core/workers/test_pool.py::test_a_worker_killed_while_idle_is_named[forkserver-9]",
        "V5a",
    ),
    Mutation(
        "a death is noticed when its turn comes",
        f"{RL}/core/workers/pool.py",
        "for index, worker in list(self._processes.items()):\n            if worker.state is not IDLE and worker.link",
        "for index, worker in ():\n            if worker.state is not IDLE and worker.link",
        f"{RL_TESTS}/core/workers/test_pool.py::"
        "test_a_worker_killed_in_mid_step_is_named_though_others_are_busy[forkserver]",
        "V5b",
    ),
    Mutation(
        "a suspension counts as a hang",
        f"{RL}/core/workers/process.py",
        "self._left_s -= min(passed_s, _LONGEST_GAP_S)",
        "self._left_s -= passed_s",
        f"{RL_TESTS}/core/workers/test_time_limit.py::test_many_suspensions_do_not_hide_a_hang",
    ),
    Mutation(
        "a death in a group that nobody waits for goes unnoticed",
        f"{RL}/core/workers/pool.py",
        "if now > self._next_watch and len(indices) < len(self._processes):",
        "if False:",
        f"{RL_TESTS}/core/test_partial_steps.py::"
        "test_a_death_is_noticed_while_other_groups_are_in_a_long_step[briefly_again_and_again-idle]",
        "V5b",
    ),
    Mutation(
        "the seeds of new episodes depend on who else was lost",
        f"{RL}/core/workers/restarts.py",
        "self._losses[index] + 1",
        "self.total + 1",
        f"{RL_TESTS}/core/workers/test_restarts.py::test_new_seeds_do_not_depend_on_who_else_was_lost",
    ),
    Mutation(
        "the fork server's socket has too long an address",
        f"{RL}/core/workers/fork_server.py",
        "if len(os.fsencode(folder)) + _NAME_BYTES <= _LONGEST_ADDRESS_BYTES:",
        "if True:",
        f"{RL_TESTS}/core/workers/test_fork_server.py::"
        "test_workers_start_however_long_the_path_of_the_temporary_folder_is[87]",
    ),
    Mutation(
        "workers outlive a killed trainer",
        f"{RL}/core/workers/main.py",
        "    _wait_for_end(trainer_pid)\n    end_with_group()",
        "    _wait_for_end(trainer_pid)",
        f"{RL_TESTS}/core/workers/test_main.py::test_workers_vanish_when_the_trainer_is_killed[forkserver]",
        "V5c",
    ),
    Mutation(
        "a killed trainer's files are left",
        f"{RL}/core/workers/preload.py",
        "        shutil.rmtree(folder, ignore_errors=True)",
        "        pass",
        f"{RL_TESTS}/core/workers/test_fork_server.py::test_the_folder_goes_with_a_killed_trainer[True]",
        "V5d",
    ),
    Mutation(
        "a folder is removed while its owner lives",
        "ml_pipeline/runtime/process_identity.py",
        "is_alive(owner) is False",
        "is_alive(owner) is not None",
        "tests/runtime/test_process_identity.py::test_the_folder_of_a_living_process_stays",
    ),
    Mutation(
        "folders of killed runs stay",
        "ml_pipeline/runtime/process_identity.py",
        "if _is_abandoned(left):",
        "if False:",
        f"{RL_TESTS}/core/workers/test_fork_server.py::"
        "test_the_next_run_removes_the_folder_where_the_server_was_killed_too",
    ),
    Mutation(
        "Ctrl-C ends the workers",
        f"{RL}/core/workers/main.py",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "signal.signal(signal.SIGINT, signal.SIG_DFL)",
        f"{RL_TESTS}/core/workers/test_main.py::test_signals_to_all_processes_are_left_to_the_trainer[SIGINT-forkserver]",
        "V6a",
    ),
    Mutation(
        "environments in workers are never closed",
        f"{RL}/core/workers/main.py",
        "        _send(link, number, reply, block)\n    block.close()\n",
        "        _send(link, number, reply, block)\n",
        f"{RL_TESTS}/core/workers/test_main.py::test_closing_closes_the_environments_of_workers",
        "V6b",
    ),
    Mutation(
        "fork is the default",
        f"{RL}/core/vec_env.py",
        '"forkserver" if sys.platform == "linux"',
        '"fork" if sys.platform == "linux"',
        f"{RL_TESTS}/core/test_vec_env.py::test_the_default_start_method_is_the_safe_one_of_the_platform",
        "V7a",
    ),
    Mutation(
        "forking beside threads is not warned of",
        f"{RL}/core/workers/start.py",
        "threading.active_count() > 1",
        "False",
        f"{RL_TESTS}/core/workers/test_pool.py::test_fork_warns_once_threads_run",
        "V7b",
    ),
    Mutation(
        "numerical libraries in workers take every core",
        f"{RL}/core/workers/start.py",
        "environ = {**os.environ, **ONE_THREAD}",
        "environ = {**ONE_THREAD, **os.environ}",
        f"{RL_TESTS}/core/workers/test_main.py::test_workers_are_light_and_know_the_environment[forkserver]",
        "V8",
    ),
    Mutation(
        "waits spin on a full machine",
        f"{RL}/core/workers/open.py",
        "_SPIN_S if division.n_workers + 1 <= usable_cores() else 0.0",
        "_SPIN_S",
        f"{RL_TESTS}/core/test_vec_env.py::test_waits_spin_only_where_every_spinner_has_a_core",
        "V9a",
    ),
    Mutation(
        "the quota is not looked at",
        "ml_pipeline/runtime/cores.py",
        "min([float(len(_allowed())), *_quotas()])",
        "float(len(_allowed()))",
        "tests/runtime/test_cores.py::test_the_smaller_of_quota_and_affinity_counts",
        "V9b",
    ),
    Mutation(
        "the affinity mask is not looked at",
        "ml_pipeline/runtime/cores.py",
        "min([float(len(_allowed())), *_quotas()])",
        "min([1024.0, *_quotas()])",
        "tests/runtime/test_cores.py::test_the_smaller_of_quota_and_affinity_counts",
        "V9b",
    ),
    Mutation(
        "shared memory has no place until it is written",
        f"{RL}/core/stepping/batch.py",
        "os.posix_fallocate(fd, 0, nbytes)",
        "os.ftruncate(fd, nbytes)",
        f"{RL_TESTS}/core/stepping/test_batch.py::test_memory_is_zero_and_has_its_place_from_the_beginning[folder]",
    ),
    Mutation(
        "shared memory has a name",
        f"{RL}/core/workers/start.py",
        "        self._memory = allocate(layout.nbytes(), num_envs=layout.num_envs)",
        "        from multiprocessing.shared_memory import SharedMemory\n\n"
        "        self._named = SharedMemory(create=True, size=layout.nbytes())\n"
        "        self._memory = allocate(layout.nbytes(), num_envs=layout.num_envs)",
        f"{RL_TESTS}/core/workers/test_main.py::test_nothing_is_left_behind[forkserver]",
        "V10",
    ),
)
