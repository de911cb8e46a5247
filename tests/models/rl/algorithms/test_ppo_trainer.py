"""The trainer: the same bits however it is run, exact resumption, and learning."""

import os
import signal
import time
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.trainer import Every
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from tests.models.rl.core.workers.probes import run_script

NUM_ENVS, N_ITERATIONS = 3, 4
CONFIG = PPOConfig(n_steps=16, minibatch_size=20, n_epochs=2, hidden_sizes=(8,), learning_rate_schedule="linear")


class Drift(gymnasium.Env):
    """A seeded random walk in Box or Discrete actions, with terminations, truncations and an episode in mid-rollout."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.t = self.np_random.normal(size=2).astype(np.float32), 0
        return self.position.copy(), {}

    def step(self, action):
        self.t += 1
        self.position += self.np_random.normal(size=2).astype(np.float32) + 0.1 * np.float32(np.sum(action))
        terminated, truncated = bool(abs(self.position[0]) > 4), self.t >= 11
        return np.clip(self.position, -9, 9), -float(abs(self.position[1])), terminated, truncated, {}


class Unsaveable(Drift, gymnasium.utils.EzPickle):
    """Its pickle would begin anew, as that of simulators does."""


ACTION_SPACES = {"discrete": gymnasium.spaces.Discrete(3), "box": gymnasium.spaces.Box(-1, 1, (2,))}


def factories(kind="box", n=NUM_ENVS):
    # Made here, so that the class travels by value to workers that cannot import this file.
    env_class, action_space = Drift, ACTION_SPACES[kind]
    return [lambda: env_class(action_space)] * n


def trainer_for(envs, *, seed=3, sink=None, config=CONFIG, total_iterations=N_ITERATIONS):
    total_timesteps = total_iterations * envs.num_envs * config.n_steps
    return PPOTrainer(envs, config, total_timesteps=total_timesteps, seed=seed, sink=sink)


def weights_of(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.network.parameters()])


def trained(envs):
    with_envs = trainer_for(envs)
    try:
        with_envs.train()
    finally:
        envs.close()
    return weights_of(with_envs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_weights_are_the_same_bits_for_every_worker_count_and_start_method(kind):
    expected = trained(SerialEnv(factories(kind)))
    for num_workers, start_method in [(0, None), (1, "spawn"), (2, "fork"), (3, "forkserver")]:
        envs = ParallelEnv(factories(kind), num_workers=num_workers, start_method=start_method, copy=False)
        assert torch.equal(trained(envs), expected), (num_workers, start_method)


ON_SOME_CORES = """
    import os, pathlib, sys
    import gymnasium, numpy as np, torch
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.evaluation import evaluate
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

    class Noise(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-9, 9, (2600,))
        action_space = gymnasium.spaces.Box(-1, 1, (2,))

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t = 0
            return self.np_random.normal(size=2600).astype(np.float32), {}

        def step(self, action):
            self.t += 1
            return self.np_random.normal(size=2600).astype(np.float32), float(action[0]), False, self.t == 5, {}

    config = PPOConfig(n_steps=4, minibatch_size=24, n_epochs=1, hidden_sizes=(256,))
    torch.set_num_threads(int(os.environ["OPENBLAS_NUM_THREADS"]))

    def trained(total_timesteps, state=None):
        with PPOTrainer([Noise] * 12, config, total_timesteps=total_timesteps, seed=1) as trainer:
            if state is not None:
                trainer.load_state_dict(state)
            trainer.train(progress=False)
            found = {name: weights.clone() for name, weights in trainer.policy.network.state_dict().items()}
            score = evaluate(Noise(), trainer.policy.act, n_episodes=1, seed=7).mean_return
            return {**found, "score": torch.tensor(score)}, trainer.state_dict()

    folder = pathlib.Path(sys.argv[0]).parent
    if (half := folder / "half.pt").exists():
        found = [trained(96)[0], trained(96, torch.load(half, weights_only=False))[0]]
    else:
        torch.save(trained(48)[1], half)
        found = [trained(96)[0]]
    torch.save(found, folder / f"{torch.get_num_threads()}.pt")
