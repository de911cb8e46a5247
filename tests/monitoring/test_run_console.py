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
        '   4 iterations, 4,000 environment steps in all; "Episode 1/4" is the first iteration (rollout and update)',
        "   Run folder: runs/a",
    ]
    assert block.startswith("  Reward:   123.45")
    assert block.endswith(
        "n_envs: 8\n  iterations: 4  |  episodes finished so far: 3\nEvaluation after iteration 4: 9\n"
    )


def test_before_a_run_begins_sentences_are_lines(tmp_path):
    out = io.StringIO()
    console = RunConsole(out)
    console.say("Stopping.")
    console.close()
    assert out.getvalue() == "Stopping.\n"
