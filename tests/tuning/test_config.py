"""What the flags of `tune` mean, and what of them is refused."""

import json
import subprocess
import sys

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning import StudyRun, tune_config
from ml_pipeline.tuning.config import flat_base, order_from, parse_tune
from tests.tuning.trial_runs import CARTPOLE as CARTPOLE_TRIALS

CARTPOLE = ("--study-name", "s", "--env-id", "CartPole-v1")
BARS = "time,open,high,low,close,volume\n" + "".join(
    f"2024-01-01 {hour:02}:00,1.0,1.1,0.9,1.0,5\n" for hour in range(24)
)


def _parse(*argv):
    return parse_tune([str(word) for word in argv], prog="tune", description="")


def _market(folder, *names):
    folder.mkdir()
    for name in names:
        (folder / name).write_text(BARS)
    return folder


def test_settings_of_train_are_what_every_trial_begins_with():
    order = _parse(*CARTPOLE, "--n-envs", "12", "--total-timesteps", "1e5", "--n-trials", "500", "--n-jobs", "auto")
    assert order.base == {"env_id": "CartPole-v1", "n_envs": 12, "total_timesteps": 100_000, "iterations": None}
    assert (order.study_name, order.tune.n_trials, order.tune.n_jobs) == ("s", 500, "auto")
    assert flat_base(order)["gamma"] == 0.99


def test_a_file_of_settings_is_read_as_train_reads_it(tmp_path):
    (tmp_path / "mine.yaml").write_text("env_id: CartPole-v1\ngamma: 0.9\nn_envs: 3\n")
    order = _parse("--study-name", "s", "--config", tmp_path / "mine.yaml", "--n-envs", "4")
    assert (order.base["gamma"], order.base["n_envs"]) == (0.9, 4)


def test_trials_of_several_processes_have_the_statistics_of_rollouts(tmp_path):
    assert flat_base(_parse(*CARTPOLE, "--n-envs", "4", "--n-processes", "2"))["normalize_update"] == "rollout"
    (tmp_path / "mine.yaml").write_text("env_id: CartPole-v1\nn_envs: 4\nn_processes: 2\nrank_timeout_s: 5\n")
    base = flat_base(_parse("--study-name", "s", "--config", tmp_path / "mine.yaml"))
    assert (base["normalize_update"], base["n_processes"], base["rank_timeout_s"]) == ("rollout", 2, 5.0)


def test_an_order_reaches_another_process_whole(tmp_path):
    data = _market(tmp_path / "d", "EURUSD.csv")
    order = _parse(
        *("--study-name", "s", "--data-dir", data, "--features", "rsi_14", "log_return_5", "--seeds-per-trial", "2"),
        *(
            "--reward",
            "sharpe_ratio",
            "--reward-kwargs",
            '{"risk_free_rate": 0.02}',
            "--n-envs-schedule",
            "1000:4",
            "--max-concurrent-envs",
            "8",
        ),
    )
    assert order_from(json.loads(json.dumps(order.as_json()))) == order


def test_a_data_folder_with_one_file_is_that_market(tmp_path):
    data = _market(tmp_path / "d", "FOREX_EURUSD_1H_ASK.csv")
    order = _parse("--study-name", "s", "--data-dir", data, "--timeframe", "4h")
    assert order.base == {"data": data / "FOREX_EURUSD_1H_ASK.csv", "symbols": (), "timeframe": "4h"}


def test_every_file_of_a_data_folder_is_a_symbol_that_is_traded_alone(tmp_path):
    data = _market(tmp_path / "d", "EURUSD.csv", "GBPUSD.csv")
    assert _parse("--study-name", "s", "--data-dir", data).base == {"data": data, "per_symbol": True}


def test_symbols_choose_among_the_files_of_a_data_folder(tmp_path):
    data = _market(tmp_path / "d", "EURUSD.csv", "GBPUSD.csv", "FOREX_USDJPY_1H.csv")
    one = _parse("--study-name", "s", "--data-dir", data, "--symbols", "usdjpy")
    assert one.base == {"data": data / "FOREX_USDJPY_1H.csv", "symbols": ()}
    together = _parse("--study-name", "s", "--data-dir", data, "--no-per-symbol", "--symbols", "EURUSD", "USDJPY")
    assert together.base["symbols"] == ("EURUSD", "FOREX_USDJPY_1H")