"""


@pytest.mark.slow
def test_weights_are_the_same_bits_for_any_number_of_threads_and_resumed_with_another(tmp_path):
    """1 and 2 threads in NumPy and in torch; the second process also goes on from the first's half of the training."""
    for n_threads in ("1", "2"):
        done = run_script(tmp_path, ON_SOME_CORES, OMP_NUM_THREADS=n_threads, OPENBLAS_NUM_THREADS=n_threads)
        assert done.returncode == 0, done.stderr
    [expected], others = torch.load(tmp_path / "1.pt"), torch.load(tmp_path / "2.pt")
    assert len(others) == 2
    for found in others:
        for name, weights in expected.items():
            assert torch.equal(found[name], weights), name


def test_another_seed_gives_other_weights():
    first, second = (trainer_for(SerialEnv(factories()), seed=seed) for seed in (3, 4))
    first.train()
    second.train()
    assert not torch.equal(weights_of(first), weights_of(second))


class StopAfter:
    """An environment wrapper's step counter that asks a trainer to stop at its n-th vector step."""

    def __init__(self, envs, n_steps):
        self.trainer = None
        self._left = n_steps
        self._step = envs.step
        envs.step = self

    def __call__(self, actions):
        self._left -= 1
        if self._left == 0:
            self.trainer.request_stop()
        return self._step(actions)


BY_FUNCTIONS = replace(
    CONFIG, learning_rate=lambda left: 3e-3 * left**2, learning_rate_schedule="constant",
    clip_range=lambda left: 0.1 + 0.1 * left, ent_coef=lambda left: 0.01 * (1.0 - left),
)  # fmt: skip


INTERRUPTED = {
    **{
        f"{kind}-{n_steps}": (kind, n_steps, CONFIG)
        for kind in ("discrete", "box")
        for n_steps in (1, 15, 16, 17, 40, 63)
    },
    "functions": ("box", 40, BY_FUNCTIONS),  # which whoever resumes hands again, as all of the configuration
}


@pytest.mark.parametrize(("kind", "n_steps", "config"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupted_and_resumed_run_equals_the_uninterrupted_one(kind, n_steps, config, tmp_path):
    expected = trainer_for(SerialEnv(factories(kind)), config=config)
    expected.train()

    envs = SerialEnv(factories(kind))
    stop = StopAfter(envs, n_steps)
    interrupted = stop.trainer = trainer_for(envs, config=config)
    interrupted.train()
    assert not interrupted.finished
    assert interrupted.global_step == n_steps * NUM_ENVS
    torch.save(interrupted.state_dict(), tmp_path / "state.pt")

    resumed = trainer_for(SerialEnv(factories(kind)), seed=99, config=config)
    # A pickle of an environment that describes itself in no other way: torch opens it only on this word.
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
    resumed.train()
    assert resumed.finished
    assert torch.equal(weights_of(resumed), weights_of(expected))
    assert (resumed.global_step, resumed.iteration) == (expected.global_step, expected.iteration)
    assert resumed.state_dict()["collector"]["episodes"] == without_times(expected, resumed)


def without_times(expected, resumed):
    # Everything about episodes but the seconds, which no two runs share.
    theirs, ours = (each.state_dict()["collector"]["episodes"] for each in (expected, resumed))
    return {**theirs, "finished": ours["finished"]}


def test_environments_that_cannot_be_saved_begin_anew_and_the_state_says_so():
    envs = SerialEnv([lambda: Unsaveable(ACTION_SPACES["box"])] * NUM_ENVS)
    trainer = trainer_for(envs)
    trainer.train_episode_vectorized()
    state = trainer.state_dict()
    assert state["environments"] is None
    assert "environment 0" in state["environments_missing"].lower()
    resumed = trainer_for(SerialEnv(factories()))
    resumed.load_state_dict(state)
    resumed.train()
    assert resumed.iteration == N_ITERATIONS


def test_a_state_of_another_number_of_environments_is_refused():
    state = trainer_for(SerialEnv(factories(n=2))).state_dict()
    with pytest.raises(UserError, match="made with num_envs 2, but here it is 3"):
        trainer_for(SerialEnv(factories())).load_state_dict(state)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"n_steps": 17}, "made with n_steps 16, but here it is 17"),
        ({"normalize_rewards": False}, "made with normalize_rewards True, but here it is False"),
        ({"sde_sample_freq": 5}, "made with sde_sample_freq 4, but here it is 5"),
    ],
)
def test_a_state_of_other_rollouts_is_refused_and_nothing_changed(changed, sentence):
    envs = SerialEnv(factories())
    stop = StopAfter(envs, 40)
    config = replace(CONFIG, use_sde=True, sde_sample_freq=4) if "sde_sample_freq" in changed else CONFIG
    saved = stop.trainer = trainer_for(envs, seed=5, config=config)
    saved.train()
    trainer = trainer_for(SerialEnv(factories()), config=replace(config, **changed))
    before = weights_of(trainer)
    with pytest.raises(UserError, match=sentence):
        trainer.load_state_dict(saved.state_dict())
    assert torch.equal(weights_of(trainer), before)


