"""`TrainerAgent`, as its users type it."""

import json
import logging
import re
import subprocess
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.service import TrainerAgent, build_vec_env
from ml_pipeline.service.agent_config import agent_config
from ml_pipeline.service.trainer_agent import _check_spaces
from ml_pipeline.trading.gym_ids import TradingEnv
from tests.service.forex_files import SMALL, write_folder
from tests.small_runs import weights

SYMBOLS = ["EURUSD", "GBPUSD"]
HERE = {"env_type": "DummyVecEnv"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("forex"), *SYMBOLS, n_bars=200)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def config_of(tmp_path, name="run", **sections):
    config = {**SMALL, "vectorized": HERE, **sections}
    return {**config, "training": {**config["training"], "checkpoint_dir": str(tmp_path / name)}}


def trained(tmp_path, folder, name="run", **sections):
    """An agent whose training is over, and its model."""
    trainer = TrainerAgent(config_of(tmp_path, name, **sections))
    with closing(trainer.create_vectorized_env(SYMBOLS, folder, 2)) as envs:
        trainer.set_env(envs)
        return trainer, trainer.train()


@pytest.fixture(scope="module")
def model(tmp_path_factory, folder):
    """What an agent has trained with these settings; nothing in it may be changed."""
    return trained_once(tmp_path_factory.mktemp("model"), folder)


@pytest.fixture(scope="module")
def dqn_model(tmp_path_factory, folder):
    pytest.importorskip("stable_baselines3")
    return trained_once(tmp_path_factory.mktemp("dqn"), folder, **DQN)


def trained_once(here, folder, **sections):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        return trained(here, folder, **sections)[1]


def learner(folder):
    """The parameters that an algorithm of Stable-Baselines3 has learned, as bytes by name."""
    state = load_checkpoint(folder / "latest.pt")["trainer"]["policy"]
    found = {name: weight.numpy().tobytes() for name, weight in tensors_in(state)}
    assert found
    return found


def tensors_in(state, name=""):
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            yield f"{name}.{key}", value
        elif isinstance(value, dict):
            yield from tensors_in(value, f"{name}.{key}")


def test_it_trains_in_the_environments_that_it_is_given_and_leaves_them_open(tmp_path, folder):
    trainer = TrainerAgent(config_of(tmp_path))
    vec_env = trainer.create_vectorized_env(symbols=SYMBOLS, data_dir=folder, n_envs=2, use_shared_memory=False)
    trainer.set_env(vec_env)
    model_path = trainer.train()
    assert model_path == tmp_path / "run" / "best.pt"
    assert not vec_env.closed
    vec_env.reset()
    vec_env.close()
    result = trainer.trainer_core.run_result
    assert (result.status, result.global_step) == ("finished", 256)
    assert {"config.yaml", "metrics.jsonl", "report.html", "symbols", "latest.pt"} <= {
        path.name for path in model_path.parent.iterdir()
    }
    assert (tmp_path / "logs" / "vec_monitor.monitor.csv").read_text().count("\n") == 2 + 2 * (128 // 20)


def test_a_folder_of_its_own_for_each_run(tmp_path, folder, monkeypatch):
    monkeypatch.setattr("ml_pipeline.runs.folder.runs_folder", lambda: tmp_path / "checkpoints")
    trainer = TrainerAgent({**SMALL, "vectorized": {**HERE, "enable_monitoring": False}})
    with closing(trainer.create_vectorized_env(SYMBOLS, folder, 2)) as envs:
        trainer.set_env(envs)
        first, second = trainer.train(), trainer.train()
    assert first.parent != second.parent
    assert torch.equal(weights(first.parent), weights(second.parent))
    assert not (tmp_path / "logs").exists()


def test_the_weights_are_those_of_the_train_command(tmp_path, model):
    start = parse_train_start(
        ["--config", str(model.parent / "config.yaml"), "--checkpoint-dir", str(tmp_path / "other")]
    )
    assert start.config.trading.per_symbol
    Run(start.config, make_task(start.config)).train()
    assert torch.equal(weights(tmp_path / "other"), weights(model.parent))


@pytest.mark.parametrize(
    "sections", [{"vectorized": {"env_type": "SubprocVecEnv"}}, {"vectorized": {"enable_monitoring": False}}]
)
def test_neither_workers_nor_monitoring_change_the_weights(tmp_path, folder, model, sections):
    _, other = trained(tmp_path, folder, "other", **sections)
    assert torch.equal(weights(model.parent), weights(other.parent))


def test_batched_ones_train_and_write_their_episodes(tmp_path, folder):
    trainer, model = trained(tmp_path, folder, vectorized={"env_type": "batched"})
    assert model.is_file()
    assert len((tmp_path / "logs" / "vec_monitor.monitor.csv").read_text().splitlines()) > 2
    figures = trainer.trainer_core.get_training_performance_info()
    assert (figures["environment_type"], figures["expected_speedup"]) == ("batched", None)


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path, folder, model):
    half = {**SMALL["training"], "total_timesteps": 128}
    _, first = trained(tmp_path, folder, "parts", training=half)
    trainer = TrainerAgent({**SMALL, "vectorized": HERE})
    with closing(trainer.create_vectorized_env(SYMBOLS, folder, 2)) as envs:
        trainer.set_env(envs)
        best = trainer.train(resume=first.parent)
    assert best == first
    assert trainer.trainer_core.run_result.global_step == 256
    assert torch.equal(weights(first.parent), weights(model.parent))