def test_files_of_bid_and_ask_in_a_data_folder_are_one_symbol(tmp_path):
    data = _market(tmp_path / "d", "EURUSD_bid.csv", "EURUSD_ask.csv")
    one = _parse("--study-name", "s", "--data-dir", data)
    assert one.base == {"data": data, "symbols": ("EURUSD",)}
    (data / "GBPUSD.csv").write_text(BARS)
    assert _parse("--study-name", "s", "--data-dir", data, "--symbols", "eurusd").base == one.base
    together = _parse("--study-name", "s", "--data-dir", data, "--no-per-symbol", "--symbols", "GBPUSD", "EURUSD")
    assert together.base["symbols"] == ("GBPUSD", "EURUSD")


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        ((*CARTPOLE, "--n-trials", "0"), "--n-trials must be a whole number of at least 1, but got 0"),
        ((*CARTPOLE, "--n-trials", "-3"), "--n-trials must be a whole number of at least 1"),
        ((*CARTPOLE, "--n-jobs", "0"), "--n-jobs must be a whole number of at least 1"),
        ((*CARTPOLE, "--n-jobs", "many"), "--n-jobs"),
        (("--env-id", "CartPole-v1"), "--study-name is missing"),
        (("--study-name", "../x"), "study-name must be letters"),
        ((*CARTPOLE, "--n-trails", "5"), 'Did you mean "--n-trials"'),
        ((*CARTPOLE, "--checkpoint-dir", "x"), "--checkpoint-dir is the folder of one run"),
        ((*CARTPOLE, "--gpu", "0", "--device", "cpu"), "--gpu names a GPU, but --device is cpu"),
        ((*CARTPOLE, "--n-envs", "9", "--max-concurrent-envs", "8"), "--max-concurrent-envs allows 8 at once"),
        (
            (*CARTPOLE, "--n-envs", "2", "--n-processes", "2", "--launcher", "ray"),
            "^The processes of a trial run on its worker's machine, .* but --launcher is ray; leave it out",
        ),
        (
            (*CARTPOLE, "--launcher", "ray", "--max-restarts", "0"),
            "but --launcher is ray and --max-restarts is 0; leave them out",
        ),
        ((*CARTPOLE, "--n-processes", "2"), "n_processes must be at most n_envs = 1"),
        (
            (*CARTPOLE, "--n-envs", "2", "--n-processes", "2", "--normalize-update", "step"),
            "set normalize_update to rollout",
        ),
        ((*CARTPOLE, "--objective", "sharpe"), "sharpe"),
        ((*CARTPOLE, "--fee-bps", "3"), "--fee-bps is for trading"),
        (("--study-name", "s", "--data", "nowhere.csv"), "nowhere.csv"),
        (("--study-name", "s", "--data-dir", "nowhere"), "nowhere"),
        (("--study-name", "s", "--data-dir", "d", "--data", "d/x.csv"), "use one of them"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_sentence(argv, sentence):
    with pytest.raises(UserError, match=sentence) as refused:
        _parse(*argv)
    assert "\n" not in str(refused.value)


def test_a_gpu_is_what_trials_train_on():
    assert _parse(*CARTPOLE, "--gpu", "1").base["device"] == "cuda"


_WITHOUT_OPTUNA = """
import importlib.util, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "optuna": raise ModuleNotFoundError("No module named 'optuna'", name="optuna")
sys.meta_path.insert(0, Hidden())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "optuna" else found(name, *more)
from ml_pipeline.cli import main
sys.exit(main(sys.argv[1:]))
"""


def _without_optuna(*argv):
    command = [sys.executable, "-c", _WITHOUT_OPTUNA, "tune", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_help_needs_no_optuna():
    done = _without_optuna("--help")
    assert done.returncode == 0, done.stderr
    assert "--n-trials" in done.stdout
    assert "--study-name" in done.stdout


def test_without_optuna_the_extra_is_named(tmp_path):
    done = _without_optuna(*CARTPOLE, "--root", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    sentence = 'Tuning needs Optuna, which is not installed; pip install -e ".[tune]"'
    assert done.stderr == f"ml-pipeline tune: {sentence}\n"
    assert list(tmp_path.iterdir()) == []


def test_settings_from_python_are_the_order_of_the_same_flags():
    settings = {"study_name": "s", "env_id": "CartPole-v1", "n_envs": 12, "total_timesteps": 1e5, "n_jobs": "2"}
    flags = [*CARTPOLE, "--n-envs", "12", "--total-timesteps", "1e5", "--n-jobs", "2"]
    assert flat_base(tune_config(settings)) == flat_base(_parse(*flags))
    assert tune_config(settings).tune == _parse(*flags).tune


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"env_id": "CartPole-v1"}, "--study-name is missing"),
        ({"study_name": "s", "gama": 0.9}, "gamma"),
        ({"study_name": "s", "n_trials": 0}, "n_trials must be"),
        ({"study_name": "s", "gamma": 2}, "gamma"),
    ],
)
def test_settings_from_python_that_cannot_be_used_are_one_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        tune_config(settings)


@pytest.mark.slow
def test_a_study_is_run_from_python(tmp_path, capfd):
    order = tune_config({**CARTPOLE_TRIALS, "study_name": "s", "n_trials": 2, "n_jobs": 1, "root": tmp_path})
    run = StudyRun(order)
    assert run.run()
    assert run.folder == tmp_path / "s"
    assert sum(trial.value is not None for trial in run.trials()) == 2
    assert run.study.best_value > 0
    assert capfd.readouterr().out == ""