def test_noise_by_state_is_not_compiled_and_the_start_says_so():
    assert trainer_for(SerialEnv(factories())).notices == ()
    (notice,) = trainer_for(SerialEnv(factories()), config=replace(CONFIG, use_sde=True)).notices
    assert notice.startswith("With use_sde, a policy is not compiled;")


def test_one_environment_trains_by_train_episode_and_as_a_plain_gymnasium_environment():
    config = PPOConfig(n_steps=16, minibatch_size=16, hidden_sizes=(8,))
    plain = PPOTrainer(factories()[0](), config, total_timesteps=32, seed=3)
    statistics = plain.train_episode()
    assert (statistics.n_envs, statistics.global_step, statistics.iteration) == (1, 16, 1)
    vectorized = trainer_for(SerialEnv(factories(n=1)), config=config, total_iterations=2)
    vectorized.train_episode_vectorized()
    assert torch.equal(weights_of(plain), weights_of(vectorized))
    with pytest.raises(UserError, match=r"call train_episode_vectorized\(\)"):
        trainer_for(SerialEnv(factories())).train_episode()


class Recorder:
    def __init__(self):
        self.metrics, self.episodes = [], []

    def write(self, metrics, episodes):
        self.metrics.append(metrics)
        self.episodes += episodes

    def close(self):
        pass


def test_every_iteration_is_reported_with_its_episodes_and_evaluation():
    sink, saved = Recorder(), []
    trainer = trainer_for(SerialEnv(factories()), sink=sink, total_iterations=5)
    trainer.train(
        evaluate=Every(2, lambda t: {"eval/score": float(t.iteration)}),
        save=Every(3, lambda t: saved.append((t.iteration, len(sink.metrics)))),
    )
    assert [m["time/iteration"] for m in sink.metrics] == [1, 2, 3, 4, 5]
    assert [m.get("eval/score") for m in sink.metrics] == [None, 2.0, None, 4.0, 5.0]  # and after the last
    assert saved == [(3, 3), (5, 5)]  # after the metrics of their iteration
    assert sum(m["rollout/n_completed_episodes"] for m in sink.metrics) == len(sink.episodes)
    assert sink.metrics[-1]["time/global_step"] == 5 * 16 * NUM_ENVS
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance"):
        assert np.isfinite(sink.metrics[-1][f"train/{name}"])


class Sleepy(Drift):
    def step(self, action):
        time.sleep(0.005)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
def test_it_says_where_the_time_goes(num_workers):
    env_class, action_space = Sleepy, ACTION_SPACES["box"]
    with ParallelEnv([lambda: env_class(action_space)], num_workers=num_workers) as envs:
        trainer = trainer_for(envs, config=replace(CONFIG, minibatch_size=16))
        trainer.train_episode()
        began = time.perf_counter()
        statistics = trainer.train_episode()
        took_s = time.perf_counter() - began
    spent, slept_s = statistics.time_spent, 16 * 0.005
    assert min(spent) >= 0.0
    assert sum(spent) < took_s
    # However busy the machine is: no reply comes before its environment has slept.
    assert spent.stepping_s + spent.waiting_s > slept_s
    assert (spent.waiting_s > 0.0) == (num_workers > 0)
    assert statistics.metrics()["time/waiting_s"] == spent.waiting_s


