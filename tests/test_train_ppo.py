"""The commands as a user types them: whole runs, interruptions, and what bad input is answered with."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import gymnasium
import pytest
import torch
import yaml

from ml_pipeline import evaluate_ppo, train_ppo
from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.runs.folder import resume_command
from ml_pipeline.runs.state import read_state

REPOSITORY = Path(__file__).resolve().parent.parent
TRAIN = [sys.executable, "-m", "ml_pipeline.train_ppo"]
EVALUATE = [sys.executable, "-m", "ml_pipeline.evaluate_ppo"]
SMALL = ["--n-envs", "2", "--n-steps", "32", "--minibatch-size", "64", "--n-epochs", "2", "--hidden-sizes", "8"]
# Episodes, not the market: its report at the end takes longer than the whole training.
EPISODES = ["--env-id", "CartPole-v1", "--eval-episodes", "2"]
SEEDS = ["--seeds", "7", "4", "--checkpoint-dir"]
LONG = [*EPISODES, *SMALL, "--num-episodes", "30", "--checkpoint-interval", "3", "--eval-interval", "100"]


def run(command, *, cwd=REPOSITORY, expect=0):
    command = [str(part) for part in command]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == expect, done.stderr + done.stdout
    return done


class Output(NamedTuple):
    stdout: str
    stderr: str


def run_here(main, *arguments, expect=0):
    """What a command prints that is called in this process, which has imported torch: a new one takes seconds."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = stopped.code
    assert code == expect, err.getvalue() + out.getvalue()
    return Output(out.getvalue(), err.getvalue())


train, evaluate = (partial(run_here, command.main) for command in (train_ppo, evaluate_ppo))


def weights_in(checkpoint):
    network = torch.load(checkpoint, weights_only=True)["trainer"]["policy"]["network"]
    return torch.cat([weight.flatten() for weight in network.values()])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small finished run on the built-in market: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    done = run([*TRAIN, *SMALL, "--num-episodes", "10", "--eval-interval", "5", "--checkpoint-dir", folder])
    return folder, done.stdout


def test_a_run_leaves_its_files_and_ends_with_the_table(trained):
    folder, out = trained
    assert {"config.yaml", "metrics.jsonl", "monitor.csv", "latest.pt", "best.pt"} <= set(os.listdir(folder))
    assert {"evaluation.json", "equity.png", "ledger.csv"} <= set(os.listdir(folder))
    assert out.startswith("🚀 Using 2 parallel environments for training\n   ")
    assert f"\n   Run folder: {folder}\n" in out
    assert "Episode 10/10\n  Reward:" in out
    assert "buy and hold" in out.split("Episode 10/10")[1]
    assert out.endswith(f"\n\nWritten to {folder}\n")


def test_each_iteration_is_a_line_of_metrics(trained):
    folder, _ = trained
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["time/global_step"] for line in lines] == [64 * (i + 1) for i in range(10)]
    assert ["eval/score" in line for line in lines] == [i in {4, 9} for i in range(10)]
    assert all(line["time/steps_per_second"] > 0 for line in lines)


@pytest.mark.slow
def test_the_resolved_settings_are_written_and_start_the_same_run_again(trained, tmp_path):
    folder, _ = trained
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert (settings["n_envs"], settings["hidden_sizes"], settings["gamma"]) == (2, [8], 0.99)
    train("--config", folder / "config.yaml", "--checkpoint-dir", tmp_path)
    assert torch.equal(weights_in(tmp_path / "latest.pt"), weights_in(folder / "latest.pt"))


@pytest.mark.slow
def test_a_checkpoint_is_evaluated_on_its_own_data_and_on_others(trained, tmp_path):
    folder, out = trained
    done = run([*EVALUATE, folder / "best.pt", "--output-dir", tmp_path])
    assert done.stdout.split("\n\nWritten")[0] in out  # the same verdict as at the end of training
    prices = tmp_path / "prices.csv"
    write_prices(prices, n_days=300)
    assert "prices" in evaluate(folder / "best.pt", "--data", prices).stdout
    assert (folder / "evaluation-prices.csv" / "equity.png").is_file()


