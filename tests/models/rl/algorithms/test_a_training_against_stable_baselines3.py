"""Whole trainings beside Stable-Baselines3's `learn()`: same first weights, seeds, noise and orders of samples.

Nothing passes between the two on the way, so they agree only where seeding, drawn actions, resets, episodes that go on
from rollout to rollout, time limits, schedules and the state of Adam do. One difference is on purpose, and taken out by
`ahead`: their schedules are a rollout ahead of ours.
"""

import itertools
from dataclasses import fields, replace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import SerialEnv
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic
from ml_pipeline.models.rl.networks.distributions import choices_of
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runtime.seeding import random_generator

sb3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.logger import Logger  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402
from stable_baselines3.common.torch_layers import (  # noqa: E402
    BaseFeaturesExtractor,
    CombinedExtractor,
    NatureCNN,
)
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

N_STEPS, NUM_ENVS, N_ROLLOUTS, SEED = 64, 4, 8, 5
TIME_LIMIT = 24  # its multiples lie at the end of the third and the sixth rollout, else within one
TOTAL_STEPS = N_STEPS * NUM_ENVS * N_ROLLOUTS
CONFIG = PPOConfig(
    n_steps=N_STEPS, minibatch_size=48, n_epochs=3, gamma=0.98, gae_lambda=0.9, ent_coef=0.01, learning_rate="lin_2e-3",
    clip_range="lin_0.2", hidden_sizes=(16, 16), normalize_obs=False, normalize_rewards=False,
)  # fmt: skip  # the last of the six minibatches has 16 samples


@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("CartPole-v1", {}),
        ("Pendulum-v1", {}),
        ("Pendulum-v1", {"use_sde": True}),
        ("Pendulum-v1", {"use_sde": True, "sde_sample_freq": 10}),  # which does not divide a rollout
        ("LunarLander-v3", {}),
    ],
    ids=str,
)
def test_episodes_and_weights_of_a_whole_training_are_theirs(env_id, settings, monkeypatch):
    if env_id == "LunarLander-v3":
        pytest.importorskip("Box2D", reason="pip install 'gymnasium[box2d]'")
    ours, theirs = both_trained(
        lambda: gymnasium.make(env_id, max_episode_steps=TIME_LIMIT),
        replace(CONFIG, **settings),
        {"net_arch": [16, 16]},
        monkeypatch,
    )
    lengths = [length for _, length, _ in ours.ended]
    assert lengths.count(TIME_LIMIT) > 20
    assert (
        len(set(lengths)) > 1 or env_id != "CartPole-v1"
    )  # whose poles also fall; the lander is in the air until its time is over
    assert [episode[:2] for episode in ours.ended] == [episode[:2] for episode in theirs]
    assert [episode[2] for episode in ours.ended] == pytest.approx(
        [episode[2] for episode in theirs], rel=1e-3, abs=1e-4
    )


def both_trained(make_env, config, policy_kwargs, monkeypatch):
    """Our episodes and theirs, after both have learned the same weights."""
    ours = Episodes()
    envs = SerialEnv([make_env] * NUM_ENVS)
    with envs, PPOTrainer(envs, config, total_timesteps=TOTAL_STEPS, seed=SEED, sink=ours) as trainer:
        weights = weights_of(trainer.policy.network)
        first = [weight.detach().clone() for weight in weights]
        distribution = trainer.policy.distribution
        theirs, episodes = learned_by_them(
            make_env, first, config, policy_kwargs, distribution, monkeypatch=monkeypatch
        )
        trainer.train(progress=False)
    before, after, expected = map(in_one_vector, (first, weights, theirs))
    assert (expected - before).abs().max() > 1e-2
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-5)  # 3e-7 on a Zen 4; other processors round otherwise
    return ours, episodes


