"""What a run records besides its own files: run.log, TensorBoard, wandb, and sinks of one's own."""

import contextlib
import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest, note_stop_request
from ml_pipeline.runs.tasks import make_task
from tests.small_runs import After, Broken, config_of, contents, resumed, trained, weights

SINKS = """
    class Lines:
        def __init__(self, folder, config):
            self.file = (folder / "lines.txt").open("a")
            self.file.write(f"seed {config['seed']}\\n")

        def write(self, metrics, episodes):
            self.file.write(f"{metrics['time/iteration']} {len(episodes)}\\n")

        def ended(self, end):
            self.file.write(f"{end.status} {end.best_score == end.best_score}\\n")

        def close(self):
            self.file.write("closed\\n")
            self.file.close()

    class Breaks(Lines):
        def write(self, metrics, episodes):
            raise KeyError("none")

    class NeedsMore:
        def __init__(self, folder, config, more):
            pass

    class WritesNothing:
        def __init__(self, folder, config):
            pass

    number = 3
"""


@pytest.fixture
def sinks(tmp_path, monkeypatch):
    """A module of a user with sinks."""
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "my_sinks.py").write_text(textwrap.dedent(SINKS))
    monkeypatch.syspath_prepend(str(tmp_path / "user"))
    yield
    sys.modules.pop("my_sinks", None)


def log_of(folder):
    """What run.log tells, without the times."""
    return [line.partition(" ")[2] for line in (folder / "run.log").read_text().splitlines()]


def test_a_run_that_somebody_asked_to_stop_says_so_and_leaves_no_note(tmp_path):
    stop, config = StopRequest(), config_of(tmp_path / "run")

    def ask():
        note_stop_request(tmp_path / "run")
        stop.request("Stopped by SIGTERM.")

    result = Run(config, make_task(config), sinks=[After(1, ask)], stop=stop).train()
    assert (result.status, result.reason) == ("stopped", "Stopped on request.")
    saved, ended = log_of(tmp_path / "run")[-2:]
    assert saved == "Training is stopped and saved."
    assert ended.endswith(": Stopped on request.")
    assert not (tmp_path / "run" / "stop.request").exists()


def test_the_log_tells_how_a_run_began_went_and_ended(tmp_path):
    result = trained(tmp_path / "run")
    began, score, saved, ended = log_of(tmp_path / "run")
    assert began.startswith(f"Started in process {os.getpid()} on ")
    assert began.endswith(": 2 environments in this process, 4 iterations, 256 environment steps.")
    assert score == f"Evaluation after iteration 4: {result.best_score:,.4g} mean return"
    assert saved == "Training is finished and saved."
    assert ended == f"Finished at step 256, best score {result.best_score:,.4g}."


def test_a_resumed_run_adds_to_the_log(tmp_path):
    config, stop = config_of(tmp_path / "run"), StopRequest()
    Run(config, make_task(config), sinks=[After(2, lambda: stop.request("enough"))], stop=stop).train()
    assert log_of(tmp_path / "run")[-1] == "Stopped at step 128: enough"
    resumed(tmp_path / "run").train()
    told = log_of(tmp_path / "run")
    assert len([line for line in told if line.startswith("Started in process")]) == 1
    assert len([line for line in told if line.startswith("Resumed in process")]) == 1
    assert "Resuming after iteration 2, step 128." in told
    assert told[-1].startswith("Finished at step 256")


def test_the_log_tells_why_a_run_failed(tmp_path):
    run = Run(config_of(tmp_path / "run"), Broken(RuntimeError("no such bar\nin row 3")))
    with pytest.raises(RuntimeError):
        run.train()
    assert (
        (tmp_path / "run" / "run.log")
        .read_text()
        .endswith("Failed at step 256: RuntimeError: no such bar\n  in row 3\n")
    )


def test_a_refused_run_writes_no_log_and_leaves_the_folder_as_it_was(tmp_path, sinks):
    for name, sentence in (
        ("my_sinks:Line", 'my_sinks has no "Line". Did you mean "Lines"?'),
        ("my_sinks:NeedsMore", r"my_sinks:NeedsMore failed in line \d+ of .*: TypeError"),
        ("my_sinks:WritesNothing", r"sink my_sinks:WritesNothing has no method write; a sink has write\(metrics, "),
        ("my_sinks:number", "sink my_sinks:number must be a class, but is a int"),
        ("no_such_module:X", 'no module "no_such_module"'),
    ):
        config = config_of(tmp_path / "run", sink=(name,))
        with pytest.raises(UserError, match=sentence):
            Run(config, make_task(config)).train()
        assert not (tmp_path / "run").exists()
    trained(tmp_path / "run")
    before = contents(tmp_path / "run")
    config = config_of(tmp_path / "run")
    with pytest.raises(UserError, match="already holds a run"):
        Run(config, make_task(config)).train()
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("name", ["mine", "mine:", ":Sink", ""])
def test_a_sink_is_named_by_module_and_class(name):
    with pytest.raises(UserError, match="sink must be module:Class, such as mine:MySink, but got"):
        config_of(None, sink=(name,))


def test_a_sink_of_ones_own_gets_every_iteration_and_the_end(tmp_path, sinks):
    trained(tmp_path / "run", sink=("my_sinks:Lines",), seed=7)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert (tmp_path / "run" / "lines.txt").read_text().splitlines() == [
        "seed 7",
        *(f"{row['time/iteration']} {row['rollout/n_completed_episodes']}" for row in rows),
        "finished True",
        "closed",
    ]


