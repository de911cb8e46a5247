"""What a run says on the terminal: how it steps and where it writes, then its progress."""

import io

from ml_pipeline.monitoring.listener import RunStart
from ml_pipeline.monitoring.run_console import RunConsole

FIGURES = {
    "time/iteration": 4,
    "time/global_step": 4000,
    "rollout/episode_return": 123.45,
    "rollout/episode_length": 234.0,
    "rollout/mean_return_100": 120.12,
    "rollout/n_completed_episodes": 3,
}


def start_in(folder):
    return RunStart(folder, 8, 2, "forkserver", total_iterations=4, total_steps=4000, first_step=0)


def test_one_iteration_is_no_plural(tmp_path):
    out = io.StringIO()
    start = RunStart(tmp_path, 1, 0, None, total_iterations=1, total_steps=32, first_step=0)
    RunConsole(out).started(start)
    assert "   1 iteration, 32 transitions" in out.getvalue()


def test_a_run_opens_with_how_it_steps_and_its_folder_and_ends_with_a_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    console = RunConsole(out)
    console.started(start_in(tmp_path / "runs" / "a"))
    console.write(FIGURES, [])
    console.say("Evaluation after iteration 4: 9")
    console.trained()
    console.close()
    opening, block = out.getvalue().split("Episode 4/4\n")
    assert opening.splitlines() == [
        "🚀 Using 8 parallel environments for training",
        "   Start method: forkserver · 2 workers",
        "   4 iterations, 4,000 transitions (environment steps) in all; "
        '"Episode 1/4" is the first iteration (rollout and update)',
        "   Run folder: runs/a",
        "Parallel mode: 8 environments",
    ]
    assert block.startswith("  Reward:   123.45")
    assert block.endswith(
        "n_envs: 8\n  iterations: 4  |  episodes finished so far: 3\nEvaluation after iteration 4: 9\n"
    )


def opening(start):
    out = io.StringIO()
    console = RunConsole(out)
    console.started(start)
    console.close()
    return out.getvalue().splitlines()


def test_a_length_in_iterations_names_the_total_timesteps_that_compare_fairly_with_one_environment(tmp_path):
    start = start_in(tmp_path)._replace(total_iterations=1000, total_steps=2_048_000, one_env_steps=256_000)
    assert (
        "   --num-episodes counts iterations, so 8 environments train on 8 times the transitions of one; "
        "--total-timesteps 256000 trains on as many as one"
    ) in opening(start)
    assert not any("--num-episodes" in line for line in opening(start._replace(one_env_steps=None)))


def test_one_environment_is_no_parallel_mode_and_needs_no_comparison(tmp_path):
    start = start_in(tmp_path)._replace(n_envs=1, n_workers=0, start_method=None, one_env_steps=4000)
    assert not any("Parallel mode" in line or "--num-episodes" in line for line in opening(start))


def test_a_start_method_without_workers_is_said_to_have_no_effect(tmp_path):
    start = start_in(tmp_path)._replace(n_workers=0, start_method=None)
    assert opening(start)[1] == "   In the trainer's process · no workers"
    assert opening(start._replace(unused_start_method="spawn"))[1] == (
        "   In the trainer's process · no workers, so --parallel-start-method spawn has no effect"
    )


def test_before_a_run_begins_sentences_are_lines(tmp_path):
    out = io.StringIO()
    console = RunConsole(out)
    console.say("Stopping.")
    console.close()
    assert out.getvalue() == "Stopping.\n"