def test_it_goes_on_only_in_environments_of_the_same_number_and_symbols(folder, model):
    trainer = TrainerAgent({**SMALL, "vectorized": HERE})
    for symbols, n_envs, told in (
        (SYMBOLS, 4, "n-envs 2, which cannot change on resume"),
        (["EURUSD"], 2, "symbols EURUSD GBPUSD"),
    ):
        with closing(trainer.create_vectorized_env(symbols, folder, n_envs)) as envs:
            trainer.set_env(envs)
            with pytest.raises(UserError, match=told):
                trainer.train(resume=model.parent)


def test_changed_data_are_refused_on_resume(tmp_path, folder):
    own = write_folder(tmp_path / "data", *SYMBOLS, n_bars=200)
    _, model = trained(tmp_path, own)
    write_folder(own, *reversed(SYMBOLS), n_bars=200)
    trainer = TrainerAgent({**SMALL, "vectorized": HERE})
    with closing(trainer.create_vectorized_env(SYMBOLS, own, 2)) as envs:
        trainer.set_env(envs)
        with pytest.raises(UserError, match="market data differ from those that the run was trained on"):
            trainer.train(resume=model.parent)


def test_without_environments_it_makes_those_of_the_section(tmp_path, folder, model):
    environment = {**SMALL["environment"], "symbols": SYMBOLS, "data_dir": str(folder)}
    vectorized = {**HERE, "num_envs": 2}
    trainer = TrainerAgent(config_of(tmp_path, environment=environment, vectorized=vectorized))
    own = trainer.train()
    assert torch.equal(weights(own.parent), weights(model.parent))
    figures = trainer.trainer_core.get_training_performance_info()  # measured before they were closed
    assert figures["num_envs"] == 2


@pytest.mark.parametrize(
    ("environment", "what"), [({}, "data and symbols"), ({"data": "x"}, "symbols"), ({"symbols": ["A"]}, "data")]
)
def test_what_is_missing_is_named(environment, what):
    with pytest.raises(
        UserError, match=rf"no environments to train in: call set_env\(.*set {what} in the section environment"
    ):
        TrainerAgent({"environment": environment}).train()
    with pytest.raises(UserError, match="no policy to evaluate yet; call train"):
        TrainerAgent({}).evaluate()


def test_a_settings_object_is_a_whole_run(tmp_path):
    run = RunConfig(
        env_id="CartPole-v1", iterations=1, checkpoint_dir=tmp_path / "run", vec_env="serial", eval_episodes=1
    )
    trainer = TrainerAgent(TrainConfig(run=run, ppo=PPOConfig(n_steps=32, minibatch_size=32)))
    assert trainer.train() == tmp_path / "run" / "best.pt"
    assert trainer.evaluate()["mean_return"] == trainer.trainer_core.run_result.best_score
    assert trainer.trainer_core.get_training_performance_info()["environment_type"] == "in-process"


