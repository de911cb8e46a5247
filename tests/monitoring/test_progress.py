"""A terminal shows a bar, anything else a line now and then; the block reads the same on both."""

import io
import math

import pytest
import tqdm

from ml_pipeline.monitoring.listener import RunStart
from ml_pipeline.monitoring.progress import Progress, ProgressBar, RunConsole, episode_block


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now_s = 50.0

    def __call__(self):
        return self.now_s


def figures(iteration: int, **others: float) -> dict[str, float]:
    return {
        "time/iteration": iteration,
        "time/global_step": 1000 * iteration,
        "time/acting_s": 0.5 * iteration,
        "time/stepping_s": 0.25,
        "time/waiting_s": 0.0,
        "time/learning_s": 0.25,
        "rollout/episode_return": 123.45,
        "rollout/episode_length": 234.0,
        "rollout/mean_return_100": 120.12,
        "rollout/n_completed_episodes": 3,
        **others,
    }


def test_the_block_reads_as_agreed():
    assert episode_block(figures(10), total_iterations=1000, n_envs=8) == (
        "Episode 10/1000\n"
        "  Reward:   123.45  |  Length:  234  |  Mean(100):   120.12\n"
        "  n_completed_episodes: 3  |  n_envs: 8"
    )


def test_the_block_has_dashes_where_no_episode_has_ended():
    none = {"rollout/episode_return": math.nan, "rollout/episode_length": math.nan}
    block = episode_block(
        figures(1, **none, **{"rollout/mean_return_100": math.nan, "rollout/n_completed_episodes": 0}),
        total_iterations=5,
        n_envs=1,
    )
    assert block == (
        "Episode 1/5\n"
        "  Reward:        -  |  Length:    -  |  Mean(100):        -\n"
        "  n_completed_episodes: 0  |  n_envs: 1"
    )


@pytest.mark.parametrize(
    ("value", "shown"), [(-0.01234, "  -0.0123"), (0.0, "   0.0000"), (-21.0, "   -21.00"), (12345678.9, "12345678.90")]
)
def test_small_returns_show_four_decimals(value, shown):
    block = episode_block(figures(1, **{"rollout/episode_return": value}), total_iterations=1, n_envs=1)
    assert f"Reward:{shown}  |" in block


def test_where_there_is_no_terminal_a_line_comes_at_intervals():
    out, clock = io.StringIO(), Clock()
    progress = Progress(total_iterations=100, total_steps=100_000, n_envs=8, first_step=2000, out=out, clock=clock)
    for iteration, seconds in ((3, 4.0), (4, 9.9), (5, 10.0), (6, 19.9), (7, 25.0)):
        clock.now_s = 50.0 + seconds
        progress.write(figures(iteration), [])
    progress.close()
    # After 10 s: 5,000 - 2,000 steps are 300 a second, so the 95,000 left take 317 s = 5:17.
    # After 25 s, the first 10 s or more later: 5,000 are 200 a second, so 93,000 take 465 s = 7:45.
    # Acting took 0.5 * (3 + 4 + 5) = 6 of 7.5 s, and 0.5 * (3 + 4 + 5 + 6 + 7) = 12.5 of 15 s.
    assert out.getvalue().splitlines() == [
        "Episode 5/100  |  5,000/100,000 steps  |  9 episodes finished  |  300 steps/s  |  0:05:17 left  |  "
        "acting 80%, stepping 10%, learning 10%",
        "Episode 7/100  |  7,000/100,000 steps  |  15 episodes finished  |  200 steps/s  |  0:07:45 left  |  "
        "acting 83%, stepping 8%, learning 8%",
    ]


def test_evaluations_have_their_share_of_the_time():
    out, clock = io.StringIO(), Clock()
    progress = Progress(total_iterations=100, total_steps=100_000, n_envs=8, out=out, clock=clock)
    progress.write(figures(1, **{"time/evaluating_s": 3.0}), [])
    clock.now_s += 10.0
    progress.write(figures(2), [])
    progress.close()
    # Acting took 0.5 + 1, stepping and learning 0.5 each, of 5.5 s.
    assert out.getvalue().splitlines()[0].endswith("acting 27%, stepping 9%, learning 9%, evaluating 55%")


def test_the_block_comes_at_its_interval_and_after_the_last_iteration():
    out = io.StringIO()
    progress = Progress(total_iterations=7, total_steps=7000, n_envs=1, block_interval=3, out=out, clock=Clock())
    for iteration in range(1, 8):
        progress.write(figures(iteration), [])
    progress.close()
    blocks = [line for line in out.getvalue().splitlines() if line.startswith("Episode")]
    assert blocks == ["Episode 3/7", "Episode 6/7", "Episode 7/7"]


def test_a_block_says_how_many_episodes_have_finished_by_then():
    for first_step, since in ((0, "so far"), (1000, "since the run was resumed")):
        out = io.StringIO()
        progress = Progress(total_iterations=3, total_steps=3000, n_envs=1, first_step=first_step, out=out)
        for iteration in (2, 3):
            progress.write(figures(iteration), [])
        progress.close()
        assert out.getvalue().endswith(f"  iterations: 3  |  episodes finished {since}: 6\n")