class Sight(gymnasium.Env):
    """A pixel to follow, in one picture, or with numbers beside it."""

    action_space = spaces.Discrete(3)

    def __init__(self, with_numbers):
        picture, numbers = spaces.Box(0, 255, (36, 36, 1), np.uint8), spaces.Box(-1, 1, (3,))
        self.observation_space = spaces.Dict(numbers=numbers, picture=picture) if with_numbers else picture

    def _seen(self):
        picture = np.zeros((36, 36, 1), np.uint8)
        picture[4 * self.place : 4 * self.place + 4] = 255
        if not isinstance(self.observation_space, spaces.Dict):
            return picture
        return {"numbers": self.np_random.uniform(-1, 1, 3).astype(np.float32), "picture": picture}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.t = int(self.np_random.integers(9)), 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        reward = float(action == self.place % 3)
        self.place = int(self.np_random.integers(9))
        return self._seen(), reward, self.t == 17, False, {}


class ThreeLayers(BaseFeaturesExtractor):
    """As written for Stable-Baselines3."""

    def __init__(self, observation_space, features_dim=12):
        super().__init__(observation_space, features_dim)
        sizes = (observation_space.shape[0], 16, 16, features_dim)
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(n, m), nn.LayerNorm(m), nn.ReLU()) for n, m in itertools.pairwise(sizes))
        )

    def forward(self, observations):
        return self.layers(observations)


