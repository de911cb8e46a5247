"""Runs in one row each, whatever state their folders are in."""

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise

import pytest
import yaml

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard import summaries
from ml_pipeline.dashboard.summaries import SummaryReader, read_summaries
from ml_pipeline.dashboard.terminal.run_table import plain_lines
from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.state import STATE_FILE
from ml_pipeline.runtime.process_identity import this_process
from tests.small_runs import trained

SETTINGS = {"env_id": "Toy-v0", "seed": 3, "n_envs": 4, "n_steps": 25, "iterations": 10, "n_workers": "auto"}


def row(iteration, step, **more):
    return {"time/iteration": iteration, "time/global_step": step, "time/stepping_s": 0.5, **more}


def make_run(root, name="run", *, status="running", settings=SETTINGS, rows=(), **state):
    """A run folder as another version or another machine may have left it; this process is its writer."""
    folder = root / name
    folder.mkdir(parents=True)
    if settings is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    if status is not None:
        values = {"status": status, "began": "2026-01-02T03:04:05+00:00", **state, **this_process()._asdict()}
        (folder / STATE_FILE).write_text(json.dumps(values))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return folder


def only(root):
    (summary,) = read_summaries(root)
    return summary


def test_a_run_that_was_trained_is_told_in_full(tmp_path):
    result = trained(tmp_path / "cart", seed=5)
    summary = only(tmp_path)
    assert (summary.name, summary.folder, summary.status) == ("cart", tmp_path / "cart", "finished")
    assert (summary.task, summary.algorithm, summary.seed) == ("CartPole-v1", "PPO", 5)
    assert (summary.iteration, summary.total_iterations) == (4, 4)
    assert (summary.global_step, summary.total_timesteps, summary.progress) == (256, 256, 1.0)
    assert summary.best_score == result.best_score
    assert summary.last_score == result.scores[256]
    assert (summary.seconds_left, summary.n_envs) == (None, 2)
    assert summary.steps_per_second > 0
    assert json.loads(json.dumps(summary.as_json(), allow_nan=False))["progress"] == 1.0


def test_speed_and_time_left_are_those_of_the_last_iterations(tmp_path):
    # 100 steps an iteration. The first 50 take 5 s each, the last 50 half a second and 0.3 s of evaluation.
    slow = [row(i, 100 * i, **{"time/stepping_s": 5.0}) for i in range(1, 51)]
    fast = [row(i, 100 * i, **{"time/evaluating_s": 0.3}) for i in range(51, 101)]
    make_run(tmp_path, settings={**SETTINGS, "iterations": 180}, rows=[*slow, *fast])
    summary = only(tmp_path)
    assert summary.steps_per_second == pytest.approx(100 / 0.5)
    assert summary.seconds_left == pytest.approx(80 * (0.5 + 0.3))
    assert (summary.iteration, summary.total_iterations) == (100, 180)


@pytest.mark.parametrize(("schedule", "total"), [({4000: 16}, 6), (None, 10), ({"x": []}, 10), ([1], 10)])
def test_the_iterations_are_those_of_the_schedule_of_environments(tmp_path, schedule, total):
    length = {"n_envs": 8, "n_steps": 256, "total_timesteps": 20_000, "iterations": None}
    make_run(tmp_path, settings={**SETTINGS, **length, "n_envs_schedule": schedule})
    assert only(tmp_path).total_iterations == total


def test_scores_are_the_latest_and_the_best_of_the_whole_file(tmp_path):
    scores = [1.0, 7.5, None, -2.0]
    rows = [row(i + 1, 100 * (i + 1), **({"eval/score": scores[i]} if i < 4 else {})) for i in range(200)]
    make_run(tmp_path, rows=rows)
    assert (only(tmp_path).last_score, only(tmp_path).best_score) == (-2.0, 7.5)


def test_only_what_was_added_is_read_again(tmp_path, monkeypatch):
    folder = make_run(tmp_path, rows=[row(1, 100, **{"eval/score": 3.0})])
    path = folder / "metrics.jsonl"
    reader = SummaryReader(tmp_path)
    assert reader.read()[0].best_score == 3.0
    taken = []
    take = summaries.MetricsTail._take
    monkeypatch.setattr(summaries.MetricsTail, "_take", lambda self, lines: (taken.append(lines), take(self, lines)))
    whole, torn = json.dumps(row(2, 200, **{"eval/score": 2.0})), json.dumps(row(3, 300))
    with path.open("a") as file:
        file.write(f"{whole}\n{torn[:20]}")
    assert (reader.read()[0].iteration, reader.read()[0].last_score, reader.read()[0].best_score) == (2, 2.0, 3.0)
    with path.open("a") as file:
        file.write(f"{torn[20:]}\n")
    assert reader.read()[0].iteration == 3
    assert taken == [whole.encode(), torn.encode()]