def test_a_sink_that_raises_is_logged_and_the_weights_are_those_without_it(tmp_path, sinks):
    trained(tmp_path / "plain")
    trained(tmp_path / "run", sink=("my_sinks:Breaks", "my_sinks:Lines"), tensorboard=True)
    (told,) = [line for line in log_of(tmp_path / "run") if "switched off" in line]
    assert "my_sinks:Breaks is switched off after an error: line 19 of " in told
    assert "my_sinks.py raised KeyError: 'none'. Training continues." in told
    assert torch.equal(weights(tmp_path / "run"), weights(tmp_path / "plain"))
    assert "finished True" in (tmp_path / "run" / "lines.txt").read_text()


def test_a_finished_run_that_is_resumed_in_vain_closes_its_sinks(tmp_path, sinks):
    trained(tmp_path / "run")
    resumed(tmp_path / "run", sink=("my_sinks:Lines",), tensorboard=True).train()
    assert (tmp_path / "run" / "lines.txt").read_text() == "seed 0\nclosed\n"
    assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.slow
def test_curves_of_tensorboard_are_those_of_the_metrics_also_after_a_resumption(tmp_path):
    config, stop = config_of(tmp_path / "run", tensorboard=True, eval_interval=1), StopRequest()
    Run(config, make_task(config), sinks=[After(2, lambda: stop.request("enough"))], stop=stop).train()
    resumed(tmp_path / "run").train()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    names = {name for row in rows for name in row}
    assert names | {"hparam/best_score"} == {*events.Tags()["scalars"], "hparam/best_score"}
    for name in names:
        expected = [
            (row["time/global_step"], float(np.float32(row[name]))) for row in rows if row.get(name) is not None
        ]
        assert [(event.step, event.value) for event in events.Scalars(name)] == expected, name
    assert events.Tags()["images"] == ["report/learning_curve"]


def test_event_files_of_runs_lie_side_by_side_in_a_folder_of_choice(tmp_path):
    for name in ("a", "b"):
        trained(tmp_path / name, tensorboard_dir=tmp_path / "logs")
    found = sorted(path.parent.relative_to(tmp_path / "logs").as_posix() for path in tmp_path.glob("logs/*/events*"))
    assert found == ["a", "b"]


def test_figures_of_the_machine_are_in_the_metrics_of_each_iteration(tmp_path):
    trained(tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["system/rss_mb"] > 10 and row["system/cpu_percent"] >= 0 for row in rows)
    assert not any("system/gpu_percent" in row for row in rows)


WANDB = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from tests.small_runs import After, config_of, resumed
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
folder = Path(sys.argv[1])
if folder.exists():
    resumed(folder).train()
else:
    config, stop = config_of(folder, wandb="toys", eval_interval=1), StopRequest()
    Run(config, make_task(config), sinks=[After(2, lambda: stop.request("enough"))], stop=stop).train()
"""


@pytest.mark.long
def test_an_offline_run_of_wandb_can_be_read_back_and_goes_on_under_its_id(tmp_path):
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("needs wandb")
    environment = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path), "WANDB_CONFIG_DIR": str(tmp_path)}
    for _ in range(2):
        code = WANDB.format(path=sys.path)
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True, env=environment, cwd=tmp_path)
    told = log_of(tmp_path / "run")
    assert [line for line in told if "sink" in line] == []
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1  # which ends in the run's id
    reader = [sys.executable, str(Path(__file__).with_name("wandb_records.py")), *map(str, files)]
    done = subprocess.run(reader, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    logged = [values for kind, values in found if kind == "history" and "train/entropy" in values]
    assert [row["_step"] for row in logged] == [row["time/global_step"] for row in rows]
    for ours, theirs in zip(rows, logged, strict=True):
        assert {name: value for name, value in ours.items() if value is not None}.items() <= theirs.items()
    assert {values["env_id"] for kind, values in found if kind == "config"} == {"CartPole-v1"}
    summary = {name: value for kind, values in found if kind == "summary" for name, value in values.items()}
    assert (summary["status"], summary["best_score"]) == ("finished", read_state(tmp_path / "run").best_score)
    assert any(name.startswith("report/learning_curve") for kind, values in found for name in values)


def test_an_extra_that_is_missing_refuses_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for setting, extra in (({"tensorboard": True}, "tensorboard"), ({"wandb": "toys"}, "wandb")):
        config = config_of(tmp_path / "run", **setting)
        with pytest.raises(UserError, match=rf'takes the extra "{extra}": pip install -e "\.\[{extra}\]"'):
            Run(config, make_task(config_of(None))).train()
        assert not (tmp_path / "run").exists()


def test_the_example_of_a_sink_keeps_the_mean_return_of_each_iteration(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    trained(tmp_path / "run", sink=("examples.custom_sink:SqliteSink",), seed=4)
    assert [line for line in log_of(tmp_path / "run") if "sink" in line] == []
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "returns.sqlite")) as database:
        kept = database.execute("SELECT seed, step, mean FROM returns").fetchall()
    assert kept == [(4, row["time/global_step"], row["rollout/mean_return_100"]) for row in rows]
