"""The commands as a user types them: whole runs, several seeds, and what bad input is answered with."""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial

import gymnasium
import pytest
import torch
import yaml

from ml_pipeline import train_ppo
from ml_pipeline.models.rl.core.probe_envs import CountingEnv, FaultyEnv
from ml_pipeline.runs.state import read_state
from ml_pipeline.trading import configured_market
from tests.training_commands import (
    EPISODES,
    REPOSITORY,
    SMALL,
    TRAIN,
    contents,
    evaluate,
    run,
    train,
    weights_in,
    write_prices,
)

pytestmark = pytest.mark.usefixtures("short_built_in_market", "undrawn_reports")
SEEDS = ["--seeds", "7", "4", "--checkpoint-dir"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small finished run on the built-in market: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    done = train(*SMALL, "--iterations", "10", "--eval-interval", "5", "--checkpoint-dir", folder)
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
def rows_of(out):
    """The heading of the table in an output, and its rows, each a list of cells."""
    heading, table = out.partition("SYNTH, test split")[2].split("\n\n")[:2]
    return heading, [re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if not line.startswith("---")]


def test_a_checkpoint_is_evaluated_on_its_own_data_and_on_others(trained, tmp_path):
    folder, out = trained
    done = evaluate(folder / "best.pt", "--output-dir", tmp_path)
    heading, rows = rows_of(done.stdout)
    heading_of_training, rows_of_training = rows_of(out)
    assert heading == heading_of_training
    assert len(rows_of_training) == 7
    assert "buy and hold" in rows_of_training[0]
    assert [row for row in rows if row in rows_of_training] == rows_of_training
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
    looks = folder / "test_looks.jsonl"  # which grows by each look
    assert {path: text for path, text in contents(folder).items() if path != looks} == {
        path: text for path, text in before.items() if path != looks
    }
    assert {"evaluation-validation-fee_bps-10", "evaluation-latest"} <= set(os.listdir(folder))


def test_a_report_that_cannot_be_written_and_a_file_that_is_no_checkpoint_are_told(trained, tmp_path):
    folder, _ = trained
    done = evaluate(folder / "best.pt", "--output-dir", "/proc/report", expect=2)
    assert "The report cannot be written to /proc/report" in done.stderr
    write_prices(tmp_path / "prices.csv", n_days=3)
    assert "cannot be read as a checkpoint" in evaluate(tmp_path / "prices.csv", expect=2).stderr


def test_a_gymnasium_environment_trains_and_is_evaluated(tmp_path):
    done = train("--env-id", "CartPole-v1", *SMALL, "--iterations", "2", "--checkpoint-dir", tmp_path)
    *_, verdict, _, written = done.stdout.splitlines()
    assert verdict.startswith("Evaluation on a single CartPole-v1: return ")
    assert written == f"Written to {tmp_path}"
    assert verdict in evaluate(tmp_path / "best.pt").stdout


@pytest.mark.long
def test_the_same_weights_from_one_spawned_worker_and_from_two_forked(tmp_path):
    for workers, method in (("1", "spawn"), ("2", "fork")):
        options = ["--n-envs", "8", "--n-workers", workers, "--parallel-start-method", method]
        options += [*EPISODES, "--n-steps", "16", "--minibatch-size", "64", "--iterations", "3"]
        run([*TRAIN, *options, "--checkpoint-dir", tmp_path / method])
    assert torch.equal(weights_in(tmp_path / "spawn" / "latest.pt"), weights_in(tmp_path / "fork" / "latest.pt"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--n-envs", "0"], "n_envs must be"),
        (["--n-steps", "-5"], "n_steps must be"),
        (["--minibatch-size", "512"], "minibatch_size must be at most n_envs * n_steps = 1 * 256 = 256"),
        (["--env-id", "CartPole-v9"], 'There is no environment "CartPole-v9"'),
        (["--env-id", "CartPol-v1"], 'Did you mean "CartPole-v1"'),
        (["--n-env", "4"], 'Did you mean "--n-envs"?'),
        (["--data", "missing.csv"], "missing.csv"),
        (["--resume", "nowhere"], "There is no checkpoint"),
        (["--device", "cuda"], "This machine has no device cuda"),
        (["--config", "missing.yaml"], "missing.yaml"),
        (["--checkpoint-dir", "/proc/runs"], "/proc/runs cannot be created"),
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


def test_an_environment_is_looked_over_instead_of_trained_in(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train_ppo.main(["--env-id", "CartPole-v1", "--check-env"]) == 0
    assert capsys.readouterr().out.startswith("CartPole-v1: no problem found")
    gymnasium.register("Faulty-v0", partial(FaultyEnv, "nan"))
    try:
        assert train_ppo.main(["--env-id", "Faulty-v0", "--check-env", "--checkpoint-dir", "run"]) == 1
    finally:
        del gymnasium.registry["Faulty-v0"]
    said = capsys.readouterr().out
    assert said.startswith("Faulty-v0: In step 1, reward must be a finite number, but got NaN; look for a division")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_it_runs_as_a_module_as_a_path_and_in_its_folder():
    package = REPOSITORY / "ml_pipeline"
    outputs = {
        run([sys.executable, "-m", "ml_pipeline.train_ppo", "--help"]).stdout,
        run([sys.executable, "ml_pipeline/train_ppo.py", "--help"]).stdout,
        run([sys.executable, "train_ppo.py", "--help"], cwd=package).stdout,
    }
    assert [text[:13] for text in outputs] == ["usage: train_"]


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
    command = [*TRAIN, *EPISODES, *SMALL, "--iterations", "1", "--checkpoint-dir", str(tmp_path)]
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
    done = train(*EPISODES, *SMALL, "--iterations", "2", "--n-workers", "0", *SEEDS, tmp_path / "base")
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
    alone = ["--seed", "4", "--iterations", "2", "--n-workers", "0", "--checkpoint-dir", tmp_path / "alone"]
    train(*EPISODES, *SMALL, *alone)
    assert torch.equal(weights_in(tmp_path / "alone" / "latest.pt"), weights_in(tmp_path / "base-seed4" / "latest.pt"))


def test_ctrl_c_stops_at_the_seed_that_is_trained_and_names_the_others(tmp_path):
    gymnasium.register("Interrupting-v0", Interrupting, disable_env_checker=True)
    flags = ["--env-id", "Interrupting-v0", *SMALL, "--iterations", "3", "--n-workers", "0"]
    try:
        done = train(*flags, "--seeds", "10", "20", "30", "40", "--checkpoint-dir", tmp_path / "base", expect=130)
    finally:
        del gymnasium.registry["Interrupting-v0"]
    assert done.stderr == "Not trained: --seeds 30 40\n"
    assert f"--resume {tmp_path / 'base-seed20'}" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base-seed10", "base-seed20"]


def test_the_market_of_several_seeds_is_loaded_once(tmp_path, monkeypatch):
    loaded = []

    def load(config):
        loaded.append(config)
        return usual(config)

    usual = configured_market.load_configured_market
    monkeypatch.setattr(configured_market, "load_configured_market", load)
    train(*SMALL, "--iterations", "1", "--n-workers", "0", *SEEDS, tmp_path / "base")
    assert len(loaded) == 1
    alone = ["--seed", "4", "--iterations", "1", "--n-workers", "0", "--checkpoint-dir", tmp_path / "alone"]
    train(*SMALL, *alone)
    for name in ("evaluation.json", "ledger.csv"):
        assert (tmp_path / "base-seed4" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()


def test_a_seed_that_cannot_be_trained_is_followed_by_those_that_were_not(tmp_path):
    (tmp_path / "base-seed4" / "metrics.jsonl").mkdir(parents=True)
    done = train(*EPISODES, *SMALL, "--iterations", "1", "--n-workers", "0", *SEEDS, tmp_path / "base", expect=2)
    assert "metrics.jsonl" in done.stderr
    assert "Not trained" not in done.stderr  # it was the last one
    done = train(*EPISODES, *SMALL, "--seeds", "4", "8", "9", "--checkpoint-dir", tmp_path / "base", expect=2)
    assert done.stderr.endswith("\nNot trained: --seeds 8 9\n")


class Unhurried(CountingEnv):
    """Presses Ctrl-C in the last of so many evaluations, and would then go on for ever."""

    _presses = _goes_on = False

    def reset(self, *, seed=None, options=None):
        self._presses = self._goes_on = False
        if seed is not None and seed >= 1_000_000:
            left = int(os.environ["EVALUATIONS_LEFT"]) - 1
            os.environ["EVALUATIONS_LEFT"] = str(left)
            self._presses = left == 0
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self._presses:
            self._presses, self._goes_on = False, True
            signal.raise_signal(signal.SIGTERM)
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated and not self._goes_on, truncated and not self._goes_on, info


@pytest.mark.parametrize("at", [1, 2], ids=["evaluation", "report"])
def test_a_signal_ends_an_evaluation_and_a_report_at_once_and_the_run_can_be_resumed(tmp_path, monkeypatch, at):
    monkeypatch.setenv("EVALUATIONS_LEFT", str(at))
    gymnasium.register("Unhurried-v0", Unhurried, disable_env_checker=True)
    flags = ["--env-id", "Unhurried-v0", *SMALL, "--iterations", "2", "--n-workers", "0", "--eval-episodes", "1"]
    try:
        done = train(*flags, "--checkpoint-dir", tmp_path, expect=143)
        state = read_state(tmp_path)
        assert (state.status, state.iterations) == ("stopped", 2)
        assert f"--resume {tmp_path}\n" in done.stdout + done.stderr
        if at == 2:
            told = "train_ppo.py: Stopped by SIGTERM. The training is saved, but the report was not written.\n"
            assert done.stderr.startswith(told)
        assert not (tmp_path / "evaluation.json").exists()
        train("--resume", tmp_path)
    finally:
        del gymnasium.registry["Unhurried-v0"]
    assert read_state(tmp_path).status == "finished"
    assert {"best.pt", "evaluation.json"} <= set(os.listdir(tmp_path))


def test_a_run_and_its_evaluation_write_nothing_but_the_run_folder_where_one_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = train(*EPISODES, *SMALL, "--iterations", "1", "--n-workers", "0")
    assert os.listdir(tmp_path) == ["checkpoints"]
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert f"Run folder: checkpoints/{folder.name}\n" in done.stdout
    evaluate(f"checkpoints/{folder.name}/latest.pt")
    assert os.listdir(tmp_path) == ["checkpoints"]
    assert "Resuming after iteration 1" in train("--resume", "auto").stdout
    assert os.listdir(tmp_path / "checkpoints") == [folder.name]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write")
def test_a_working_directory_that_cannot_be_written_is_one_sentence(monkeypatch):
    monkeypatch.chdir("/proc")
    done = train(*EPISODES, *SMALL, "--iterations", "1", "--n-workers", "0", expect=2)
    assert re.fullmatch(
        r"train_ppo.py: The folder /proc/checkpoints/\S+ cannot be created: .*--checkpoint-dir\.\n", done.stderr
    )
