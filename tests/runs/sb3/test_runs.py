"""A run of an algorithm of Stable-Baselines3 is a run: its folder, report, evaluation, resuming and loading."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from ml_pipeline.config.errors import UserError
from ml_pipeline.evaluate_ppo import main as evaluate
from ml_pipeline.models.rl.algorithms.evaluation import evaluate as play
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import read_train_settings, train_config
from ml_pipeline.runs.trained.configs import ExportConfig
from ml_pipeline.runs.trained.export import export_checkpoint
from ml_pipeline.runs.trained.load_policy import load_policy

CARTPOLE = {
    "algorithm": "DQN",
    "env_id": "CartPole-v1",
    "n_envs": 2,
    "n_workers": 0,
    "total_timesteps": 600,
    "n_steps": 50,
    "eval_interval": 2,
    "eval_episodes": 2,
    "checkpoint_interval": 1,
    "device": "cpu",
    "algorithm_kwargs": {"learning_starts": 50},
}


def run_in(folder, settings=CARTPOLE, **options):
    config = train_config({**settings, "checkpoint_dir": folder})
    return Run(config, make_task(config), **options)


def weights(checkpoint):
    return load_checkpoint(checkpoint)["trainer"]["policy"]["network"]


def same(ours, theirs):
    return ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


class Said(RunListener):
    def __init__(self):
        self.sentences = []

    def say(self, sentence):
        self.sentences.append(sentence)


class StopsAfter(Said):
    """Requests a stop at the evaluation after so many iterations."""

    def __init__(self, stop):
        super().__init__()
        self._stop = stop

    def say(self, sentence):
        super().say(sentence)
        if "after iteration 2" in sentence:
            self._stop.request()


@pytest.mark.slow
def test_a_run_has_the_folder_and_the_report_of_any_run(tmp_path):
    result = run_in(tmp_path / "run").train()
    assert (result.status, result.global_step, sorted(result.scores)) == ("finished", 600, [200, 400, 600])
    assert result.best_score == max(result.scores.values())
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"best.pt", "latest.pt", "config.yaml", "metrics.jsonl", "monitor.csv", "state.json"} <= files
    assert {"evaluation.json", "report.html"} <= files
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["time/iteration"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert json.loads((tmp_path / "run" / "state.json").read_text())["status"] == "finished"
    again = train_config(read_train_settings(tmp_path / "run" / "config.yaml"))
    assert again == train_config(CARTPOLE)


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(tmp_path):
    run_in(tmp_path / "whole").train()
    stop = StopRequest()
    result = run_in(tmp_path / "run", listener=StopsAfter(stop), stop=stop).train()
    assert (result.status, result.global_step) == ("stopped", 200)
    latest = tmp_path / "run" / "latest.pt"
    config = resumed_config(latest, {"algorithm_kwargs": {"learning_starts": 50}})
    said = Said()
    assert Run(config, make_task(config), checkpoint=latest, listener=said).train().status == "finished"
    assert "Resuming after iteration 2, step 200." in said.sentences
    assert not any("new episodes" in sentence or "memory" in sentence for sentence in said.sentences)
    assert same(weights(latest), weights(tmp_path / "whole" / "latest.pt"))
    runs = [(tmp_path / name / "monitor.csv").read_text().splitlines()[1:] for name in ("run", "whole")]
    without_times = [[line.split(",")[:2] + line.split(",")[3:] for line in lines] for lines in runs]
    assert without_times[0] == without_times[1]


@pytest.mark.slow
def test_a_finished_run_goes_on_with_more_steps(tmp_path):
    run_in(tmp_path / "run").train()
    latest = tmp_path / "run" / "latest.pt"
    config = resumed_config(latest, {"total_timesteps": 800})
    result = Run(config, make_task(config), checkpoint=latest).train()
    assert (result.status, result.global_step, result.iterations) == ("finished", 800, 8)


@pytest.mark.slow
def test_the_best_checkpoint_is_small_and_resumes_with_an_empty_memory(tmp_path):
    run_in(tmp_path / "run").train()
    best = tmp_path / "run" / "best.pt"
    assert "replay" not in load_checkpoint(best)["trainer"]
    config = resumed_config(best, {"checkpoint_dir": tmp_path / "again"})
    said = Said()
    assert Run(config, make_task(config), checkpoint=best, listener=said).train().status == "finished"
    step = load_checkpoint(best)["trainer"]["global_step"]
    assert any("replay buffer starts empty" in sentence for sentence in said.sentences) == (step < 600)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [({"algorithm": "A2C"}, "--algorithm DQN"), ({"algorithm_kwargs": {"learning_starts": 9}}, "--algorithm-kwargs")],
)
def test_a_resumed_run_keeps_its_algorithm(tmp_path, changes, flag):
    run_in(tmp_path / "run").train()
    with pytest.raises(UserError, match=f"has {flag}.*which cannot change on resume"):
        resumed_config(tmp_path / "run" / "latest.pt", changes)


@pytest.mark.slow
def test_a_loaded_policy_acts_as_the_run_reported(tmp_path, capsys):
    run_in(tmp_path / "run").train()
    policy = load_policy(tmp_path / "run")
    assert str(policy).startswith("LoadedSB3Policy(DQN, Box(4,) -> Discrete(2), trained for ")
    env = gymnasium.make("CartPole-v1")
    reported = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert play(env, policy.act, n_episodes=2, seed=1_000_000).mean_return == pytest.approx(reported["mean_return"])
    assert policy.act(np.zeros(4, np.float32), generator=np.random.default_rng(0)) in (0, 1)
    batch = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    actions, state = policy.predict(batch, deterministic=True)
    assert (actions.tolist(), state) == ([policy.act(observation) for observation in batch], None)
    assert evaluate([str(tmp_path / "run")]) == 0
    assert f"return {reported['mean_return']:,.2f}" in capsys.readouterr().out


@pytest.mark.slow
def test_predict_samples_by_default_and_can_be_seeded(tmp_path):
    settings = {**CARTPOLE, "algorithm": "A2C", "algorithm_kwargs": {}, "total_timesteps": 100}
    run_in(tmp_path / "run", settings).train()
    policy, batch = load_policy(tmp_path / "run"), np.zeros((100, 4), np.float32)
    found = []
    for _ in range(2):
        policy.generator = np.random.default_rng(7)
        found.append(policy.predict(batch)[0].tolist())
    assert found[0] == found[1]
    assert set(found[0]) == {0, 1}
    assert policy.predict(batch)[0].tolist() != found[0]


@pytest.mark.slow
def test_loading_a_policy_leaves_the_global_generators_alone(tmp_path):
    run_in(tmp_path / "run").train()
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    load_policy(tmp_path / "run")
    assert np.random.rand() == expected


@pytest.mark.slow
def test_a_policy_of_another_library_is_not_exported(tmp_path):
    run_in(tmp_path / "run").train()
    with pytest.raises(UserError, match="was trained with DQN, but only PPO policies can be exported"):
        export_checkpoint(ExportConfig(checkpoint=tmp_path / "run", output=tmp_path / "policy.onnx"))


def test_actions_of_the_wrong_kind_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match=r"SAC supports action spaces of the kind Box.*; use A2C, DQN, PPO"):
        run_in(tmp_path / "run", {**CARTPOLE, "algorithm": "SAC", "algorithm_kwargs": {}}).train()
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").iterdir())


def test_early_stopping_ends_the_run(tmp_path):
    result = run_in(tmp_path / "run", {**CARTPOLE, "stop_at_return": 1.0}).train()
    assert result.status == "finished"
    assert result.global_step < 600
    assert "ends early" in result.reason


@pytest.mark.slow
def test_trading_by_dqn_is_reported_beside_its_baselines(tmp_path):
    trading = {**CARTPOLE, "env_id": None, "action_mode": "discrete", "episode_length": 40}
    del trading["eval_episodes"]
    result = run_in(tmp_path / "run", trading).train()
    for name in ("agent", "buy and hold", "random"):
        assert name in result.report.lower().replace("_", " ").replace("-", " ")
    assert load_policy(tmp_path / "run").act(np.zeros(load_policy(tmp_path / "run").observation_space.shape)) in (
        0,
        1,
        2,
    )


@pytest.mark.long
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path):
    run = tmp_path / "run"
    words = "--algorithm dqn --env-id CartPole-v1 --n-envs 2 --n-workers 1 --n-steps 50 --checkpoint-interval 1"
    command = [sys.executable, "-m", "ml_pipeline.train_ppo", *words.split(), "--checkpoint-dir", str(run)]
    with subprocess.Popen(
        [*command, "--total-timesteps", "200000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while not (run / "metrics.jsonl").is_file() or len((run / "metrics.jsonl").read_text().splitlines()) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    step = load_checkpoint(run / "latest.pt")["trainer"]["global_step"]
    again = [*command, "--resume", str(run), "--total-timesteps", str(step + 100)]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(Path(run / "state.json").read_text())["status"] == "finished"
    assert load_checkpoint(run / "latest.pt")["trainer"]["global_step"] >= step + 100
