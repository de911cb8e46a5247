"""The table of runs: what stays at 80 columns, what is in a pipe, and what no name of a folder can do to it."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from ml_pipeline.dashboard.summaries import RunSummary
from ml_pipeline.dashboard.terminal.run_table import plain_lines, remarks, status_table

LONG = "CartPole-v1-20260101-120000-a-very-long-name-seed12"


def run(name=LONG, **told):
    usual = {
        "status": "running",
        "task": "CartPole-v1",
        "algorithm": "PPO",
        "seed": 12,
        "iteration": 51,
        "global_step": 51_200,
        "total_timesteps": 1_000_000,
        "steps_per_second": 12_345.6,
        "seconds_left": 3_723.4,
        "mean_return": 123.456,
        "last_score": -0.012345,
        "best_score": 500.0,
        "score_unit": "log return",
        "n_envs": 16,
        "n_workers": 4,
    }
    return RunSummary(name=name, folder=Path("runs") / name, **{**usual, **told})


def drawn(runs, width):
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(status_table(runs, width=width))
    return out.getvalue().splitlines()


def test_a_wide_window_shows_every_column():
    header, row = drawn([run()], 200)
    assert header.split() == [
        *("RUN", "STATE", "TASK", "ALGORITHM", "SEED", "DONE", "STEPS", "STEPS/S", "LEFT", "RETURN", "SCORE", "BEST"),
        *("UNIT", "ENVS", "WORKERS"),
    ]
    assert row.split() == [
        *(LONG, "running", "CartPole-v1", "PPO", "12", "5%", "51,200", "12,346", "1:02:03", "123.5", "-0.01235", "500"),
        *("log", "return", "16", "4"),
    ]


def test_80_columns_show_the_important_ones_with_the_name_shortened():
    header, row = drawn([run()], 80)
    assert header.split()[:2] == ["RUN", "STATE"]
    assert {"DONE", "STEPS/S", "LEFT", "BEST", "UNIT"} <= {*header.split()}
    assert max(len(header.rstrip()), len(row.rstrip())) <= 80
    assert row.startswith("CartPole-v1")
    assert row.split()[0].endswith("seed12")


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40, 20, 5])
def test_no_row_is_wider_than_the_window_nor_wraps(width):
    runs = [run(), run("short", status="queued"), run("名前" * 30, status="failed")]
    lines = drawn(runs, width)
    assert len(lines) == 4
    assert all(len(line.rstrip()) <= width for line in lines)


def test_in_a_pipe_names_are_in_full_and_columns_stay():
    long = [run(), run("b", task=None, seconds_left=None, last_score=None, steps_per_second=3.21)]
    header, *rows = plain_lines(long)
    assert len(rows) == 2
    assert LONG in rows[0]
    assert rows[1].split() == [
        *(
            "b",
            "running",
            "-",
            "PPO",
            "12",
            "5%",
            "51,200",
            "3.2",
            "-",
            "123.5",
            "-",
            "500",
            "log",
            "return",
            "16",
            "4",
        ),
    ]
    assert header.split() == plain_lines([run("c")])[0].split()
    assert not any("\x1b" in line for line in rows)


def test_names_are_shown_as_they_are_and_move_no_cursor():
    row = plain_lines([run("[red]x[/red]\x1b[2J\n\r\t")])[1]
    assert row.startswith("[red]x[/red]?[2J???  running")
    assert (
        remarks([run("a\x1b[2J", status="failed", reason="it\nbroke \x9b")])[1]
        == "a?[2J failed: it broke \N{REPLACEMENT CHARACTER}"
    )


def test_states_are_counted_and_failures_are_told():
    runs = [run(str(i), status="failed", reason=f"why {i}") for i in range(7)] + [run("ok", status="finished")]
    lines = remarks(runs)
    assert lines[0] == "8 runs: 7 failed, 1 finished"
    assert lines[1:] == [*(f"{i} failed: why {i}" for i in range(5)), "and 2 more that failed"]


def test_reasons_are_wrapped_at_the_width_of_the_window():
    lines = remarks([run(status="failed", reason="Worker 1 died, " * 12)], width=80)
    assert len(lines) == 5
    assert all(len(line) <= 80 for line in lines)
    assert all(line.startswith("  ") for line in lines[2:])


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("CartPole-v1-seed3-20261122-142033-6b2883", "CartPole-v1-seed4-20261122-142033-6b2884"), "seed3 seed4"),
        (("trading-EURUSD-20261122-142033", "trading-EURUSD-20261122-142107"), "14:20 14:21"),
        (
            ("trading-EURUSD-20261122-142033-aaaaaa", "trading-EURUSD-20261122-142033-bbbbbb"),
            "trading-…aaaaaa trading-…bbbbbb",
        ),
        (
            ("eurusd-learning-rate-0.001-seed1", "eurusd-learning-rate-0.01-seed1"),
            "eurusd-…0.001-seed1 eurusd-…0.01-seed1",
        ),
    ],
)
def test_a_shortened_name_keeps_what_tells_runs_apart(names, shown):
    _, *rows = drawn([run(name) for name in names], 80)
    for row, part in zip(rows, (shown.split()[0], shown.split()[-1]), strict=True):
        assert part in row
    assert len({row.partition("running")[0] for row in rows}) == 2


@pytest.mark.parametrize("width", [4, 8, 12, 16, 24, 40])
def test_names_that_differ_look_different_if_there_is_room_for_the_difference(width):
    names = [f"EURUSD-entropy-{i}-a-name-of-some-length-20261122-14203{i}-6b288{i}" for i in range(3)]
    lines = drawn([run(name) for name in names], width + 48)
    assert len({line.partition("running")[0] for line in lines[1:]}) == 3 or width < 8


def test_a_run_that_has_taken_all_steps_is_evaluating():
    _, row = drawn([run(global_step=1_000_000)], 200)
    assert row.split()[1] == "evaluating"


def test_a_state_has_a_colour_on_a_terminal():
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="standard")
    console.print(status_table([run(status="failed")], width=100))
    assert "\x1b[31mfailed" in out.getvalue()


def test_of_a_traceback_what_was_raised_comes_first():
    reason = (
        "EnvRaisedError: Worker 0 raised ValueError in step 3:\n\nTraceback (most recent call last):\n"
        '  File "env.py", line 11, in step\nValueError: the engine is on fire\n'
    )
    lines = remarks([run("a", status="failed", reason=reason)])
    assert lines[1] == (
        "a failed: ValueError: the engine is on fire (EnvRaisedError: Worker 0 raised ValueError in step 3)"
    )
