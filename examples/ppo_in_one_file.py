"""PPO in one file: the training of `PPOTrainer`, written out plainly with NumPy, torch and Gymnasium.

python examples/ppo_in_one_file.py

Read it from top to bottom: each section uses only the ones above it. With the same settings and seed, the weights equal
those of `PPOTrainer` up to rounding. `docs/ppo-in-detail.md` explains each choice.

Shapes: T steps in N environments make B = T * N transitions. D is the size of an observation, which is a flat Box of
float32. A is the size of an action: the number of choices of a Discrete space, or of components of a Box.
"""

from dataclasses import dataclass
from itertools import pairwise
from zlib import crc32

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn


@dataclass(frozen=True)
class Settings:
    """1. Settings, with the names and defaults of `PPOConfig`."""

    n_steps: int = 256  # T
    minibatch_size: int = 256
    n_epochs: int = 10
    learning_rate: float = 3e-4
    learning_rate_schedule: str = "constant"  # or "linear": down to 0 at the end of training
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    clip_range_vf: float | None = None  # None: values are not clipped
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    hidden_sizes: tuple[int, ...] = (64, 64)
    clip_obs: float = 10.0


def random_generator(seed, purpose):
    """2. Random numbers: one generator per purpose, so that one purpose never shifts the numbers of another.

    The purposes are "weights", "actions" and "minibatches". Environments draw their own numbers.
    """
    return np.random.Generator(np.random.PCG64([seed, crc32(purpose.encode())]))


class RunningMoments:
    """3. Running statistics: mean and variance of all samples so far, by which observations are normalized."""

    def __init__(self, size):
        self.mean, self.variance, self.count = np.zeros(size), np.ones(size), 0  # float64 (size,)

    def update(self, batch):
        """Merge a batch (n, size) exactly (Chan, Golub and LeVeque 1979)."""
        n, total = len(batch), self.count + len(batch)
        mean = batch.mean(axis=0, dtype=np.float64)  # (size,)
        squares = ((batch - mean) ** 2).sum(axis=0)  # (size,)
        difference = mean - self.mean
        squares = self.variance * self.count + squares + difference**2 * (self.count * n / total)
        self.mean, self.variance, self.count = self.mean + difference * (n / total), squares / total, total

    def normalize(self, observations, clip):
        """Observations (n, D) with mean 0 and standard deviation 1, clipped to -clip and clip; float32 (n, D)."""
        shift = self.mean.astype(np.float32)  # (D,)
        scale = (1.0 / np.sqrt(self.variance + 1e-8)).astype(np.float32)  # (D,)
        return ((observations - shift) * scale).clip(-clip, clip)


class RewardScaler:
    """4. Reward scaling: divide rewards by the standard deviation of the discounted return; their signs stay."""

    def __init__(self, num_envs, gamma):
        self.returns, self.gamma, self.moments = np.zeros(num_envs), gamma, RunningMoments(1)

    def __call__(self, rewards, done):
        """Scale the rewards of one step, (N,), to float32 (N,); done: the episodes that ended in it, bool (N,)."""
        self.returns = self.returns * self.gamma + rewards  # (N,)
        self.moments.update(self.returns[:, None])
        self.returns[done] = 0.0
        return (rewards / np.sqrt(self.moments.variance + 1e-8)).clip(-10.0, 10.0).astype(np.float32)


