"""Studies in the terminal: 80 columns, pipes, and names that move no cursor."""

import io
from datetime import datetime

import pytest
from rich.console import Console

from ml_pipeline.dashboard.studies import read_studies
from ml_pipeline.dashboard.terminal.study_screen import study_line, study_lines, study_screen
from ml_pipeline.monitoring.resources import GpuUse, MachineUse
from tests.dashboard.study_folders import make_study, study_values, write_study

MACHINE = MachineUse(87.4, 2, 3.14, 8.0, (GpuUse("NVIDIA H100", 43.0, 3.1, 80.0), GpuUse("a slice", None, None, None)))


def now_of(study):
    return datetime.fromisoformat(study.updated)


@pytest.fixture
def study(tmp_path):
    failures = [{"reason": f"Reason {i}\nand more.", "times": 5 - i, "numbers": [i]} for i in range(5)]
    make_study(tmp_path, "eurusd", failures=failures, failed=15)
    return read_studies(tmp_path)[0]


def test_a_study_is_told_in_lines(study):
    assert study_lines(study, machine=MACHINE, now=now_of(study)) == [
        "Study         eurusd, running",
        "Trials        3 of 10 trials (30%), 3 complete, 15 failed",
        "Trials/hour   57.5 in the last hour, 60 in all, 2 trials at once",
        "Time left     1:02:03",
        "Best so far   3 by trial 1",
        "              learning_rate 0.002, n_steps 128",
        "CPU           87% of 2 cores, memory 3.1 of 8.0 GiB",
        "GPU           NVIDIA H100: 43%, memory 3.1 of 80.0 GiB",
        "GPU           a slice: usage unknown",
        "Running       trial 3    [####..........] 25%  1:05  best 1.5",
        "Failed        5 x Reason 0 and more.",
        "              4 x Reason 1 and more.",
        "              3 x Reason 2 and more.",
        "              and 3 more for other reasons",
    ]


def test_one_line_tells_the_most_important(study):
    assert study_line(study) == (
        "Study eurusd: running, 3 of 10 trials, 57.5 trials/hour, 1:02:03 left, best 3 by trial 1, 1 running, 15 failed"
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 8), (40, 12), (20, 3), (200, 60)])
def test_the_screen_fits_the_window(tmp_path, width, height):
    settings = {f"a_long_setting_{i}": 0.1 for i in range(12)}
    best = {"number": 1, "value": 1.0, "settings": settings, "folder": None}
    make_study(tmp_path, "first", best=best, running=range(20))
    for i in range(8):
        make_study(tmp_path, f"other{i}", state="stopped")
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(study_screen(read_studies(tmp_path), machine=MACHINE, width=width, height=height))
    lines = out.getvalue().splitlines()
    assert len(lines) < height
    assert all(len(line.rstrip()) <= width for line in lines)
    assert lines[0].startswith("Study")


def test_hosts_are_named_where_there_are_several(tmp_path):
    values = study_values(running=(3, 4))
    values["running"][1]["host"] = "other"
    make_study(tmp_path, "s", running=(3, 4))
    assert not any("on box" in line for line in study_lines(read_studies(tmp_path)[0]))
    write_study(tmp_path / "s", values)
    assert [line.split()[-1] for line in study_lines(read_studies(tmp_path)[0]) if "trial " in line][-2:] == [
        "box",
        "other",
    ]


def test_nothing_known_is_told_as_such_and_nothing_moves_the_cursor(tmp_path):
    name = "s\x1b[2J"
    make_study(tmp_path, name, values=(), running=(), trials_per_hour=None, trials_per_hour_last_hour=None,
               seconds_left=None, jobs=None)  # fmt: skip
    lines = study_lines(read_studies(tmp_path)[0])
    assert lines == [
        "Study         s?[2J, running",
        "Trials        0 of 10 trials (0%)",
        "Trials/hour   -",
        "Time left     -",
        "Best so far   -",
    ]


def test_a_broken_study_says_why(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.json").write_text("[]")
    (study,) = read_studies(tmp_path)
    assert study_line(study) == f"Study s: broken: {tmp_path}/s/study.json cannot be read: it has no JSON object."
    assert len(study_lines(study)) == 2
