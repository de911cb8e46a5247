"""`SB3Trainer` trains what Stable-Baselines3 trains by itself, and goes on where it was stopped."""

import hashlib
import random

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

import stable_baselines3
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.algorithms.trainer import Every, Trainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.transitions import TrainingFailed
from ml_pipeline.runs.sb3.trainer import SB3Trainer
from ml_pipeline.runs.train_config import train_config

DQN = {"algorithm": "DQN", "algorithm_kwargs": {"learning_starts": 50, "target_update_interval": 100}}
A2C = {"algorithm": "A2C"}
SAC = {"algorithm": "SAC", "env_id": "Pendulum-v1", "algorithm_kwargs": {"learning_starts": 360, "buffer_size": 500}}
TD3 = {**SAC, "algorithm": "TD3", "algorithm_kwargs": {**SAC["algorithm_kwargs"], "action_noise": 0.1}}
NORMALIZED = {**DQN, "normalize_obs": True, "normalize_rewards": True}


def hash_of(policy_or_model):
    network = getattr(policy_or_model, "model", policy_or_model).policy
    digest = hashlib.sha256()
    for name, weight in network.state_dict().items():
        digest.update(name.encode() + weight.numpy().tobytes())
    return digest.hexdigest()


def configured(settings):
    usual = {"env_id": "CartPole-v1", "n_envs": 2, "total_timesteps": 400, "n_steps": 50, "seed": 3, "device": "cpu"}
    return train_config({**usual, **settings})


@pytest.fixture
def make():
    made = []

    def make_trainer(settings, *, num_workers=0, sink=None):
        config = configured(settings)
        env_fn = lambda: gymnasium.make(config.run.env_id)  # noqa: E731
        made.append(ParallelEnv([env_fn] * config.run.n_envs, num_workers=num_workers))
        return SB3Trainer(made[-1], config.run, config.ppo, sink=sink)

    yield make_trainer
    for envs in made:
        envs.close()


class Kept:
    """A sink that keeps what it is told."""

    def __init__(self):
        self.metrics = []
        self.episodes = []

    def write(self, metrics, episodes):
        self.metrics.append(dict(metrics))
        self.episodes += episodes

    def close(self):
        pass


def by_itself(settings, **arguments):
    """Stable-Baselines3's own training, with its own vectorizer."""
    config = configured(settings)
    run, ppo = config.run, config.ppo
    envs = DummyVecEnv([lambda: gymnasium.make(run.env_id)] * run.n_envs)
    if ppo.normalize_obs:
        envs = VecNormalize(envs)
    kwargs = {name: value for name, value in run.algorithm_kwargs.items() if name != "action_noise"}
    algorithm = getattr(stable_baselines3, run.algorithm)
    model = algorithm("MlpPolicy", envs, seed=run.seed, device="cpu", **kwargs, **arguments)
    model.set_logger(Logger(folder=None, output_formats=[]))  # otherwise it makes a folder
    return model.learn(run.total_timesteps)


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        (DQN, {}),
        (A2C, {}),
        (SAC, {}),
        (TD3, {"action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.1))}),
        (NORMALIZED, {}),
        ({**DQN, "learning_rate": 1e-3, "gamma": 0.9}, {"learning_rate": 1e-3, "gamma": 0.9}),
        ({**DQN, "hidden_sizes": (8, 8), "activation": "tanh"}, "small"),
        ({**DQN, "learning_rate_schedule": "linear"}, {"learning_rate": lambda left: 1e-4 * left}),
    ],
    ids=["DQN", "A2C", "SAC", "TD3", "normalized", "learning rate", "network", "schedule"],
)
def test_it_trains_what_stable_baselines3_trains_by_itself(make, settings, arguments):
    if arguments == "small":
        arguments = {"policy_kwargs": {"net_arch": [8, 8], "activation_fn": torch.nn.Tanh}}
    trained = make(settings).train(progress=False)
    assert hash_of(trained) == hash_of(by_itself(settings, **arguments))


@pytest.mark.parametrize("settings", [DQN, A2C], ids=["DQN", "A2C"])
def test_the_number_of_workers_changes_nothing(make, settings):
    hashes = {hash_of(make(settings, num_workers=n).train(progress=False)) for n in (0, 1, 2)}
    assert len(hashes) == 1
    assert hashes != {hash_of(make({**settings, "seed": 4}).train(progress=False))}


def test_it_is_a_trainer(make):
    assert isinstance(make(DQN), Trainer)


