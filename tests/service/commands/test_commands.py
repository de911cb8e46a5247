"""What a user types to the service, and what it answers."""

import os
import sys
from contextlib import closing
from functools import partial

import pytest

from ml_pipeline.cli import main
from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.state import read_state
from ml_pipeline.service.channel import ServiceChannel
from ml_pipeline.service.commands.serve import answer
from tests.service.brief_run import LONG, REFUSED
from tests.service.test_agent_training_service import begun, brief

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def service(serve):
    service = serve(max_runs=2)
    with closing(ServiceChannel(service.root, partial(answer, service))):
        yield service


@pytest.fixture
def typed(root, capsys):
    """Types a command; returns its exit code, and what it printed."""

    def type_it(*words):
        try:
            code = main([*words, "--root", str(root)])
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return type_it


@pytest.fixture
def markets(tmp_path):
    folder = tmp_path / "forex"
    folder.mkdir()
    for name in ("EURUSD.csv", "GBPUSD_1h.csv"):
        (folder / name).write_text("time,close\n" + "".join(f"{day},1\n" for day in DAYS))
    return folder


DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")
SMALL = ("--env-id", "CartPole-v1", "--iterations", "1")


def test_submit_prints_an_id_per_line_for_each_seed(service, typed):
    code, out, err = typed("submit", *SMALL, "--seeds", "0", "1", "2", "--priority", "3", "--restarts", "1")
    assert (code, err) == (0, "")
    runs = service.wait(timeout_s=60)
    assert out.splitlines() == [run.id for run in runs]
    assert [run.settings["seed"] for run in runs] == [0, 1, 2]
    assert {(run.status, run.priority, run.restarts_left) for run in runs} == {("finished", 3, 1)}