class Categorical:
    """5. Distributions. For a Discrete space, the actor's outputs are A logits, and actions are int64 (n,).

    The noise of a whole rollout is drawn before its first step; `sample` turns outputs and noise into actions.
    """

    def __init__(self, space):
        self.size, self.start, self.log_std = int(space.n), int(space.start), None

    def draw_noise(self, generator, n_steps, num_envs):
        return generator.random((n_steps, num_envs), dtype=np.float32)

    def sample(self, logits, noise):
        """Invert the cumulative distribution: logits (n, A) and noise (n,) in [0, 1) give actions (n,)."""
        cumulative = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1)  # (n, A), not normalized
        return (cumulative <= noise[:, None] * cumulative[:, -1:]).sum(axis=1)

    def for_env(self, actions):
        return actions + self.start

    def log_probs_and_entropies(self, logits, actions):
        log_p = torch.log_softmax(logits, dim=1)  # (n, A)
        return log_p.gather(1, actions[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(dim=1)  # each (n,)


class DiagonalGaussian:
    """For a Box, the actor's outputs are A means; the A standard deviations are learned and hold in all states.

    Actions, float32 (n, A), are stored as sampled; the environment gets them clipped to its bounds.
    """

    def __init__(self, space):
        self.space, self.size = space, int(np.prod(space.shape))
        self.log_std = nn.Parameter(torch.zeros(self.size))

    def draw_noise(self, generator, n_steps, num_envs):
        return generator.standard_normal((n_steps, num_envs, self.size), dtype=np.float32)

    def sample(self, means, noise):
        return means + np.exp(self.log_std.detach().numpy()) * noise

    def for_env(self, actions):
        return actions.reshape(-1, *self.space.shape).clip(self.space.low, self.space.high).astype(self.space.dtype)

    def log_probs_and_entropies(self, means, actions):
        """Components are independent: their log-probabilities and entropies add up; each (n,)."""
        normal = torch.distributions.Normal(means, self.log_std.exp())
        return normal.log_prob(actions).sum(dim=1), normal.entropy().sum(dim=1)


def perceptron(sizes, *, output_gain, generator):
    """6. Networks: linear layers sizes[0] -> ... -> sizes[-1], with tanh between them."""
    layers = []
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
        gain = output_gain if i == len(sizes) - 2 else 2**0.5
        nn.init.orthogonal_(layers[-2].weight, gain, generator=generator)
        nn.init.zeros_(layers[-2].bias)
    return nn.Sequential(*layers[:-1])  # no tanh after the last layer


class ActorCritic(nn.Module):
    """One perceptron for actions (the actor), and one for values (the critic)."""

    def __init__(self, envs, hidden_sizes, seed):
        super().__init__()
        is_discrete = isinstance(envs.single_action_space, gymnasium.spaces.Discrete)
        self.distribution = (Categorical if is_discrete else DiagonalGaussian)(envs.single_action_space)
        self.log_std = self.distribution.log_std
        generator = torch.Generator().manual_seed(int(random_generator(seed, "weights").integers(2**62)))
        sizes = (envs.single_observation_space.shape[0], *hidden_sizes)
        # With a small gain in the actor's last layer, actions hardly depend on observations at first.
        self.actor = perceptron((*sizes, self.distribution.size), output_gain=0.01, generator=generator)
        self.critic = perceptron((*sizes, 1), output_gain=1.0, generator=generator)


@torch.no_grad()
def outputs_of(network, observations):
    """Run the actor or the critic from NumPy to NumPy: float32 (n, D) to (n, A) or (n, 1)."""
    return network(torch.from_numpy(observations)).numpy()


class Collector:
    """7. Collecting: act for T steps in N environments, whose episodes continue from one rollout to the next.

    An environment whose episode ends is reset in the same step. The step then returns the first observation of the next
    episode, and infos["final_obs"] holds the last one of the episode that ended.
    """

    def __init__(self, make_env, num_envs, settings, seed):
        self.envs = SyncVectorEnv([make_env] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self.num_envs, self.settings = num_envs, settings
        self.moments = RunningMoments(self.envs.single_observation_space.shape[0])
        self.scale_rewards = RewardScaler(num_envs, settings.gamma)
        self.generator = random_generator(seed, "actions")
        self.returns, self.finished_returns = np.zeros(num_envs), []
        observations, _ = self.envs.reset(seed=seed)  # environment i is seeded seed + i
        self.moments.update(observations)
        self.observations = self.moments.normalize(observations, settings.clip_obs)  # (N, D)

    def collect(self, network):
        """Observations (T + 1, N, D), actions (T, N, ...), rewards, terminated and truncated (T, N), and last values.

        The last values are a dict from (step, environment) to the value of a truncated episode's last observation.
        """
        n_steps, clip, distribution = self.settings.n_steps, self.settings.clip_obs, network.distribution
        noise = distribution.draw_noise(self.generator, n_steps, self.num_envs)  # (T, N) or (T, N, A)
        steps, last_values = [], {}
        for t in range(n_steps):
            actions = distribution.sample(outputs_of(network.actor, self.observations), noise[t])  # (N,) or (N, A)
            seen = self.observations
            observations, rewards, terminated, truncated, infos = self.envs.step(distribution.for_env(actions))
            self.moments.update(observations)
            self.observations = self.moments.normalize(observations, clip)
            done = terminated | truncated
            for i in np.flatnonzero(truncated & ~terminated):
                final = self.moments.normalize(infos["final_obs"][i][None], clip)  # (1, D)
                last_values[t, i] = outputs_of(network.critic, final)[0, 0]
            self.returns += rewards
            self.finished_returns += self.returns[done].tolist()
            self.returns[done] = 0.0
            steps.append((seen, actions, self.scale_rewards(rewards, done), terminated, truncated))
        observations, *others = map(np.stack, zip(*steps, strict=True))
        return np.concatenate([observations, self.observations[None]]), *others, last_values


def compute_gae(rewards, values, next_values, terminated, truncated, *, settings):
    """8. Advantages and returns by generalized advantage estimation (Schulman et al. 2016); all arrays are (T, N).

    A terminated episode is worth nothing afterwards. A truncated one would have continued, so the value of its last
    observation counts. Neither shares its sum with the episode that follows.
    """
    advantages = rewards + settings.gamma * next_values * ~terminated - values  # of one step each, so far
    decay = ~(terminated | truncated) * np.float32(settings.gamma * settings.gae_lambda)
    for t in reversed(range(len(rewards) - 1)):
        advantages[t] += decay[t] * advantages[t + 1]
    return advantages, advantages + values


def make_batch(rollout, network, settings):
    """9. The batch: all that the loss needs of a rollout, in B rows, computed before the weights change."""
    observations, actions, rewards, terminated, truncated, last_values = rollout
    values = np.stack([outputs_of(network.critic, row)[:, 0] for row in observations])  # (T + 1, N)
    next_values = values[1:].copy()  # where an episode ended, this is the value of the next one's first observation
    for place, value in last_values.items():
        next_values[place] = value
    advantages, returns = compute_gae(rewards, values[:-1], next_values, terminated, truncated, settings=settings)
    columns = (observations[:-1], actions, advantages, returns, values[:-1])
    rows = [torch.from_numpy(column).flatten(0, 1) for column in columns]  # (B, D), (B,) or (B, A), three of (B,)
    with torch.no_grad():
        log_probs, _ = network.distribution.log_probs_and_entropies(network.actor(rows[0]), rows[1])  # (B,)
    return *rows, log_probs


def ppo_loss(network, minibatch, settings):
    """10. The loss (Schulman et al. 2017): clipped policy loss, value loss, entropy bonus; over b rows."""
    observations, actions, advantages, returns, old_values, old_log_probs = minibatch
    log_probs, entropies = network.distribution.log_probs_and_entropies(network.actor(observations), actions)  # (b,)
    values = network.critic(observations).squeeze(1)  # (b,)
    if len(advantages) > 1:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    ratios = (log_probs - old_log_probs).exp()
    clipped = ratios.clamp(1.0 - settings.clip_range, 1.0 + settings.clip_range)
    policy_loss = -torch.min(advantages * ratios, advantages * clipped).mean()
    errors = (values - returns).square()
    if (bound := settings.clip_range_vf) is not None:
        near = old_values + (values - old_values).clamp(-bound, bound)
        errors = torch.max(errors, (near - returns).square())
    return policy_loss + settings.vf_coef * errors.mean() - settings.ent_coef * entropies.mean()


def update(network, optimizer, batch, settings, generator):
    """11. The update: passes over the batch in minibatches, each a clipped gradient and a step of Adam."""
    for order in [generator.permutation(len(batch[0])) for _ in range(settings.n_epochs)]:
        for chosen in torch.from_numpy(order).split(settings.minibatch_size):  # (b,); the last may be smaller
            loss = ppo_loss(network, [column[chosen] for column in batch], settings)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), settings.max_grad_norm)
            optimizer.step()


def train(make_env, settings, *, num_envs, total_timesteps, seed, report=lambda step, returns: None):
    """12. Training: collect, make a batch, update, report; repeat. Returns the network and the running statistics."""
    collector = Collector(make_env, num_envs, settings, seed)
    network = ActorCritic(collector.envs, settings.hidden_sizes, seed)
    optimizer = torch.optim.Adam(network.parameters(), eps=1e-5)
    generator = random_generator(seed, "minibatches")
    rollout_size = settings.n_steps * num_envs
    n_iterations = -(-total_timesteps // rollout_size)  # rounded up to whole rollouts
    for iteration in range(n_iterations):
        left = 1.0 - iteration / n_iterations if settings.learning_rate_schedule == "linear" else 1.0
        optimizer.param_groups[0]["lr"] = settings.learning_rate * left
        batch = make_batch(collector.collect(network), network, settings)
        update(network, optimizer, batch, settings, generator)
        report((iteration + 1) * rollout_size, collector.finished_returns)
    collector.envs.close()
    return network, collector.moments


def main():
    """Train on CartPole and print the mean return, which is at most 500."""
    torch.set_num_threads(1)  # the networks are too small for several
    make_env, settings = lambda: gymnasium.make("CartPole-v1"), Settings(learning_rate=1e-3)

    def report(step, returns):
        print(f"step {step:>6,}: mean return of the last 100 episodes {np.mean(returns[-100:]):.1f}")

    train(make_env, settings, num_envs=8, total_timesteps=30_000, seed=0, report=report)


if __name__ == "__main__":
    main()