def test_a_vector_environment_of_a_gymnasium_id(tmp_path):
    training = {
        "total_timesteps": 64,
        "n_steps": 32,
        "batch_size": 32,
        "checkpoint_dir": str(tmp_path / "run"),
        "eval_episodes": 1,
    }
    trainer = TrainerAgent({"environment": "CartPole-v1", "training": training})
    with closing(SerialEnv([lambda: gymnasium.make("CartPole-v1")] * 2)) as envs:
        trainer.set_env(envs)
        assert trainer.train().is_file()
        assert trainer.trainer_core.run_result.global_step == 64


def test_what_is_no_environment_of_the_task_is_refused(folder):
    trainer = TrainerAgent(SMALL)
    with pytest.raises(UserError, match="set_env takes a vector environment, such as that of create_vectorized_env"):
        trainer.set_env("EURUSD")
    with (
        closing(SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])) as envs,
        pytest.raises(UserError, match="SyncVectorEnv has no id to make another one for the evaluation"),
    ):
        trainer.set_env(envs)


def test_an_environment_without_an_id_is_refused_with_what_gives_it_one(tmp_path):
    trainer = TrainerAgent(config_of(tmp_path))
    advice = r'call gymnasium\.register\("CountingEnv-v0", entry_point=CountingEnv\) and pass gymnasium\.make\('
    with closing(CountingEnv()) as env, pytest.raises(UserError, match=f"^CountingEnv has no id to make .*; {advice}"):
        trainer.set_env(env)
    unregistered = gymnasium.make(EnvSpec("Unregistered-v0", entry_point=CountingEnv))
    with closing(unregistered) as env, pytest.raises(UserError, match=f"^CountingEnv has no id .*; {advice}"):
        trainer.set_env(env)
    with pytest.raises(UserError, match=advice):
        trainer.set_env(CountingEnv)  # the class
    for nameless in (lambda: CountingEnv(length=3), partial(CountingEnv, length=3)):
        with pytest.raises(UserError) as error:
            trainer.set_env(nameless)
        assert str(error.value) == (
            f"set_env takes a vector environment, such as that of create_vectorized_env, but got {nameless!r}; call "
            'gymnasium.register("Mine-v0", entry_point=that function) and pass gymnasium.make("Mine-v0").'
        )
    with closing(TradingEnv()) as env, pytest.raises(UserError, match=r"with create_vectorized_env .* hold out bars"):
        trainer.set_env(env)


@pytest.fixture
def single(tmp_path):
    settings = {"total_timesteps": 64, "n_steps": 32, "batch_size": 32, "checkpoint_dir": str(tmp_path / "run")}
    return TrainerAgent({"training": {**settings, "eval_episodes": 1}})


class OwnEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(action), False, True, {}