def test_submit_takes_a_run_for_each_seed_and_symbol(service, typed, markets, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("iterations: 1\nn_envs: 2\n")
    words = ("--config", str(file), "--seeds", "0", "1", "--symbols", "EURUSD", "gbpusd", "--data-dir", str(markets))
    code, out, _ = typed("submit", *words)
    assert code == 0
    found = [(run.settings["data"].rpartition("/")[2], run.settings["seed"]) for run in service.list()]
    assert found == [("EURUSD.csv", 0), ("EURUSD.csv", 1), ("GBPUSD_1h.csv", 0), ("GBPUSD_1h.csv", 1)]
    assert len(out.split()) == 4
    both = markets / "both.csv"
    both.write_text("symbol,time,close\n" + "".join(f"{each},{day},1\n" for each in "AB" for day in DAYS))
    typed("submit", "--iterations", "1", "--symbols", "A", "B", "--data", str(both))
    assert [run.settings["symbols"] for run in service.list()][4:] == [["A"], ["B"]]


def test_submit_takes_one_run_for_all_symbols_where_one_policy_trades_each(service, typed, markets):
    words = ("--iterations", "1", "--per-symbol", "--n-envs", "2", "--seeds", "0", "1", "--data-dir", str(markets))
    assert typed("submit", *words, "--symbols", "EURUSD", "GBPUSD")[0] == 0
    assert [(run.settings["data"], run.settings["symbols"]) for run in service.list()] == [
        (str(markets), ["EURUSD", "GBPUSD"])
    ] * 2


def test_submit_finds_symbols_as_build_vec_env_does(service, typed, markets):
    (markets / "EURUSD.csv").rename(markets / "FOREX_EURUSD_1H_ASK.csv")
    assert typed("submit", "--iterations", "1", "--data-dir", str(markets), "--symbols", "EURUSD")[0] == 0
    assert service.list()[0].settings["data"].endswith("FOREX_EURUSD_1H_ASK.csv")


def test_submit_takes_one_run_for_files_of_bid_and_ask(service, typed, markets):
    for name in ("EURUSD_bid.csv", "EURUSD_ask.csv"):
        (markets / name).write_bytes((markets / "EURUSD.csv").read_bytes())
    (markets / "EURUSD.csv").unlink()
    assert typed("submit", "--iterations", "1", "--data-dir", str(markets))[0] == 0
    found = [(run.settings["data"].rpartition("/")[2], run.settings["symbols"]) for run in service.list()]
    assert found == [("forex", ["EURUSD"]), ("GBPUSD_1h.csv", [])]


def test_another_algorithm_is_submitted_with_its_settings(service, typed):
    code, out, err = typed("submit", *SMALL[:2], "--total-timesteps", "100", "--algorithm", "DQN")
    assert (code, err) == (0, "")
    assert service.get(out.strip()).settings["algorithm"] == "DQN"
    assert 'Did you mean "DQN"?' in typed("submit", *SMALL, "--algorithm", "DQM")[2]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--symbols", "EURUSX", "--data-dir", "forex"),
            "it holds EURUSD.csv, GBPUSD_1h.csv. Did you mean",
        ),
        (("--data-dir", "nothing"), "There is no market data at"),
        (("--data", "nothing.csv"), "nothing.csv"),
        (("--data-dir", "forex", "--data", "forex"), "use one of them"),
        (("--seeds", "1", "1"), "seeds must be different"),
        (("--symbols", "A", "A"), "symbols must be different"),
        (("--n-env", "3"), 'Did you mean "--n-envs"?'),
        (("--checkpoint-dir", "x"), "the service makes a folder for each run"),
        (("--config", "nothing.yaml"), "cannot be read"),
        (("--env-id", "Nope-v3"), 'There is no environment "Nope-v3". Put the module that registers it'),
        (("--env-id", "no_such_module:Nope-v3"), "no_such_module"),
        (("--env-id", "CartPole-v1", "--algorithm", "SAC"), "SAC supports action spaces of the kind Box, but the"),
        (("--algorithm", "SAC"), "SAC supports action spaces of the kind Box, but the"),
        (("--algorithm", "DQN", "--action-mode", "trade"), "DQN supports action spaces of the kind Discrete"),
        (("--symbols", "EURUSD", "GBPUSD"), "There is no data for EURUSD, GBPUSD; pass --data-dir with a folder"),
    ],
)
def test_submit_refuses_in_a_sentence_and_queues_nothing(words, sentence, service, typed, markets):
    words = [str(markets) if word == "forex" else word for word in words]
    code, out, err = typed("submit", *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert service.list() == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [(None, "missing.csv"), ("", ""), ("time,close\n2024-01-01,x\n", ""), ("a,b\n1,2\n", "")],
    ids=["missing", "empty", "no number", "no time"],
)
def test_submit_refuses_data_in_the_sentence_of_train_and_queues_nothing(text, sentence, service, capsys, tmp_path):
    file = tmp_path / "missing.csv"
    if text is not None:
        file.write_text(text)
    words = ("--data", str(file), "--iterations", "1")
    told = []
    for command in (("submit", *words, "--root", str(service.root)), ("train", *words)):
        with pytest.raises(SystemExit) as end:
            main([*command])
        told.append((end.value.code, capsys.readouterr().err.replace(command[0], "", 1)))
    assert told[0] == told[1]
    assert told[0][0] == 2
    assert sentence in told[0][1]
    assert service.list() == []


def test_submit_refuses_a_symbol_that_the_file_does_not_hold(service, typed, markets):
    words = ("--iterations", "1", "--symbols", "A", "B", "--data", str(markets / "EURUSD.csv"))
    code, out, err = typed("submit", *words)
    assert (code, out, service.list()) == (2, "", [])
    assert "A" in err


def test_submit_names_a_folder_nearby_that_holds_the_symbols(service, typed, tmp_path, markets, monkeypatch):
    (tmp_path / "data").mkdir()
    markets.rename(tmp_path / "data" / "forex")
    monkeypatch.chdir(tmp_path)
    code, _, err = typed("submit", "--symbols", "EURUSD", "GBPUSD")
    assert (code, service.list()) == (2, [])
    assert "There is no data for EURUSD, GBPUSD; --data-dir data/forex has a file for each." in err