def test_a_file_that_was_cut_back_is_read_anew(tmp_path):
    folder = make_run(tmp_path, rows=[row(1, 100, **{"eval/score": 3.0}), row(2, 200, **{"eval/score": 9.0})])
    reader = SummaryReader(tmp_path)
    assert reader.read()[0].best_score == 9.0
    path = folder / "metrics.jsonl"
    with path.open("r+") as file:  # in place, as long as before: the number of the file and its size stay
        file.truncate(0)
        file.write("".join(json.dumps(each) + "\n" for each in (row(1, 100, **{"eval/score": 3.0}), row(2, 150))))
        file.write(json.dumps(row(3, 300)) + "\n")
    assert (reader.read()[0].best_score, reader.read()[0].iteration) == (3.0, 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 5_000_000,
        b"\x00" * 5_000_000 + b"\n",
        b'{"time/iteration"',
        b"[1, 2]\nnull\n7\n",
        b"[" * 100_000 + b"\n",
        b'{"time/iteration": 1e400, "time/global_step": "x", "eval/score": NaN, "time/stepping_s": null}\n',
        b'{"time/iteration": -1, "time/global_step": 1.5, "workers/count": true}\n' * 3,
    ],
)
def test_metrics_that_are_no_metrics_tell_nothing(tmp_path, content):
    folder = make_run(tmp_path)
    (folder / "metrics.jsonl").write_bytes(content)
    summary = only(tmp_path)
    assert (summary.status, summary.iteration, summary.steps_per_second) == ("running", None, None)
    assert (summary.best_score, summary.n_workers) == (None, None)


def test_a_good_line_after_damage_counts(tmp_path):
    folder = make_run(tmp_path)
    good = json.dumps(row(4, 400, **{"eval/score": 1.5})).encode()
    (folder / "metrics.jsonl").write_bytes(b"\x00" * 9_000_000 + b"\n" + good + b"\n" + good[:30])
    assert (only(tmp_path).iteration, only(tmp_path).last_score) == (4, 1.5)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (STATE_FILE, '{"status": '),
        (STATE_FILE, '{"status": "dancing"}'),
        ("config.yaml", "a: [1"),
        ("config.yaml", "- 1"),
        ("config.yaml", "\x00"),
    ],
)
def test_a_broken_folder_is_told_among_the_others(tmp_path, name, content):
    make_run(tmp_path, "good", rows=[row(1, 100)])
    broken = make_run(tmp_path, "broken", rows=[row(2, 200)])
    (broken / name).write_text(content)
    found = {summary.name: summary for summary in read_summaries(tmp_path)}
    assert (found["good"].status, found["broken"].status) == ("running", "broken")
    assert str(broken / name) in found["broken"].reason
    assert found["broken"].iteration == 2


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in pairwise("abcdefghi"))
            + "symbols: *i\n",
            "config.yaml: it holds more than 10,000 values, too many for settings.",
        ),
        ("symbols: &a [*a]\n", "config.yaml is not valid YAML: no whole value above is named &a in line 1."),
        ("a: " + "[" * 30_000, "config.yaml: its values are nested too deeply."),  # ended the process once
    ],
    ids=["billions", "endless", "deep"],
)
def test_settings_that_are_none_are_refused_in_one_sentence(tmp_path, text, reason):
    folder = make_run(tmp_path)
    (folder / "config.yaml").write_text(text)
    assert only(tmp_path).status == "broken"
    assert only(tmp_path).reason.endswith(reason)


def test_settings_that_were_refused_are_not_read_again_until_they_change(tmp_path, monkeypatch):
    folder = make_run(tmp_path)
    (folder / "config.yaml").write_text("seed: [")
    assert only(tmp_path).status == "broken"
    with monkeypatch.context() as patch:
        patch.setattr("ml_pipeline.dashboard.summaries.read_mapping", lambda path: pytest.fail("it was read again"))
        assert "is not valid YAML" in only(tmp_path).reason
    (folder / "config.yaml").write_text("seed: 7")
    assert only(tmp_path).seed == 7


@pytest.mark.timeout(20)
def test_numbers_to_the_base_of_sixty_are_text(tmp_path):
    folder = make_run(tmp_path)
    (folder / "config.yaml").write_text("seed: 1" + ":59" * 200_000)  # minutes of arithmetic, once
    assert only(tmp_path).seed is None
    assert only(tmp_path).status != "broken"