def test_an_environment_of_an_own_class_with_an_id_is_trained_in(single, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Own-v0", EnvSpec("Own-v0", entry_point=OwnEnv))
    with closing(gymnasium.make("Own-v0")) as env:
        single.set_env(env)
        assert single.train().is_file()


def test_a_single_environment_is_evaluated_over_episodes_as_long_as_its_own(single):
    with closing(gymnasium.make("Pendulum-v1", max_episode_steps=20)) as env:
        single.set_env(env)
        single.train()
    evaluation = json.loads((single.trainer_core.run_result.folder / "evaluation.json").read_text())
    assert evaluation["lengths"] == [20]


def test_environments_with_other_spaces_than_those_of_their_evaluation_are_refused(single):
    with closing(gymnasium.wrappers.TimeAwareObservation(gymnasium.make("CartPole-v1"))) as env:
        single.set_env(env)
        with pytest.raises(UserError, match=r"have the observation space Box(?s:.*) but CartPole-v1, on which the"):
            single.train()


@pytest.mark.parametrize(
    ("name", "trained", "evaluated"),
    [
        ("action_space", spaces.Discrete(3), spaces.Discrete(2)),
        ("action_space", spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([3, 2])),
        (
            "observation_space",
            spaces.Dict({"x": spaces.Box(-1, 1, (2,))}),
            spaces.Dict({"y": spaces.Box(-1, 1, (2,))}),
        ),
        (
            "observation_space",
            spaces.Tuple([spaces.Dict({"x": spaces.Discrete(2)})]),
            spaces.Tuple([spaces.Dict({"x": spaces.Discrete(3)})]),
        ),
        ("observation_space", spaces.Box(-1, 1, (2,)), spaces.Box(-5, 5, (2,))),
    ],
)
def test_all_of_the_spaces_but_their_bounds_must_be_those_of_the_evaluation(name, trained, evaluated):
    class WithSpace(OwnEnv):
        def __init__(self, space):
            setattr(self, name, space)

    task = SimpleNamespace(env_id="Own-v0", evaluation_env=lambda: WithSpace(evaluated))
    refused = nullcontext() if isinstance(trained, spaces.Box) else pytest.raises(UserError, match="but Own-v0, on whi")
    with closing(SyncVectorEnv([lambda: WithSpace(trained)])) as envs, refused:
        _check_spaces(task, envs)


@pytest.mark.parametrize("env_id", ["TradingEnv-v1", "FastTradingEnv-v1"])
def test_an_environment_of_trading_by_its_id_says_that_nothing_is_held_out(env_id, single, caplog):
    with closing(gymnasium.make(f"ml_pipeline.trading.gym_ids:{env_id}", episode_length=20)) as env:
        single.set_env(env)
        single.train()
    sentence = f"{env_id} is evaluated on the bars that it trains on, so its results say nothing about other bars"
    assert sentence in caplog.text
    assert sentence in (single.trainer_core.run_result.folder / "report.html").read_text()


def test_the_evaluation_is_that_of_the_report(tmp_path, folder):
    trainer, model = trained(tmp_path, folder)
    figures = trainer.evaluate()
    assert figures["summary"] == trainer.trainer_core.run_result.report
    assert set(figures["symbols"]) == set(SYMBOLS)
    np.testing.assert_equal(trainer.evaluate(model)["agent"], figures["agent"])
    assert trainer.evaluate(model.parent, split="validation")["table"] != figures["table"]
    state = load_checkpoint(model)["task"]["each_symbol"]
    assert set(state["EURUSD"]) >= {"fingerprint", "scaler", "features"}


def test_performance_is_measured(tmp_path, folder):
    trainer = TrainerAgent(config_of(tmp_path))
    nothing = trainer.trainer_core.get_training_performance_info()
    assert nothing.pop("memory")["process_mb"] > 10
    assert set(nothing.values()) == {None}
    with closing(trainer.create_vectorized_env(SYMBOLS, folder, 2)) as envs:
        trainer.set_env(envs)
        before = trainer.trainer_core.get_training_performance_info()
        assert before["steps_per_second"] is None
        assert before["measured_speedup"] == before["env_steps_per_second"] / before["single_env_steps_per_second"]
        trainer.train()
        after = trainer.trainer_core.get_training_performance_info()
    assert after["steps_per_second"] > 0
    assert (after["environment_type"], after["num_envs"], after["num_workers"]) == ("in-process", 2, 0)
    assert after["expected_speedup"] == 1.0


def test_measuring_leaves_environments_and_files_as_they_were(tmp_path, folder):
    trainer = TrainerAgent({**SMALL, "vectorized": HERE})
    with closing(trainer.create_vectorized_env(SYMBOLS, folder, 2)) as envs:
        trainer.set_env(envs)
        envs.reset(seed=3)
        envs.step(np.array([0, 2]))
        states, lines = envs.get_states(), (tmp_path / "logs" / "vec_monitor.monitor.csv").read_text()
        trainer.trainer_core.get_training_performance_info()
        np.testing.assert_equal(envs.get_states(), states)
        assert (tmp_path / "logs" / "vec_monitor.monitor.csv").read_text() == lines


def test_the_log_has_what_was_said_and_a_line_each_interval(tmp_path, folder):
    training = {**SMALL["training"], "log_interval": 128}
    _, model = trained(tmp_path, folder, training=training, logging={"log_file": "logs/training.log"})
    lines = (tmp_path / "logs" / "training.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (INFO|WARNING) ", line) for line in lines)
    assert sum(" of 256, " in line for line in lines) == 2
    assert any(
        f"Training begins in {model.parent}: 2 environments in this process, 256 steps." in line for line in lines
    )
    assert any("Evaluation after iteration 4" in line for line in lines)