def test_it_says_how_long_evaluations_took_beside_the_iterations():
    sink = Recorder()
    trainer = trainer_for(SerialEnv(factories()), sink=sink, total_iterations=3)
    trainer.train(evaluate=Every(2, lambda _: time.sleep(0.05) or {"eval/score": 1.0}))
    evaluating_s = [line.get("time/evaluating_s") for line in sink.metrics]
    assert evaluating_s[0] is None  # where there was none
    assert min(evaluating_s[1:]) >= 0.05
    assert sink.metrics[1]["eval/score"] == 1.0


class Mortal(Drift):
    """Its worker dies in the fifth step of its first episode, whoever began with seed 4."""

    def step(self, action):
        if self.np_random_seed == 4 and self.t == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.slow
def test_restarts_of_workers_are_counted():
    env_class, action_space = Mortal, ACTION_SPACES["box"]
    with ParallelEnv([lambda: env_class(action_space)] * 2, num_workers=2, on_worker_failure="restart") as envs:
        statistics = trainer_for(envs, seed=3).train_episode_vectorized()
    assert statistics.metrics()["rollout/n_worker_restarts"] == 1


def test_the_first_update_runs_before_the_first_decay():
    trainer = trainer_for(SerialEnv(factories()))  # a linear schedule over four iterations
    rates = [trainer.train_episode_vectorized().update.learning_rate for _ in range(N_ITERATIONS)]
    assert rates == pytest.approx([3e-4, 2.25e-4, 1.5e-4, 0.75e-4])


class Recall(gymnasium.Env):
    """Which of two arms pays is in the observation; an episode is four guesses. A policy that reads gets 4, else 2."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._show(), {}

    def step(self, action):
        self.t += 1
        reward = float(action == self.arm)
        return self._show(), reward, self.t == 4, False, {}

    def _show(self):
        self.arm = int(self.np_random.integers(2))
        return np.array([2.0 * self.arm - 1.0], np.float32)


def test_it_learns_to_read_the_observation():
    envs = SerialEnv([Recall] * 4)
    config = PPOConfig(n_steps=64, minibatch_size=64, n_epochs=4, learning_rate=3e-3, hidden_sizes=(16,))
    trainer = trainer_for(envs, config=config, total_iterations=15)
    first = trainer.train_episode_vectorized().episode_return
    trainer.train()
    assert first < 3.0
    assert trainer.train_episode_vectorized().episode_return > 3.7


class Endless(gymnasium.Env):
    """Pays 1 a step, for ever; only a time limit of 3 steps ends an episode."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.ones(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.ones(1, np.float32), 1.0, False, self.t == 3, {}


def test_under_a_time_limit_the_value_of_a_constant_reward_goes_to_that_of_the_endless_stream():
    # 1 / (1 - 0.8) = 5; were truncation a termination, states that look alike would be worth 1.8 on average.
    config = PPOConfig(
        n_steps=8,
        minibatch_size=16,
        gamma=0.8,
        learning_rate=1e-2,
        normalize_obs=False,
        normalize_rewards=False,
        hidden_sizes=(8,),
    )
    envs = SerialEnv([Endless] * 4)
    policy = PPOTrainer(envs, config, total_timesteps=60 * 4 * config.n_steps).train()
    with torch.no_grad():
        value = policy.network.critic(torch.ones(1, 1)).item()
    assert value == pytest.approx(5.0, abs=0.02)


def test_normalization_is_frozen_during_an_update():
    trainer = trainer_for(SerialEnv(factories()))
    for iteration in (1, 2):
        trainer.train_episode_vectorized()
        # Each observation once: those of the resets at first, then one of every step.
        assert trainer.policy.observations.normalizer.moments.count == NUM_ENVS * (1 + iteration * CONFIG.n_steps)


def test_a_trainer_shows_what_it_trains_and_how_far_it_is():
    envs = SerialEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    trainer = PPOTrainer(envs, PPOConfig(n_steps=16, minibatch_size=32), total_timesteps=1000)
    policy = "Policy(Box(4,) -> Discrete(2), hidden sizes [64, 64], tanh)"
    assert repr(trainer) == f"PPOTrainer(SerialEnv(num_envs=2), {policy}, step 0 of 1,024)"
    trainer.train_episode_vectorized()
    assert repr(trainer).endswith(", step 32 of 1,024)")