@pytest.mark.slow
def test_other_evaluations_leave_the_report_of_the_run_alone(trained):
    folder, _ = trained
    before = contents(folder)
    evaluate(folder / "best.pt", "--split", "validation", "--fee-bps", "10")
    evaluate(folder / "latest.pt")
    assert contents(folder) == before
    assert {"evaluation-validation-fee_bps-10", "evaluation-latest"} <= set(os.listdir(folder))


def test_a_report_that_cannot_be_written_and_a_file_that_is_no_checkpoint_are_told(trained, tmp_path):
    folder, _ = trained
    done = evaluate(folder / "best.pt", "--output-dir", "/proc/report", expect=2)
    assert "The report cannot be written to /proc/report" in done.stderr
    write_prices(tmp_path / "prices.csv", n_days=3)
    assert "cannot be read as a checkpoint" in evaluate(tmp_path / "prices.csv", expect=2).stderr


def test_a_gymnasium_environment_trains_and_is_evaluated(tmp_path):
    done = train("--env-id", "CartPole-v1", *SMALL, "--num-episodes", "2", "--checkpoint-dir", tmp_path)
    *_, verdict, _, written = done.stdout.splitlines()
    assert verdict.startswith("Evaluation on a single CartPole-v1: return ")
    assert written == f"Written to {tmp_path}"
    assert verdict in evaluate(tmp_path / "best.pt").stdout