def test_a_logger_of_the_callers_is_told_instead(tmp_path, folder, caplog):
    config = config_of(tmp_path, logging={"log_file": "logs/training.log"})
    with caplog.at_level(logging.INFO, "mine"):
        trainer = TrainerAgent(config, logger=logging.getLogger("mine"))
        with closing(trainer.create_vectorized_env(SYMBOLS, folder, 2)) as envs:
            trainer.set_env(envs)
            trainer.train()
    assert "Training begins in" in caplog.text
    assert not (tmp_path / "logs" / "training.log").exists()


def test_warnings_about_data_are_logged_and_the_rest_on_demand(tmp_path, caplog):
    folder = write_folder(tmp_path / "odd", "BTC", n_bars=200, volume=False)
    training = {**SMALL["training"], "log_interval": 128}
    with caplog.at_level(logging.INFO, "ml_pipeline.service"):
        trainer = TrainerAgent(config_of(tmp_path, training=training))
        with closing(trainer.create_vectorized_env(["BTC"], folder)) as envs:
            trainer.set_env(envs)
            trainer.train()
    assert {record.name for record in caplog.records} == {"ml_pipeline.service"}
    (warning,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert "no column for volume; taken as 0" in warning
    told = "\n".join(record.message for record in caplog.records if record.levelno == logging.INFO)
    assert f"n_envs is {envs.num_envs}: " in told
    assert "Training begins in" in told
    assert "Step 256 of 256, " in told


def test_warnings_about_data_of_a_settings_object_are_logged(tmp_path, caplog):
    data = write_folder(tmp_path / "odd", "BTC", n_bars=200, volume=False)
    config = agent_config({**config_of(tmp_path), "environment": {"data": str(data), "per_symbol": False}}).train
    TrainerAgent(replace(config, run=replace(config.run, n_envs=1, vec_env="serial"))).train()
    assert [record.message for record in caplog.records if "no column for volume" in record.message]


@pytest.mark.slow
@pytest.mark.parametrize("log_file", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_script_that_sets_up_no_logging_sees_warnings_alone(tmp_path, log_file):
    folder = write_folder(tmp_path / "odd", "BTC", n_bars=200, volume=False)
    config = {**config_of(tmp_path), "logging": {"log_file": log_file}}
    code = (
        "from ml_pipeline.service import TrainerAgent\n"
        f"trainer = TrainerAgent({config!r})\n"
        f"trainer.set_env(trainer.create_vectorized_env(['BTC'], {str(folder)!r}, 1))\n"
        "trainer.train()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "no column for volume" in line


def test_a_logger_of_the_callers_keeps_its_files_open(tmp_path, folder):
    handler = logging.FileHandler(tmp_path / "mine.log", mode="w")
    logger = logging.Logger("mine", logging.INFO)
    logger.addHandler(handler)
    trainer = TrainerAgent(config_of(tmp_path), logger=logger)
    with closing(trainer.create_vectorized_env(SYMBOLS, folder, 2)) as envs, closing(handler):
        trainer.set_env(envs)
        trainer.train()
        logger.info("It goes on.")
    lines = (tmp_path / "mine.log").read_text().splitlines()
    assert "Training is over." in lines
    assert lines[-1] == "It goes on."


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "logs").write_text("")
    with pytest.raises(UserError, match=r"The log logs/training.log cannot be written"):
        TrainerAgent({"logging": {"log_file": True}})


def test_tensorboard_reads_the_event_files(tmp_path, folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    _, model = trained(tmp_path, folder, logging={"tensorboard": True})
    (run,) = (tmp_path / "logs" / "tensorboard").iterdir()
    events = accumulator.EventAccumulator(str(run))
    events.Reload()
    lines = [json.loads(line) for line in (model.parent / "metrics.jsonl").read_text().splitlines()]
    returns = [(line["time/global_step"], line["rollout/episode_return"]) for line in lines]
    read = [(each.step, pytest.approx(each.value)) for each in events.Scalars("rollout/episode_return")]
    assert read == [row for row in returns if row[1] is not None] != []


def test_the_recommended_number_is_a_round_of_the_symbols(tmp_path, folder):
    trainer = TrainerAgent(SMALL)
    assert trainer.get_recommended_n_envs(SYMBOLS) in {2, 4, 6, 8}
    with closing(build_vec_env(SYMBOLS, folder, trainer.config, 2, monitor_path=None)) as envs:
        trainer.set_env(envs)
        assert trainer.get_recommended_n_envs(SYMBOLS) in {2, 4, 6, 8}
        assert trainer.get_recommended_n_envs(["A", "B", "C"]) in {3, 6}  # of others, whose files are not known


DQN = {
    "algorithm": "DQN",
    "training": {"total_timesteps": 256, "n_steps": 32, "hidden_sizes": [8]},
    "algorithm_kwargs": {"learning_starts": 40, "buffer_size": 500},
}


@pytest.mark.slow
def test_another_algorithm_trains_in_the_environments_that_it_is_given(tmp_path, folder):
    pytest.importorskip("stable_baselines3")
    trainer, model = trained(tmp_path, folder, **DQN)
    assert (tmp_path / "logs" / "vec_monitor.monitor.csv").read_text().count("\n") == 2 + 2 * (128 // 20)
    assert set(trainer.evaluate()["symbols"]) == set(SYMBOLS)
    start = parse_train_start(
        ["--config", str(model.parent / "config.yaml"), "--checkpoint-dir", str(tmp_path / "other")]
    )
    Run(start.config, make_task(start.config)).train()
    assert learner(tmp_path / "other") == learner(model.parent)


@pytest.mark.slow
def test_another_algorithm_keeps_what_views_of_shared_memory_show(tmp_path, folder, dqn_model):
    trainer = TrainerAgent(config_of(tmp_path, "views", **DQN))
    with closing(trainer.create_vectorized_env(SYMBOLS, folder, 2, use_shared_memory=True)) as envs:
        trainer.set_env(envs)
        assert learner(trainer.train().parent) == learner(dqn_model.parent)


def test_another_algorithm_refuses_environments_that_it_cannot_train_in(tmp_path):
    pytest.importorskip("stable_baselines3")
    training = {"total_timesteps": 64, "checkpoint_dir": str(tmp_path / "run")}
    trainer = TrainerAgent({"algorithm": "DQN", "environment": "CartPole-v1", "training": training})
    make_env = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
    for envs, told in (
        (SerialEnv([make_env]), "DQN trains in a ParallelEnv, but got a SerialEnv"),
        (ParallelEnv([make_env], num_workers=0, autoreset_mode="NextStep"), "DQN needs environments with autoreset"),
    ):
        with closing(envs):
            trainer.set_env(envs)
            with pytest.raises(UserError, match=told):
                trainer.train()
    assert not (tmp_path / "run").exists()


def test_workers_stay_dynamic_in_given_environments(tmp_path):
    training = {"total_timesteps": 64, "n_steps": 32, "batch_size": 32, "checkpoint_dir": str(tmp_path / "run")}
    trainer = TrainerAgent({"environment": "CartPole-v1", "n_workers": "dynamic", "training": training})
    with closing(ParallelEnv([lambda: gymnasium.make("CartPole-v1")] * 2, num_workers=0)) as envs:
        trainer.set_env(envs)
        folder = trainer.train().parent
    assert yaml.safe_load((folder / "config.yaml").read_text())["n_workers"] == "dynamic"


def test_environments_that_are_closed_are_refused_at_once(tmp_path, folder):
    trainer = TrainerAgent(config_of(tmp_path))
    envs = trainer.create_vectorized_env(SYMBOLS, folder, 2)
    envs.close()
    with pytest.raises(UserError, match="set_env got closed environments; make new ones"):
        trainer.set_env(envs)


def test_a_single_environment_is_trained_in_as_it_is(tmp_path):
    settings = {"total_timesteps": 64, "n_steps": 32, "batch_size": 32, "checkpoint_dir": str(tmp_path / "run")}
    trainer = TrainerAgent({"training": settings})
    env = gymnasium.make("CartPole-v1", max_episode_steps=50)
    trainer.set_env(env)
    assert trainer.train().name == "best.pt"
    assert trainer.config.train.run.env_id == "CartPole-v1"
    env.reset(seed=0)  # it is not closed
    env.close()
