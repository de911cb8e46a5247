"""Mistakes that are easily made where runs change while they go on, share workers and wait for each other."""

from tests.mutations.mutation import RL, RL_TESTS, Mutation

SCALING = (
    Mutation(
        "environments begin anew in other workers",
        f"{RL}/core/vec_env.py",
        "new.post(Command.SET_STATES, None, list(states))",
        "new.post(Command.SET_STATES, None, [None] * len(states))",
        f"{RL_TESTS}/core/test_rescaling.py::test_views_stay_readable_and_the_next_step_has_its_own",
    ),
    Mutation(
        "episodes of a lost worker are forgotten where environments are replaced",
        f"{RL}/algorithms/trainer_envs.py",
        "            envs.check_reported()",
        "            pass",
        f"{RL_TESTS}/algorithms/test_replacing_envs.py::"
        "test_episodes_of_a_lost_worker_are_reported_before_environments_are_replaced",
    ),
    Mutation(
        "a change that was requested stands in no schedule",
        "ml_pipeline/runs/training/env_scaling.py",
        "config = replace(self.config, run=replace(run, n_envs_schedule=schedule))",
        "config = self.config",
        "tests/runs/training/test_env_scaling.py::test_a_run_scaled_by_hand_has_the_bits_of_one_that_was_planned",
    ),
    Mutation(
        "a request is taken again and again",
        "ml_pipeline/runs/requests.py",
        "os.replace(self._path, taken)",
        "os.link(self._path, taken)",
        "tests/runs/test_requests.py::test_a_request_is_taken_once",
    ),
)

LEASES = (
    Mutation(
        "environments that move to other workers count twice",
        "ml_pipeline/runtime/env_limit.py",
        "WHERE is_held OR id = ? GROUP BY batch)",
        "WHERE is_held OR id = ? GROUP BY id)",
        "tests/runtime/test_env_limit.py::test_environments_that_move_count_once",
    ),
    Mutation(
        "a lease of a killed process is never taken back",
        "ml_pipeline/runtime/env_limit.py",
        "            _drop_ended(file)\n",
        "",
        "tests/runs/test_env_pool.py::test_the_lease_of_a_killed_run_is_taken_back",
    ),
)

QUEUE = (
    Mutation(
        "a queued run reads as failed once its service is gone",
        "ml_pipeline/runs/state.py",
        'if state is None or state.status != "running" or is_alive(state.writer) is not False:',
        'if state is None or state.status not in {"queued", "running"} or is_alive(state.writer) is not False:',
        "tests/runs/test_record_state.py::"
        "test_a_queued_run_stays_queued_when_its_service_is_gone_and_is_taken_over_by_its_run",
    ),
    Mutation(
        "a run starts where one part of the budget is left",
        "ml_pipeline/jobs/budget.py",
        "return all(a <= b for",
        "return any(a <= b for",
        "tests/jobs/test_budget.py::test_each_part_of_the_budget_holds_a_run_back",
    ),
)