@pytest.mark.parametrize("settings", [DQN, A2C, SAC, TD3, NORMALIZED], ids=["DQN", "A2C", "SAC", "TD3", "normalized"])
def test_a_stopped_training_goes_on_bit_for_bit(make, settings, tmp_path):
    whole, sink = make(settings), Kept()
    stopped = make(settings, sink=sink)
    stopped.train(after_iteration=lambda trainer, statistics: trainer.request_stop(), progress=False)
    assert not stopped.finished
    path = tmp_path / "state.pt"
    torch.save(stopped.state_dict(), path)
    again = make(settings, num_workers=1, sink=sink)
    again.load_state_dict(torch.load(path, weights_only=True))
    assert again.notices == ()
    expected = Kept()
    whole._sink = expected
    assert hash_of(again.train(progress=False)) == hash_of(whole.train(progress=False))
    assert [each["time/global_step"] for each in sink.metrics] == [
        each["time/global_step"] for each in expected.metrics
    ]
    assert [each[:4] for each in sink.episodes] == [each[:4] for each in expected.episodes]


def test_training_continues_in_the_same_object(make):
    trainer = make(DQN)
    while not trainer.finished:
        trainer.train(after_iteration=lambda trainer, statistics: trainer.request_stop(), progress=False)
    assert hash_of(trainer.policy) == hash_of(make(DQN).train(progress=False))


def test_what_happens_between_iterations_changes_no_bits(make):
    def disturb(trainer, statistics):
        random.seed(7)
        np.random.rand(5)
        torch.rand(5)

    assert hash_of(make(DQN).train(after_iteration=disturb, progress=False)) == hash_of(make(DQN).train(progress=False))


def test_the_global_generators_are_left_as_they_were(make):
    np.random.seed(1)
    torch.manual_seed(1)
    expected = np.random.rand(), torch.rand(1).item()
    np.random.seed(1)
    torch.manual_seed(1)
    make(DQN).train(progress=False)
    assert (np.random.rand(), torch.rand(1).item()) == expected


def test_a_stop_within_a_long_rollout_gives_it_up(make):
    settings = {**A2C, "algorithm_kwargs": {"n_steps": 100}, "n_steps": 100}
    trainer = make(settings)
    before = hash_of(trainer.policy)
    step = trainer._envs.step_wait
    calls = []

    def stop_in_the_third_step():
        calls.append(1)
        if len(calls) == 3:
            trainer.request_stop()
        return step()

    trainer._envs.step_wait = stop_in_the_third_step
    trainer.train(progress=False)
    assert (len(calls), trainer.global_step, hash_of(trainer.policy)) == (3, 0, before)
    state = trainer.state_dict()
    assert state["environments"] is None
    assert "during a rollout" in state["environments_missing"]
    del trainer._envs.step_wait
    trainer.train(progress=False)
    assert trainer.finished


def test_without_its_memory_a_training_goes_on_with_an_empty_one(make):
    stopped = make(DQN)
    stopped.train(after_iteration=lambda trainer, statistics: trainer.request_stop(), progress=False)
    state = {name: part for name, part in stopped.state_dict().items() if name != "replay"}
    again = make(DQN)
    again.load_state_dict(state)
    assert "replay buffer starts empty" in again.notices[0]
    again.train(progress=False)
    assert again.finished


def test_metrics_have_the_names_of_ppo_and_those_of_the_algorithm(make):
    sink = Kept()
    make(DQN, sink=sink).train(evaluate=Every(2, lambda trainer: {"eval/score": 1.0}), progress=False)
    assert [each["time/iteration"] for each in sink.metrics] == [1, 2, 3, 4]
    assert [each["time/global_step"] for each in sink.metrics] == [104, 200, 304, 400]  # rollouts of 4 steps x 2
    last = sink.metrics[-1]
    assert {"train/loss", "train/learning_rate", "train/n_updates", "rollout/exploration_rate", "eval/score"} <= {*last}
    assert last["time/evaluating_s"] >= 0
    assert sum(each["rollout/n_completed_episodes"] for each in sink.metrics) == len(sink.episodes)
    assert sum(each.length for each in sink.episodes) <= 400
    assert all(each.episode_return == each.length for each in sink.episodes)  # CartPole gives 1 for each step


def test_a_loss_that_is_no_number_ends_training(make):
    trainer = make(DQN)

    def spoil(trainer, statistics):
        with torch.no_grad():
            next(iter(trainer.policy.model.policy.parameters())).fill_(torch.nan)

    with pytest.raises(TrainingFailed, match=r"train/loss is nan\. Lower the learning rate"):
        trainer.train(after_iteration=spoil, progress=False)


def test_one_at_a_time_trains_in_a_process(make):
    other = make(DQN)

    def train_another(trainer, statistics):
        with pytest.raises(UserError, match="train in separate processes"):
            other.train(progress=False)

    make(DQN).train(after_iteration=train_another, progress=False)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "SAC"}, r"SAC supports .* the kind Box, but .* has Discrete\(2\); use A2C, DQN, PPO"),
        ({"algorithm": "DQN", "env_id": "Pendulum-v1"}, r"DQN supports .* Discrete, but .* Box\(1,\); .* SAC, TD3"),
        ({**DQN, "algorithm_kwargs": {"optimize_memory_usage": True}}, "cannot make DQN with these settings"),
    ],
)
def test_what_does_not_fit_is_refused_at_once(make, settings, sentence):
    with pytest.raises(UserError, match=sentence):
        make(settings)