@pytest.mark.parametrize("name", ["seed", "n_envs", "n_steps", "total_timesteps", "iterations", "n_workers"])
def test_a_setting_of_400_digits_is_not_known(tmp_path, name):
    rows = [row(1, 100), row(2, 200)]
    make_run(tmp_path, settings={**SETTINGS, name: 10**400}, rows=rows)
    summary = only(tmp_path)
    assert (summary.status, summary.global_step) == ("running", 200)
    assert json.dumps(summary.as_json(), allow_nan=False)


@pytest.mark.parametrize(
    "last",
    [
        row(3, 10**400),
        row(10**400, 300),
        row(3, 1e308),
        row(3, 300, **{"time/stepping_s": 1e308}),
        row(3, 300, **{"time/stepping_s": 1e-320}),
        row(3, 300, **{"workers/count": 10**400, "rollout/mean_return_100": 10**400}),
    ],
    ids=range(6),
)
def test_figures_that_are_out_of_bounds_break_no_row(tmp_path, last):
    before = row(2, 200, **{"time/stepping_s": 1e-320})
    make_run(tmp_path, settings={**SETTINGS, "total_timesteps": 2**62}, rows=[row(1, 100), before, last])
    summary = only(tmp_path)
    assert summary.status == "running"
    assert json.dumps(summary.as_json(), allow_nan=False)
    assert plain_lines([summary])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
@pytest.mark.parametrize(
    ("name", "status"), [(STATE_FILE, "broken"), ("config.yaml", "broken"), ("metrics.jsonl", "running")]
)
def test_a_pipe_in_a_run_folder_keeps_nobody_waiting(tmp_path, name, status):
    folder = make_run(tmp_path)
    (folder / "latest.pt").touch()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    summary = only(tmp_path)
    assert summary.status == status
    assert status == "running" or f"{name} cannot be read: it is not a regular file" in summary.reason


def test_whatever_goes_wrong_with_one_folder_is_told_in_its_row(tmp_path, monkeypatch):
    make_run(tmp_path, "good", rows=[row(1, 100)])
    bad = make_run(tmp_path, "bad")
    actual = summaries.read_state

    def read_state(folder):
        if folder == bad:
            raise ZeroDivisionError("of all things")
        return actual(folder)

    monkeypatch.setattr(summaries, "read_state", read_state)
    reader = SummaryReader(tmp_path)
    found = {summary.name: summary for summary in reader.read()}
    assert (found["good"].status, found["bad"].status) == ("running", "broken")
    assert found["bad"].reason == f"{bad} cannot be read: ZeroDivisionError: of all things."
    monkeypatch.undo()
    assert [summary.status for summary in reader.read()] == ["running", "running"]


def test_a_run_whose_process_was_killed_has_failed(tmp_path):
    code = f"from pathlib import Path; import sys; sys.path[:0] = {sys.path!r}\n"
    code += "from ml_pipeline.runs.folder_claim import FolderClaim\n"
    code += "FolderClaim(Path(sys.argv[1])); print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline()
        reader = SummaryReader(tmp_path)
        assert reader.read()[0].status == "running"
        process.send_signal(signal.SIGKILL)
    (summary,) = reader.read()
    assert summary.status == "failed"
    assert f"process {process.pid}" in summary.reason


def test_what_a_state_adds_is_seen_at_once(tmp_path):
    claim = FolderClaim(tmp_path / "run")
    reader = SummaryReader(tmp_path)
    assert reader.read()[0].status == "running"
    claim.end("failed", "no money", global_step=64, iterations=2, best_score=1.5)
    claim.release()
    (summary,) = reader.read()
    assert (summary.status, summary.reason, summary.global_step) == ("failed", "no money", 64)
    assert (summary.iteration, summary.best_score, summary.seconds_left) == (2, 1.5, None)


def test_running_runs_come_first_and_then_the_newest(tmp_path):
    for name, status, began in (
        ("old", "finished", "2026-01-01T00:00:00+00:00"),
        ("new", "failed", "2026-01-03T00:00:00+02:00"),
        ("odd", "stopped", "yesterday"),
        ("going", "running", "2026-01-02T00:00:00+00:00"),
    ):
        make_run(tmp_path, name, status=status, began=began)
    assert [summary.name for summary in read_summaries(tmp_path)] == ["going", "new", "old", "odd"]


def test_runs_inside_of_another_folder_are_found(tmp_path):
    make_run(tmp_path, "study/a")
    make_run(tmp_path, "b")
    make_run(tmp_path, ".service/c")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    assert sorted(summary.name for summary in read_summaries(tmp_path)) == ["b", "study/a"]
    assert [summary.name for summary in read_summaries(tmp_path / "b")] == ["b"]


def test_a_folder_that_was_deleted_is_gone_from_the_list(tmp_path):
    folder = make_run(tmp_path)
    reader = SummaryReader(tmp_path)
    assert len(reader.read()) == 1
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert reader.read() == []
    assert read_summaries(tmp_path / "missing") == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads every folder")