@pytest.mark.slow
def test_the_same_weights_from_one_spawned_worker_and_from_two_forked(tmp_path):
    for workers, method in (("1", "spawn"), ("2", "fork")):
        options = ["--n-envs", "8", "--n-workers", workers, "--parallel-start-method", method]
        options += [*EPISODES, "--n-steps", "16", "--minibatch-size", "64", "--num-episodes", "3"]
        run([*TRAIN, *options, "--checkpoint-dir", tmp_path / method])
    assert torch.equal(weights_in(tmp_path / "spawn" / "latest.pt"), weights_in(tmp_path / "fork" / "latest.pt"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "uninterrupted"
    train(*LONG, "--checkpoint-dir", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_run_that_is_stopped_and_resumed_ends_as_if_it_had_not_been(signal_number, uninterrupted, tmp_path):
    command = [*TRAIN, *LONG, "--n-workers", "2", "--checkpoint-dir", str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.startswith("Episode 10/"):
                process.send_signal(signal_number)
                break
        rest = process.stdout.read()
    state = read_state(tmp_path)
    if signal_number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert (state.status, "is gone" in state.reason) == ("failed", True)
    else:
        assert process.returncode == 128 + signal_number
        assert (state.status, state.reason) == ("stopped", f"Stopped by {signal_number.name}.")
        assert f"--resume {tmp_path}" in rest
    done = train("--resume", "auto", "--checkpoint-dir", tmp_path)
    assert "Going on after episode" in done.stdout
    assert torch.equal(weights_in(tmp_path / "latest.pt"), weights_in(uninterrupted / "latest.pt"))
    for name, columns in (("metrics.jsonl", slice(0)), ("monitor.csv", slice(0, 2))):
        ours, theirs = ((folder / name).read_text().splitlines() for folder in (tmp_path, uninterrupted))
        assert len(ours) == len(theirs)  # every iteration and episode once
        assert [line.split(",")[columns] for line in ours] == [line.split(",")[columns] for line in theirs]


@pytest.mark.slow
def test_a_run_that_is_being_written_is_neither_resumed_nor_written_over(tmp_path):
    folder = tmp_path / "run"
    endless = [*TRAIN, *EPISODES, *SMALL, "--num-episodes", "1000000", "--checkpoint-dir", str(folder)]
    with subprocess.Popen(endless, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            next(line for line in process.stdout if line.startswith("Episode 10/"))
            for options in (["--resume", folder], ["--resume", "auto", "--checkpoint-dir", folder], endless[3:]):
                told = train(*options, expect=2).stderr
                assert told.startswith(f"train_ppo.py: {folder} is being written by process {process.pid} on ")
                assert told.count("\n") == 1
        finally:
            process.kill()


def test_training_that_ends_early_is_evaluated_and_ends_there_after_a_resumption_too(tmp_path, capsys):
    still = [*EPISODES, *SMALL, "--n-workers", "0", "--eval-interval", "100", "--learning-rate", "1e-9"]
    plateau = [*still, "--stop-on-plateau", "4", "--num-episodes", "50"]
    assert train_ppo.main([*plateau, "--checkpoint-dir", str(tmp_path / "whole")]) == 0
    n_iterations = len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines())
    assert n_iterations < 50
    out = capsys.readouterr().out
    assert f"Training ends early, after episode {n_iterations}." in out
    assert "Evaluation on a single CartPole-v1: return " in out
    interrupted = [*still, "--stop-on-plateau", "4", "--num-episodes", str(n_iterations - 2)]
    assert train_ppo.main([*interrupted, "--checkpoint-dir", str(tmp_path / "parts")]) == 0
    assert train_ppo.main(["--resume", str(tmp_path / "parts"), "--num-episodes", "50"]) == 0
    assert len((tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()) == n_iterations
    target = [*still, "--num-episodes", "50", "--stop-at-return", "5", "--checkpoint-dir", str(tmp_path / "target")]
    assert train_ppo.main(target) == 0
    assert len((tmp_path / "target" / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--n-envs", "0"], "n_envs must be"),
        (["--n-steps", "-5"], "n_steps must be"),
        (["--minibatch-size", "512"], "minibatch_size must be at most n_envs * n_steps = 1 * 256 = 256"),
        (["--env-id", "CartPole-v9"], 'There is no environment "CartPole-v9"'),
        (["--env-id", "CartPol-v1"], 'Did you mean "CartPole-v1"?'),
        (["--n-env", "4"], 'Did you mean "--n-envs"?'),
        (["--data", "missing.csv"], "missing.csv"),
        (["--resume", "nowhere"], "There is no checkpoint"),
        (["--device", "cuda"], "The device cuda is not there"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--checkpoint-dir", "/proc/runs"], "/proc/runs cannot be made"),
    ],
    ids=lambda value: "".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments, sentence):
    if arguments == ["--device", "cuda"] and torch.cuda.is_available():
        pytest.skip("this machine has the device")
    done = train(*arguments, expect=2)
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("train_ppo.py: ")


FAILS_ONCE = """
import os, signal, time
from pathlib import Path
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class FailsOnce(CartPoleEnv):
    n_steps = 0
    def step(self, action):
        self.n_steps += 1
        if self.n_steps == 40 and first_to_ask():
            self.fail()
        return super().step(action)

def first_to_ask():  # of environments that come to this step at the same moment, one alone
    try:
        Path(__file__).with_name("failed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

class Killed(FailsOnce):
    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)

class Hanging(FailsOnce):
    def fail(self):
        time.sleep(3600)

gymnasium.register("Killed-v0", Killed)
gymnasium.register("Hanging-v0", Hanging)
"""


@pytest.fixture
def in_failing_env(tmp_path, monkeypatch):
    """Trains for four iterations, 128 steps each environment, in an environment of which one fails in step 40."""
    (tmp_path / "fails_once.py").write_text(FAILS_ONCE)
    monkeypatch.syspath_prepend(tmp_path)
    options = [*SMALL, "--n-workers", "2", "--num-episodes", "4", "--eval-episodes", "1"]
    options += ["--checkpoint-dir", str(tmp_path / "run")]
    yield lambda name, *more: train_ppo.main(["--env-id", f"fails_once:{name}", *options, *more])
    sys.modules.pop("fails_once", None)
    for name in ("Killed-v0", "Hanging-v0"):
        gymnasium.registry.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("options", [["Killed-v0"], ["Hanging-v0", "--step-timeout-s", "2"]], ids=lambda o: o[0])
def test_a_run_goes_on_with_another_worker_and_counts_it(options, in_failing_env, tmp_path, capsys):
    assert in_failing_env(*options, "--on-worker-failure", "restart") == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/n_worker_restarts"] for line in lines] == [0, 1, 1, 1]
    assert lines[-1]["time/global_step"] == 4 * 2 * 32
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "Another took its place" in line)
    assert re.match(r"Worker \d (\(environment \d\) was killed by SIGKILL|did not finish its step)", told)


@pytest.mark.slow
def test_a_run_whose_environment_hangs_ends_with_one_message(in_failing_env, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert in_failing_env("Hanging-v0", "--step-timeout-s", "2") == 1
    message = capsys.readouterr().err
    assert re.match(r"train_ppo.py: Worker \d did not finish its step within step_timeout_s=2: environment", message)
    assert message.count("train_ppo.py:") == 1
    assert 'fails_once.py", line' in message  # where it is stuck
    assert message.endswith(f"go on from it with:\n  {resume_command(Path('run'))}\n")


def test_an_environment_is_looked_over_instead_of_trained_in(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train_ppo.main(["--env-id", "CartPole-v1", "--check-env"]) == 0
    assert capsys.readouterr().out.startswith("CartPole-v1: nothing found")
    gymnasium.register("Faulty-v0", partial(FaultyEnv, "nan"))
    try:
        assert train_ppo.main(["--env-id", "Faulty-v0", "--check-env", "--checkpoint-dir", "run"]) == 1
    finally:
        del gymnasium.registry["Faulty-v0"]
    assert capsys.readouterr().out == "Faulty-v0: In step 1, reward must be a finite number, but it was NaN.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_not_written_over(trained):
    folder, _ = trained
    before = contents(folder)
    done = train("--checkpoint-dir", folder, expect=2)
    assert f"go on with it by --resume {folder}" in done.stderr
    assert contents(folder) == before


def test_a_damaged_checkpoint_is_named_and_the_run_is_left_as_it_is(trained, tmp_path):
    folder, _ = trained
    (tmp_path / "config.yaml").write_bytes((folder / "config.yaml").read_bytes())
    (tmp_path / "latest.pt").write_bytes((folder / "latest.pt").read_bytes()[:1000])
    for done in (train("--resume", tmp_path, expect=2), evaluate(tmp_path / "latest.pt", expect=2)):
        assert "cannot be read as a checkpoint" in done.stderr


def test_a_checkpoint_of_another_network_is_refused(trained, tmp_path):
    folder, _ = trained
    for name in ("config.yaml", "latest.pt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    saved = torch.load(tmp_path / "latest.pt", weights_only=True)
    saved["trainer"]["policy"]["fits"]["observation space"] = "Box(99,)"
    torch.save(saved, tmp_path / "latest.pt")
    before = contents(tmp_path)
    done = train("--resume", tmp_path, expect=2)
    assert "observation space Box(99,), but here it is" in done.stderr
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "changed",
    [
        ["--n-envs", "3"],
        ["--n-steps", "16"],
        ["--fee-bps", "500"],
        ["--hidden-sizes", "9"],
        ["--env-id", "CartPole-v1"],
    ],
    ids=" ".join,
)
def test_a_resumed_run_keeps_what_it_is_made_of_and_a_refusal_leaves_it_alone(trained, changed):
    folder, _ = trained
    before = contents(folder)
    done = train("--resume", folder, *changed, expect=2)
    assert f"{changed[0]} " in done.stderr
    assert f"a resumed run keeps it, but got {changed[1]}" in done.stderr
    assert contents(folder) == before


def test_a_run_whose_data_have_changed_is_not_gone_on_with(tmp_path):
    prices, folder = tmp_path / "prices.csv", tmp_path / "run"
    write_prices(prices, n_days=600)
    train(*SMALL, "--num-episodes", "2", "--episode-length", "32", "--data", prices, "--checkpoint-dir", folder)
    write_prices(prices, n_days=700)
    before = contents(folder)
    done = train("--resume", folder, "--num-episodes", "4", expect=2)
    assert "not those that the run was trained on" in done.stderr
    assert contents(folder) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def write_prices(path, n_days):
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["date", "open", "high", "low", "close", "volume"])
        for day in range(n_days):
            price = 100 + day % 7
            rows.writerow([f"{2000 + day // 28 // 12}-{day // 28 % 12 + 1:02}-{day % 28 + 1:02}", *[price] * 4, 5])


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_ppo.py", "evaluate_ppo.py"])
def test_it_runs_as_a_module_as_a_path_and_in_its_folder(script):
    package = REPOSITORY / "ml_pipeline"
    outputs = {
        run([sys.executable, "-m", f"ml_pipeline.{script[:-3]}", "--help"]).stdout,
        run([sys.executable, f"ml_pipeline/{script}", "--help"]).stdout,
        run([sys.executable, script, "--help"], cwd=package).stdout,
    }
    assert len(outputs) == 1


@pytest.mark.slow
def test_help_and_complaints_come_before_torch_is_imported():
    for arguments in ("['--help']", "['--n-envs', '0']", "['--env-id', 'CartPole-v9']"):
        code = (
            "import sys\nfrom ml_pipeline.train_ppo import main\n"
            f"try: main({arguments})\nexcept SystemExit: print('torch' in sys.modules)"
        )
        assert run([sys.executable, "-c", code]).stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_a_terminal_that_knows_only_ascii_gets_question_marks(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [*TRAIN, *EPISODES, *SMALL, "--num-episodes", "1", "--checkpoint-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("? Using 2 parallel environments")


class Interrupting(CountingEnv):
    """Presses Ctrl-C in the first step of the training environment that is seeded with 20."""

    def reset(self, *, seed=None, options=None):
        self._presses = seed == 20
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self._presses:
            self._presses = False
            signal.raise_signal(signal.SIGINT)
        return super().step(action)


@pytest.mark.slow
def test_several_seeds_are_trained_one_after_another_and_compared(tmp_path):
    done = train(*EPISODES, *SMALL, "--num-episodes", "2", "--n-workers", "0", *SEEDS, tmp_path / "base")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base-comparison.png", "base-seed4", "base-seed7"]
    assert [line for line in done.stdout.splitlines() if line.startswith("Seed ")] == [
        "Seed 7 (1 of 2)",
        "Seed 4 (2 of 2)",
    ]
    table = done.stdout[done.stdout.index("run         seed") :].splitlines()
    assert [row.split()[:3] + row.split()[-1:] for row in table[2:4]] == [
        ["base-seed7", "7", "128", "finished"],
        ["base-seed4", "4", "128", "finished"],
    ]
    assert table[5].startswith("base (2 runs): return of the last 5 % ")
    alone = ["--seed", "4", "--num-episodes", "2", "--n-workers", "0", "--checkpoint-dir", tmp_path / "alone"]
    train(*EPISODES, *SMALL, *alone)
    assert torch.equal(weights_in(tmp_path / "alone" / "latest.pt"), weights_in(tmp_path / "base-seed4" / "latest.pt"))


def test_ctrl_c_stops_at_the_seed_that_is_trained_and_names_the_others(tmp_path):
    gymnasium.register("Interrupting-v0", Interrupting, disable_env_checker=True)
    flags = ["--env-id", "Interrupting-v0", *SMALL, "--num-episodes", "3", "--n-workers", "0"]
    try:
        done = train(*flags, "--seeds", "10", "20", "30", "40", "--checkpoint-dir", tmp_path / "base", expect=130)
    finally:
        del gymnasium.registry["Interrupting-v0"]
    assert done.stderr == "Not trained: --seeds 30 40\n"
    assert f"--resume {tmp_path / 'base-seed20'}" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base-seed10", "base-seed20"]