EXTRACTORS = {
    "convolutions": (
        lambda: Sight(False),
        {"features_extractor_class": NatureCNN, "features_extractor_kwargs": {"features_dim": 16}},
    ),
    "two branches": (
        lambda: Sight(True),
        {
            "features_extractor_class": CombinedExtractor,
            "features_extractor_kwargs": {"cnn_output_dim": 16},
            "net_arch": [16],
            "activation_fn": nn.ReLU,
        },
    ),
    "three layers with norms": (
        lambda: gymnasium.make("CartPole-v1", max_episode_steps=TIME_LIMIT),
        {"features_extractor_class": ThreeLayers, "net_arch": {"pi": [16], "vf": [8, 8]}},
    ),
    "one extractor each": (
        lambda: gymnasium.make("CartPole-v1", max_episode_steps=TIME_LIMIT),
        {"features_extractor_class": ThreeLayers, "net_arch": [8], "share_features_extractor": False},
    ),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You have specified a mini-batch size")
@pytest.mark.parametrize("name", EXTRACTORS)
def test_weights_of_a_whole_training_under_their_extractor_are_theirs(name, monkeypatch):
    make_env, policy_kwargs = EXTRACTORS[name]
    settings = {each.name: getattr(CONFIG, each.name) for each in fields(CONFIG) if each.name != "hidden_sizes"}
    config = PPOConfig(**settings, policy_kwargs=policy_kwargs)
    ours, theirs = both_trained(make_env, config, policy_kwargs, monkeypatch)
    assert [episode[:2] for episode in ours.ended] == [episode[:2] for episode in theirs]


@pytest.mark.parametrize("ortho_init", [True, False])
def test_their_extractors_begin_orthogonal_where_theirs_do(ortho_init):
    config = PPOConfig(policy_kwargs={"features_extractor_class": ThreeLayers, "ortho_init": ortho_init})
    policy = Policy(spaces.Box(-1, 1, (20,)), spaces.Discrete(2), config)
    weight, bias = policy.user_network.module.layers[1][0].parameters()
    assert torch.allclose(weight @ weight.T, 2.0 * torch.eye(16), atol=1e-5) == ortho_init
    assert (bias == 0).all() == ortho_init


def weights_of(network):
    """In their order: deviations, extractors, actor, critic."""
    if isinstance(network, ActorCritic):
        return [*network.parameters()]
    actor, critic = network.towers
    parts = (network.distribution, network.inputs, actor, network.actor_head, critic, network.critic_head)
    return [weight for part in parts for weight in part.parameters()]


class Episodes:
    """A sink that keeps of each episode the step in which it ended, its length and its return."""

    def __init__(self):
        self.ended = []

    def write(self, metrics, episodes):
        self.ended += [(episode.global_step, episode.length, episode.episode_return) for episode in episodes]

    def close(self):
        """Nothing is open."""


def learned_by_them(make_env, weights, config, policy_kwargs, distribution, *, monkeypatch):
    """Their weights, in our order, after their `learn()` with our noise and orders, and their episodes."""
    ahead = 1 / N_ROLLOUTS
    is_dict = isinstance(make_env().observation_space, spaces.Dict)
    model = sb3.PPO(
        "MultiInputPolicy" if is_dict else "MlpPolicy",
        DummyVecEnv([lambda: Monitor(make_env())] * NUM_ENVS),
        n_steps=N_STEPS, batch_size=CONFIG.minibatch_size, n_epochs=CONFIG.n_epochs, gamma=CONFIG.gamma,
        gae_lambda=CONFIG.gae_lambda, ent_coef=CONFIG.ent_coef, learning_rate=lambda left: 2e-3 * (left + ahead),
        clip_range=lambda left: 0.2 * (left + ahead), policy_kwargs=dict(policy_kwargs), device="cpu", seed=SEED,
        use_sde=config.use_sde, sde_sample_freq=config.sde_sample_freq,
    )  # fmt: skip
    model.set_logger(Logger(None, []))  # its own would make a folder in TMPDIR
    policy, mlp = model.policy, model.policy.mlp_extractor
    log_std = [policy.log_std] if hasattr(policy, "log_std") else []
    extractors = [policy.features_extractor]
    if not policy.share_features_extractor:
        extractors = [policy.pi_features_extractor, policy.vf_features_extractor]
    parts = (*extractors, mlp.policy_net, policy.action_net, mlp.value_net, policy.value_net)
    own = [*log_std, *(weight for part in parts for weight in part.parameters())]
    with torch.no_grad():
        for theirs, ours in zip(own, weights, strict=True):
            theirs.copy_(ours)
    generator = random_generator(SEED, "actions")
    n_draws = -(-N_STEPS // config.steps_per_noise)
    rollouts = [distribution.draw_noise(generator, (n_draws, NUM_ENVS)) for _ in range(N_ROLLOUTS)]
    noise = itertools.chain.from_iterable(rollouts)

    def forward(observations, deterministic=False):
        given = policy.get_distribution(observations).distribution
        if hasattr(given, "probs"):
            actions = choices_of(given.probs.cumsum(1), torch.from_numpy(next(noise)))
            log_probs = given.log_prob(actions)
        else:
            actions = given.mean + given.stddev * torch.from_numpy(next(noise))
            log_probs = given.log_prob(actions).sum(1)
        return actions, policy.predict_values(observations), log_probs

    def sample_weights(log_std, batch_size):
        drawn = rollouts[model.num_timesteps // (N_STEPS * NUM_ENVS)][
            model.rollout_buffer.pos // config.steps_per_noise
        ]
        policy.action_dist.exploration_matrices = torch.from_numpy(drawn) * log_std.detach().exp()

    if config.use_sde:
        policy.action_dist.sample_weights = sample_weights
    else:
        policy.forward = forward
    orders = random_generator(SEED, "minibatches")

    def in_their_order(n_samples):  # one environment after another, ours one step after another
        order = orders.permutation(n_samples)
        return order % NUM_ENVS * N_STEPS + order // NUM_ENVS

    episodes = []

    class Record(BaseCallback):
        def _on_step(self):
            ended = (info["episode"] for info in self.locals["infos"] if "episode" in info)
            episodes.extend((self.num_timesteps, episode["l"], episode["r"]) for episode in ended)
            return True

    with monkeypatch.context() as patched:
        patched.setattr(np.random, "permutation", in_their_order)
        model.learn(TOTAL_STEPS, callback=Record())
    model.env.close()
    return own, episodes


def in_one_vector(weights):
    return torch.cat([weight.detach().flatten() for weight in weights])