def test_a_root_that_cannot_be_read_is_refused(tmp_path):
    tmp_path.chmod(0)
    try:
        with pytest.raises(UserError, match="cannot be read"):
            read_summaries(tmp_path)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("settings", "task"),
    [
        ({"env_id": "Toy-v0", "symbols": ["A"]}, "Toy-v0"),
        ({"env_id": None, "symbols": ["EURUSD", "GBPUSD"]}, "EURUSD GBPUSD"),
        ({"symbols": list("ABCDE")}, "A B C +2"),
        ({"data": "data/prices.csv", "symbols": []}, "prices"),
        ({"symbols": 7, "data": None}, "built-in market"),
        (None, None),
    ],
)
def test_the_task_is_named_by_environment_symbols_or_file(tmp_path, settings, task):
    make_run(tmp_path, settings=settings)
    assert only(tmp_path).task == task


def test_workers_and_environments_are_those_of_the_latest_iteration(tmp_path):
    make_run(tmp_path, rows=[row(1, 100), row(2, 200, **{"workers/count": 2, "time/n_envs": 16})])
    assert (only(tmp_path).n_workers, only(tmp_path).n_envs) == (2, 16)


def test_ranks_are_those_that_made_the_latest_iteration(tmp_path):
    by_ranks = {f"system/rank{rank}/{name}": 1.0 for rank in range(11) for name in ("rss_mb", "cpu_percent")}
    folder = make_run(tmp_path, rows=[row(1, 100, **{"system/rss_mb": 11.0}, **by_ranks)])
    assert only(tmp_path).n_ranks == 11
    with (folder / "metrics.jsonl").open("a") as file:  # resumed by one process
        file.write(json.dumps(row(2, 200, **{"system/rss_mb": 1.0})) + "\n")
    assert only(tmp_path).n_ranks is None


def test_finished_runs_cost_no_reading(tmp_path, monkeypatch):
    for i in range(200):
        make_run(tmp_path, f"run{i}", status="finished", rows=[row(1, 100)])
    reader = SummaryReader(tmp_path)
    first = reader.read()
    assert len(first) == 200
    monkeypatch.setattr(summaries._KnownRun, "_read", lambda self: pytest.fail("it was read again"))
    assert reader.read() == first


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_pipe_in_place_of_the_metrics_is_not_waited_for(tmp_path):
    folder = make_run(tmp_path, status="running")
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    assert only(tmp_path).global_step is None


def test_queued_runs_are_listed_in_the_order_in_which_they_were_queued(tmp_path):
    for name, minute in (("late", 30), ("early", 10), ("between", 20)):
        make_run(tmp_path, name, status="queued", began=f"2026-01-02T03:{minute}:00+00:00")
    assert [run.name for run in read_summaries(tmp_path)] == ["early", "between", "late"]


def test_scores_say_what_they_are(tmp_path):
    make_run(tmp_path, "gym")
    make_run(tmp_path, "log", settings={"env_id": None, "score": "log_return"})
    make_run(tmp_path, "ratio", settings={"env_id": None, "score": "sharpe"})
    units = {run.name: run.score_unit for run in read_summaries(tmp_path)}
    assert units == {"gym": "mean return", "log": "log return", "ratio": "Sharpe ratio"}


def test_a_running_run_that_has_taken_all_steps_is_evaluating(tmp_path):
    rows = [row(i, 100 * i) for i in range(1, 11)]  # 1,000 steps of 1,000
    make_run(tmp_path, "a", rows=rows)
    make_run(tmp_path, "b", rows=rows[:-1])
    make_run(tmp_path, "c", rows=rows, status="finished", ended="2026-01-02T03:04:05+00:00")
    found = {run.name: (run.status, run.activity) for run in read_summaries(tmp_path)}
    assert found == {"a": ("running", "evaluating"), "b": ("running", "running"), "c": ("finished", "finished")}


def test_a_link_to_itself_is_one_line_and_the_others_are_shown(tmp_path):
    make_run(tmp_path, "good")
    (tmp_path / "self").symlink_to("self")
    good, broken = read_summaries(tmp_path)
    assert (good.name, good.status) == ("good", "running")
    assert (broken.name, broken.status) == ("self", "broken")
    assert broken.reason.startswith(f"{tmp_path / 'self'} cannot be read: ")


def test_what_was_raised_comes_first_in_one_line(tmp_path):
    reason = "In step 3:\nTraceback (most recent call last):\n  File x\nValueError: no\n"
    make_run(tmp_path, status="failed", reason=reason, ended="2026-01-02T03:04:05+00:00")
    told = only(tmp_path).as_json()
    assert (told["headline"], told["reason"]) == ("ValueError: no (In step 3)", reason)
