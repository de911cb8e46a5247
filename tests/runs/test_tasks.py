"""Which environments a run trains in, and that batched ones can be stopped and resumed."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.policies import threads_and_device
from ml_pipeline.models.rl.ranks import rows_of
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.tasks import make_envs, make_task
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig

BATCHED = ["--vec-env", "batched", "--n-envs", "64", "--n-steps", "16", "--minibatch-size", "512", "--n-epochs", "1"]
SMALL = ["--hidden-sizes", "8", "--iterations", "5", "--window", "2", "--episode-length", "11"]
CARTPOLE = GymTask("CartPole-v1", eval_episodes=1, seed=0)


def test_a_batched_run_stopped_in_the_middle_of_a_rollout_ends_as_if_it_had_not_been(tmp_path):
    config = parse_train_start([*BATCHED, *SMALL]).config
    task = make_task(config)

    def trainer():
        envs = task.batched_train_env(config.run.n_envs)
        return PPOTrainer(envs, config.ppo, total_timesteps=config.timesteps, seed=3), envs

    whole, _ = trainer()
    whole.train()
    stopped, envs = trainer()
    step = envs.step
    n_steps = []

    def step_and_stop(actions):
        n_steps.append(1)
        if len(n_steps) == 39:  # in the third rollout
            stopped.request_stop()
        return step(actions)

    envs.step = step_and_stop
    stopped.train()
    assert not stopped.finished
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    resumed, _ = trainer()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    resumed.train()
    assert resumed.finished
    assert resumed.global_step == whole.global_step
    expected, got = (each.policy.network.state_dict() for each in (whole, resumed))
    for name in expected:
        assert torch.equal(got[name], expected[name]), name


@pytest.mark.slow
def test_a_batched_run_is_judged_on_one_account(tmp_path, capsys):
    start = [*BATCHED, *SMALL, "--n-envs", "8", "--minibatch-size", "128", "--iterations", "1"]
    assert train_ppo.main([*start, "--checkpoint-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "8 parallel environments for training\n   Stepped in the trainer's process, without workers" in out
    assert "buy and hold" in out
    assert (tmp_path / "ledger.csv").exists()


def test_what_has_no_workers_takes_none():
    with pytest.raises(UserError, match='vec_env "serial" has no workers, but n_workers is 2'):
        RunConfig(n_envs=4, vec_env="serial", n_workers=2)
    with pytest.raises(
        UserError, match='vec_env must be one of parallel, serial, batched, SubprocVecEnv, DummyVecEnv, but got "batch"'
    ):
        RunConfig(vec_env="batch")


def test_a_vector_entry_point_is_trained_in_stopped_resumed_and_rescaled(tmp_path, capsys):
    start = ["--env-id", "CartPole-v1", "--vec-env", "batched", "--n-envs", "4", "--hidden-sizes", "8"]
    start += ["--n-steps", "64", "--minibatch-size", "64", "--eval-episodes", "1"]
    more = ["--n-envs-schedule", '{"256": 6}', "--checkpoint-dir", str(tmp_path)]
    assert train_ppo.main([*start, "--iterations", "2", *more]) == 0
    assert (
        "All environments start new episodes: CartPoleVectorEnv has no get_states(), so its" in capsys.readouterr().out
    )
    assert train_ppo.main(["--resume", str(tmp_path), "--iterations", "3"]) == 0
    assert "Evaluation on a single CartPole-v1" in capsys.readouterr().out


class OfOneNumber(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}


def broken(num_envs, **options):
    raise ValueError("no license")


@pytest.mark.parametrize(
    ("vector_entry_point", "settings", "sentence"),
    [
        (None, {}, "needs an environment registered with a vector_entry_point, but Mine-v0 has none"),
        (broken, {}, "Mine-v0 raises ValueError in its vector_entry_point: no license"),
        (
            CartPoleVectorEnv,
            {},
            r"observation_space of Mine-v0 must be the same .* is Box\(-1.0, 1.0, \(1,\), float32\)",
        ),
        (CartPoleVectorEnv, {"frame_stack": 2}, "are applied to single environments; leave them out"),
    ],
)
def test_a_vector_entry_point_that_does_not_fit_is_named(monkeypatch, vector_entry_point, settings, sentence):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("Mine-v0", entry_point=OfOneNumber, vector_entry_point=vector_entry_point)
    task = GymTask(GymEnv(env_id="Mine-v0", **settings), eval_episodes=1, seed=0)
    with pytest.raises(UserError, match=sentence):
        task.batched_train_env(2)
    with pytest.raises(UserError, match=r"CartPole-v1, which cannot be divided, but n_processes is 2; use .parallel."):
        RunConfig(env_id="CartPole-v1", vec_env="batched", n_envs=2, n_processes=2)


def test_serial_environments_have_no_workers():
    config = TrainConfig(run=RunConfig(n_envs=2, vec_env="serial"), ppo=PPOConfig(minibatch_size=64))
    with closing(make_envs(config, CARTPOLE)) as envs:
        assert envs.num_workers == 0


@pytest.mark.parametrize(("device", "given"), [("auto", None), ("cpu", None), ("cuda", "cuda"), ("mps", "mps")])
def test_batched_environments_are_tensors_where_the_policy_is_on_a_gpu(monkeypatch, device, given):
    monkeypatch.setattr(threads_and_device, "choose_device", lambda name: name)  # this machine may have none

    class Recorder:
        def batched_train_env(self, n, *, device=None):
            return n, device

    config = TrainConfig(run=RunConfig(vec_env="batched", n_envs=64, device=device))
    assert make_envs(config, Recorder()) == (64, given)


def test_each_rank_has_its_rows_of_batched_environments_on_its_own_gpu(monkeypatch):
    class Recorder:
        def batched_train_env(self, n, *, device=None):
            return n, device

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = TrainConfig(run=RunConfig(vec_env="batched", n_envs=64, device="cuda"))
    made = []
    for rank in range(3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        made.append(make_envs(config, Recorder(), rows=rows_of(rank, 3, 64)))
    assert made == [(22, "cuda:0"), (21, "cuda:1"), (21, "cuda:0")]


def test_trading_as_tensors_trains_without_a_look_at_them():
    config = parse_train_start([*BATCHED, *SMALL]).config
    envs = make_task(config).batched_train_env(config.run.n_envs, device="cpu")
    trained = PPOTrainer(envs, config.ppo, seed=3)
    trained.train_episode_vectorized()
    step, looks = envs.step, []

    def step_unseen(actions):
        with pytest.MonkeyPatch.context() as patch:
            for name in ("item", "cpu", "numpy", "tolist", "nonzero", "__bool__", "__int__", "__float__"):
                patch.setattr(torch.Tensor, name, lambda *_, name=name: looks.append(name))
            return step(actions)

    envs.step = step_unseen
    assert trained.train_episode_vectorized().n_completed_episodes > 0
    assert looks == []