def test_more_environments_than_the_limit_are_refused(serve, typed):
    service = serve(max_concurrent_envs=4)
    with closing(ServiceChannel(service.root, partial(answer, service))):
        code, _, err = typed("submit", *SMALL, "--n-envs", "8")
    assert code == 2
    assert "n_envs is 8, but this service runs at most 4" in err


def test_without_a_service_submit_and_resume_say_how_to_start_one(typed, root):
    for words in (("submit", *SMALL), ("resume", "by-hand")):
        claim = FolderClaim(root / "by-hand")
        claim.end("stopped", None, global_step=1, iterations=1, best_score=None)
        claim.release()
        code, _, err = typed(*words)
        assert code == 2
        assert f"No service works on {root}; start one: ml-pipeline serve --root {root}" in err


def test_a_run_is_stopped_resumed_and_scaled_by_the_beginning_of_its_name(service, typed):
    run = service.submit(brief(LONG, n_envs=2))
    begun(service, run)
    start = run[: len("CartPole-v1-seed8")]
    code, _, _ = typed("scale", start, "--n-workers", "2")
    assert (code, (service.root / run / "request.json").exists()) == (0, True)
    assert typed("scale", start)[0] == 2
    assert "--n-workers must be at most --n-envs = 2, but got 3" in typed("scale", start, "--n-workers", "3")[2]
    assert typed("stop", start) == (0, f"{run} saves and stops.\n", "")
    service.wait(timeout_s=60)
    code, _, err = typed("stop", start)
    assert (code, err) == (2, f"ml-pipeline stop: {run} is not running: it was stopped.\n")
    assert typed("scale", start, "--n-envs", "2")[0] == 2
    assert typed("resume", start) == (0, f"{run} is queued; it continues from its checkpoint.\n", "")
    assert typed("stop", "--all")[0] == 0
    service.wait(timeout_s=60)
    assert typed("logs", start)[0] == 0


def test_a_name_that_means_no_run_or_several_is_told(service, typed):
    ids = [service.submit(brief(), run_id=name) for name in ("first-a", "first-b")]
    service.wait(timeout_s=60)
    assert '"first" matches the names of 2 runs: first-a, first-b' in typed("resume", "first")[2]
    assert 'Did you mean "first-a"?' in typed("logs", "fist-a")[2]
    assert typed("logs", str(service.root / ids[0]))[0] == 0
    assert "Name the runs to stop, or pass --all." in typed("stop")[2]


def test_a_run_is_named_as_status_names_it(typed, root):
    claim = FolderClaim(root / "fit" / "seed0")
    (root / "fit" / "seed0" / "run.log").write_text("one\n")
    assert typed("logs", "fit/seed0")[1] == "one\n"
    assert typed("scale", "fit/s", "--n-envs", "2")[0] == 0
    assert (root / "fit" / "seed0" / "request.json").exists()
    claim.end("stopped", None, global_step=1, iterations=1, best_score=None)
    claim.release()


def test_stop_needs_no_service(serve, typed, root):
    service = serve(max_runs=1)
    going_on, queued = service.submit(brief(LONG)), service.submit(brief())
    begun(service, going_on)
    service.close()
    code, out, err = typed("stop", "--all")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{queued} is removed from the queue.", f"{going_on} saves and stops."]
    assert read_state(root / queued).status == "stopped"
    again = serve(max_runs=1)
    assert [run.status for run in again.wait(timeout_s=60)] == ["stopped", "stopped"]
    assert not (root / queued / "begun.txt").exists()
    assert typed("stop", "--all")[1] == "No run is queued or running.\n"


