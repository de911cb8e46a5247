"""The contestants of `ppo_throughput.py` by name: each turns a job into a function that trains n iterations."""

from collections.abc import Callable
from typing import Any

from throughput_envs import ENVIRONMENTS, batched, maskable
from throughput_jobs import Job
from throughput_limits import convolutions, matrix_products, steps_on_all_cores


def ours(job: Job, **settings: Any) -> Callable[[int], None]:
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
    from ml_pipeline.models.rl.core.vec_env import ParallelEnv

    envs: Any
    if job.environment == "batched":
        envs = batched(job.num_envs)
    else:
        envs = ParallelEnv([ENVIRONMENTS[job.environment]] * job.num_envs, copy=False)
    config = PPOConfig(
        n_steps=job.n_steps,
        minibatch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
        normalize_obs=job.normalizes,
        normalize_rewards=job.normalizes,
        squash_actions=job.squashes,
        **({"memory": "lstm", "memory_size": job.memory} if job.memory else {}),
        **_network_of(job),
        **settings,
    )
    trainer = PPOTrainer(envs, config)

    def train(iterations: int) -> None:
        for _ in range(iterations):
            trainer.train_episode_vectorized()

    return train


def stable_baselines3(vectorizer: str, job: Job) -> Callable[[int], None]:
    import stable_baselines3
    from gymnasium.spaces import Dict
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

    vectorizers = {"DummyVecEnv": DummyVecEnv, "SubprocVecEnv": SubprocVecEnv}
    envs = make_vec_env(ENVIRONMENTS[job.environment], job.num_envs, vec_env_cls=vectorizers[vectorizer])
    if job.normalizes:
        envs = VecNormalize(envs)
    policy = "MultiInputPolicy" if isinstance(envs.observation_space, Dict) else "MlpPolicy"
    return of_theirs(stable_baselines3.PPO, policy, envs, job)


def recurrent_ppo(job: Job) -> Callable[[int], None]:
    """It takes samples in the order of time, and pads the episodes of a minibatch to the longest."""
    import sb3_contrib
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(ENVIRONMENTS[job.environment], job.num_envs)
    layers = {"lstm_hidden_size": job.memory}
    return of_theirs(sb3_contrib.RecurrentPPO, "MlpLstmPolicy", envs, job, policy_kwargs=layers)


def maskable_ppo(job: Job) -> Callable[[int], None]:
    import sb3_contrib
    from stable_baselines3.common.env_util import make_vec_env

    return of_theirs(sb3_contrib.MaskablePPO, "MlpPolicy", make_vec_env(maskable, job.num_envs), job)


def cnn_policy(job: Job, n_threads: int) -> Callable[[int], None]:
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    envs = make_vec_env(ENVIRONMENTS[job.environment], job.num_envs)
    return of_theirs(stable_baselines3.PPO, "CnnPolicy", envs, job, n_threads=n_threads)


def of_theirs(
    algorithm: Any, policy: str, envs: Any, job: Job, *, n_threads: int = 1, **settings: Any
) -> Callable[[int], None]:
    """A training by Stable-Baselines3 or sb3-contrib; one thread is faster for their perceptrons than two."""
    import torch

    torch.set_num_threads(n_threads)
    model = algorithm(
        policy,
        envs,
        n_steps=job.n_steps,
        batch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
        device="cpu",
        **_network_of(job),
        **settings,
    )

    def train(iterations: int) -> None:
        model.learn(iterations * job.num_envs * job.n_steps, reset_num_timesteps=False)

    return train


def _network_of(job: Job) -> dict[str, Any]:
    """The same `policy_kwargs` for both of us, if the job has a network."""
    if job.network is None:
        return {}
    from throughput_networks import policy_kwargs

    return {"policy_kwargs": policy_kwargs(job.network)}


def torch_alone(job: Job) -> Callable[[int], None]:
    from plain_torch_ppo import plain_torch

    return plain_torch(
        ENVIRONMENTS[job.environment],
        num_envs=job.num_envs,
        n_steps=job.n_steps,
        minibatch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
    )


def torchrl_ppo(job: Job) -> Callable[[int], None]:
    """The loop of TorchRL's own PPO scripts: a collector, GAE, a replay buffer without replacement, ClipPPOLoss."""
    import torch
    from tensordict.nn import TensorDictModule
    from torch.distributions import Categorical
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.set_num_threads(1)
    envs = SerialEnv(job.num_envs, lambda: GymEnv(job.environment, categorical_action_encoding=True))
    layers = {"in_features": envs.observation_spec["observation"].shape[-1], "num_cells": [64, 64]}
    actor = ProbabilisticActor(
        TensorDictModule(
            MLP(out_features=envs.action_spec.space.n, activation_class=torch.nn.Tanh, **layers),
            ["observation"],
            ["logits"],
        ),
        spec=envs.full_action_spec,
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(MLP(out_features=1, activation_class=torch.nn.Tanh, **layers), in_keys=["observation"])
    n_transitions = job.num_envs * job.n_steps
    batches = iter(Collector(envs, actor, frames_per_batch=n_transitions, total_frames=-1))
    estimate_advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=0.2,
        entropy_coeff=0.01,
        critic_coeff=0.5,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(n_transitions), sampler=SamplerWithoutReplacement(), batch_size=job.minibatch_size
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-4, eps=1e-5)

    def train(iterations: int) -> None:
        for _ in range(iterations):
            batch = next(batches)
            for _ in range(job.n_epochs):
                with torch.no_grad():
                    estimate_advantages(batch)
                buffer.extend(batch.reshape(-1))
                for minibatch in buffer:
                    losses = loss(minibatch)
                    sum(value for name, value in losses.items() if name.startswith("loss_")).backward()
                    torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)

    return train


def rlox_ppo(job: Job) -> Callable[[int], None]:
    """It steps CartPole in Rust, and other environments by Gymnasium."""
    import torch
    from rlox.algorithms.ppo import PPO

    torch.set_num_threads(1)
    trainer = PPO(
        job.environment,
        n_envs=job.num_envs,
        n_steps=job.n_steps,
        batch_size=job.minibatch_size,
        n_epochs=job.n_epochs,
        learning_rate=3e-4,
        anneal_lr=False,
    )
    return lambda iterations: trainer.train(iterations * job.num_envs * job.n_steps)


def usable_threads() -> int:
    import torch

    return torch.get_num_threads()  # torch's own choice: one per core


CONTESTANTS: dict[str, Callable[[Job], Callable[[int], None]]] = {
    "ours": ours,
    "ours in bfloat16": lambda job: ours(job, bfloat16=True),
    "Stable-Baselines3 DummyVecEnv": lambda job: stable_baselines3("DummyVecEnv", job),
    "Stable-Baselines3 SubprocVecEnv": lambda job: stable_baselines3("SubprocVecEnv", job),
    "Stable-Baselines3 RecurrentPPO of sb3-contrib": recurrent_ppo,
    "Stable-Baselines3 MaskablePPO of sb3-contrib": maskable_ppo,
    "Stable-Baselines3 CnnPolicy": lambda job: cnn_policy(job, n_threads=usable_threads()),
    "Stable-Baselines3 CnnPolicy, one thread": lambda job: cnn_policy(job, n_threads=1),
    "torch": torch_alone,
    "TorchRL": torchrl_ppo,
    "rlox": rlox_ppo,
    "limit: steps on all cores": steps_on_all_cores,
    "limit: its matrix products": matrix_products,
    "limit: its convolutions": lambda job: convolutions(job, "float32"),
    "bfloat16 limit: its convolutions": lambda job: convolutions(job, "bfloat16"),
}