class Gone(Terminal):
    """A terminal that was closed after its first line."""

    def write(self, text):
        if self.tell():
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_the_bar_of_a_trainer_shows_steps_and_the_mean_return_on_a_terminal_alone():
    for out, is_shown in ((Terminal(), True), (io.StringIO(), False)):
        bar = ProgressBar(total_steps=4000, first_step=1000, out=out)
        bar.write(figures(4), [])
        bar.close()
        bar.close()
        assert ("mean return 120.12" in out.getvalue()) == is_shown
        assert ("4000/4000" in out.getvalue()) == is_shown


def test_the_bar_of_a_trainer_does_without_a_mean_and_without_a_reader():
    out = Gone()
    bar = ProgressBar(total_steps=4000, out=out)
    bar.write(figures(1, **{"rollout/mean_return_100": math.nan}), [])
    bar.write(figures(2), [])
    bar.close()
    assert "mean return" not in out.getvalue()


def test_a_notebook_s_cell_shows_the_bar():
    cell = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    bar = ProgressBar(total_steps=4000, out=cell)
    bar.write(figures(4), [])
    bar.close()
    assert "4000/4000" in cell.getvalue()


def test_a_terminal_shows_steps_a_second_and_the_bar_outlives_a_block():
    out = Terminal()
    progress = Progress(total_iterations=4, total_steps=4000, n_envs=8, block_interval=2, out=out)
    for iteration in range(1, 4):
        progress.write(figures(iteration), [])
    progress.close()
    progress.close()
    shown = out.getvalue()
    before, block, after = shown.partition("Episode 2/4\n")
    assert block
    assert "0/4000" in before
    assert "3000/4000" in after
    assert "steps/s" in after
    assert "acting 67%, stepping 17%, learning 17%" in after  # 3 of 4.5 s


def test_a_resumed_run_goes_on_in_the_bar():
    out = Terminal()
    progress = Progress(total_iterations=4, total_steps=4000, n_envs=8, first_step=3000, out=out)
    assert " 75%" in out.getvalue()
    progress.close()


def test_the_bar_starts_no_thread(monkeypatch):
    started = []
    monkeypatch.setattr(tqdm.tqdm, "monitor", None)  # another bar's may run already
    monkeypatch.setattr(tqdm.std, "TMonitor", lambda *args: started.append(args))
    Progress(total_iterations=4, total_steps=4000, n_envs=8, out=Terminal()).close()
    assert started == []
    with tqdm.tqdm(total=1, file=Terminal()):
        assert len(started) == 1


def test_the_iterations_left_are_counted_anew_when_the_number_of_environments_changes():
    """2,000 of 8,000 steps in two iterations of 8 environments; then 16, whose iterations are 2,000 steps each."""
    out = io.StringIO()
    progress = Progress(total_iterations=8, total_steps=8000, n_envs=8, block_interval=1, out=out)
    for iteration, (step, n_envs) in enumerate([(1000, 8), (2000, 8), (4000, 16), (6000, 16), (8000, 16)], start=1):
        progress.write(figures(iteration, **{"time/global_step": step, "time/n_envs": n_envs}), [])
    progress.close()
    shown = [line for line in out.getvalue().splitlines() if line.startswith("Episode ")]
    assert shown == ["Episode 1/8", "Episode 2/8", "Episode 3/5", "Episode 4/5", "Episode 5/5"]
    assert out.getvalue().count("n_envs: 16") == 3


def test_planned_numbers_of_environments_change_no_total():
    """8, 16, then 4 environments, of 125 steps an iteration: what was announced stays what it was."""
    out = io.StringIO()
    progress = Progress(
        total_iterations=7, total_steps=6000, n_envs=8, n_envs_schedule={2000: 16, 4000: 4}, block_interval=1, out=out
    )
    steps = [(1000, 8), (2000, 8), (4000, 16), (4500, 4), (5000, 4), (5500, 4)]
    for iteration, (step, n_envs) in enumerate(steps, start=1):
        progress.write(figures(iteration, **{"time/global_step": step, "time/n_envs": n_envs}), [])
    progress.close()
    shown = [line for line in out.getvalue().splitlines() if line.startswith("Episode ")]
    assert shown == [f"Episode {i}/7" for i in range(1, 7)]


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
        "   8 environments make 8 times the steps of one in each iteration; "
        "--total-timesteps 256000 trains for as many steps as one"
    ) in opening(start)
    assert not any("--total-timesteps" in line for line in opening(start._replace(one_env_steps=None)))


def test_one_environment_is_no_parallel_mode_and_needs_no_comparison(tmp_path):
    start = start_in(tmp_path)._replace(n_envs=1, n_workers=0, start_method=None, one_env_steps=4000)
    assert not any("Parallel mode" in line or "--total-timesteps" in line for line in opening(start))


def test_a_start_method_without_workers_is_said_to_have_no_effect(tmp_path):
    start = start_in(tmp_path)._replace(n_workers=0, start_method=None)
    assert opening(start)[1] == "   Stepped in the trainer's process, without workers"
    assert opening(start._replace(unused_start_method="spawn"))[1] == (
        "   Stepped in the trainer's process, without workers, so --parallel-start-method spawn has no effect"
    )


def test_before_a_run_begins_sentences_are_lines(tmp_path):
    out = io.StringIO()
    console = RunConsole(out)
    console.say("Stopping.")
    console.close()
    assert out.getvalue() == "Stopping.\n"