def test_logs_move_no_cursor_and_rename_no_window(typed, root):
    claim = FolderClaim(root / "run")
    (root / "run" / "output.log").write_bytes(b"\x1b]0;mine\x07\x1b[2J\x1b[31mred\x1b[0m\r\n10%\r20%\x08\x9b\xc2\x9b\n")
    assert typed("logs", "run")[1] == "red\n10%\n20%\ufffd\ufffd\ufffd\n"
    claim.end("failed", "\x1b[31mno", global_step=1, iterations=1, best_score=None)
    assert typed("logs", "run")[1].endswith("It failed: no\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_logs_that_are_pipes_keep_nobody_waiting(typed, root):
    claim = FolderClaim(root / "run")
    os.mkfifo(root / "run" / "run.log")
    os.mkfifo(root / "run" / "output.log")
    assert typed("logs", "run")[:2] == (0, "")
    claim.end("failed", "no", global_step=1, iterations=1, best_score=None)
    assert typed("logs", "run")[1] == "\nIt failed: no\n"


def test_logs_tell_what_a_run_said_and_why_it_failed(typed, root):
    claim = FolderClaim(root / "run")
    (root / "run" / "run.log").write_text("one\ntwo\nhalf a li")
    (root / "run" / "output.log").write_text("Traceback ...\nValueError: no\n")
    assert typed("logs", "run")[1] == "one\ntwo\n"
    claim.end("failed", "ValueError: no", global_step=1, iterations=1, best_score=None)
    out = typed("logs", "run", "--follow")[1]
    assert out.startswith("one\ntwo\nhalf a li\n")
    assert "The end of output.log:\nTraceback ...\nValueError: no" in out
    assert out.count("ValueError: no") == 1


def test_logs_of_a_resumed_run_that_failed_again_tell_its_reason_once_for_each_time(typed, root):
    error = "Worker 0 raised ValueError in step 3:\n\nTraceback (most recent call last):\n  File x\nValueError: no\n"
    indented = error.replace("\n", "\n  ")
    claim = FolderClaim(root / "run")
    (root / "run" / "run.log").write_text("".join(f"2026-01-0{day}T Failed: {indented}\n" for day in (1, 2)))
    note = "The last checkpoint is intact; once the cause is fixed, resume the run in run.\n"
    (root / "run" / "output.log").write_text(f"ml-pipeline train: {error}{note}" * 2)
    claim.end("failed", error, global_step=1, iterations=1, best_score=None)
    out = typed("logs", "run")[1]
    assert out.count("ValueError: no") == 2
    assert f"The end of output.log:\n{note}" in out


def test_logs_tell_a_reason_once(typed, root):
    claim = FolderClaim(root / "run")
    (root / "run" / "output.log").write_text("ml-pipeline train: There is no market.\n")
    (root / "run" / "run.log").write_text("Started.\n")
    claim.end("failed", "There is no market.", global_step=1, iterations=1, best_score=None)
    assert typed("logs", "run")[1] == "Started.\n\nIt failed: There is no market.\n"


def test_of_runs_that_begin_alike_the_one_under_way_is_meant_and_logs_take_the_newest(typed, root):
    for name in ("run-a", "run-b"):
        claim = FolderClaim(root / name)
        (root / name / "run.log").write_text(f"{name}\n")
        if name == "run-a":
            claim.end("stopped", None, global_step=1, iterations=1, best_score=None)
            claim.release()
    assert typed("scale", "run", "--n-envs", "2")[1].startswith("run-b changes after its current iteration")
    assert typed("logs", "run")[1] == "run-b\n"
    claim.end("stopped", None, global_step=1, iterations=1, best_score=None)
    claim.release()
    code, _, err = typed("stop", "run")
    assert (code, "matches the names of 2 runs" in err) == (2, True)


def test_a_run_without_a_checkpoint_is_told_to_begin_anew(service, typed):
    run = service.submit(brief(REFUSED))
    service.wait(timeout_s=60)
    assert service.get(run).reason == "there is no such thing"
    assert typed("resume", run)[1] == f"{run} is queued; it has no checkpoint and starts again.\n"
    service.wait(timeout_s=60)
