"""Training on a device: the same numbers as on arrays, the same bits after an interruption, and nothing asked for.

No device but the CPU is at hand where these tests run; its tensors take the same way.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.rollout.device_collector import DeviceCollector
from ml_pipeline.models.rl.rollout.host_collector import HostCollector
from ml_pipeline.models.rl.transitions import TrainingFailed
from ml_pipeline.models.rl.update import ppo_update

NUM_ENVS = 6
SMOOTH = {"use_sde": True, "sde_sample_freq": 5}
CONFIG = PPOConfig(n_steps=12, minibatch_size=24, n_epochs=2, hidden_sizes=(8,))
ACTION_SPACES = {
    "one choice": spaces.Discrete(3, start=2),
    "choices": spaces.MultiDiscrete([2, 3]),
    "numbers": spaces.Box(-0.5, 1.0, (2,)),
}


class Drift(VectorEnv):
    """Environments that move by their actions, as arrays or as CPU tensors; they end at 0.9, or after 3 to 8 steps."""

    def __init__(self, action_space, device=None):
        self.num_envs = NUM_ENVS
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(-9, 9, (2,))
        self.single_action_space = action_space
        self.observation_space, self.action_space = (
            batch_space(space, NUM_ENVS) for space in (self.single_observation_space, action_space)
        )
        self.device = device
        self.lengths = torch.arange(NUM_ENVS) + 3
        self.middle = {"Discrete": 3.0, "MultiDiscrete": 1.5, "Box": 0.5}[type(action_space).__name__]

    def reset(self, *, seed=None, options=None):
        self.t = torch.zeros(NUM_ENVS, dtype=torch.int64)
        self.position = torch.linspace(-1, 1, 2 * NUM_ENVS).view(NUM_ENVS, 2)
        return self._given(self.position), {}

    def step(self, actions):
        moves = torch.as_tensor(actions).to(torch.float32).view(NUM_ENVS, -1).sum(dim=1, keepdim=True)
        self.t = self.t + 1
        self.position = self.position * 0.9 + 0.5 * (moves - self.middle) * torch.tensor([1.0, -0.5])
        rewards = 3.0 + self.position[:, 0]
        terminated = self.position[:, 0].abs() > 0.9
        truncated = (self.t >= self.lengths) & ~terminated
        done, final = terminated | truncated, self.position
        self.position = torch.where(done[:, None], 0.1 * self.position, self.position)
        self.t = torch.where(done, 0, self.t)
        infos = {"final_obs": self._given(final), "_final_obs": self._given(done)}
        return *map(self._given, (self.position, rewards, terminated, truncated)), infos

    def get_states(self):
        return [{"numbers": torch.cat([self.position.flatten(), self.t.float()]).tolist()}]

    def set_states(self, states):
        numbers = torch.tensor(states[0]["numbers"])
        self.position, self.t = numbers[:-NUM_ENVS].view(NUM_ENVS, 2), numbers[-NUM_ENVS:].long()

    def _given(self, values):
        return values.numpy() if self.device is None else values


def parts(kind, config=CONFIG, device=None):
    envs = Drift(ACTION_SPACES[kind], device)
    return envs, Policy(envs.single_observation_space, envs.single_action_space, config, seed=1)


def trainer(kind="one choice", config=CONFIG, device="cpu", **parameters):
    envs, policy = parts(kind, config, device)
    steps = 5 * envs.num_envs * config.n_steps
    return PPOTrainer(envs, config, **{"total_timesteps": steps, "policy": policy, "seed": 3, **parameters})


@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize(
    "settings",
    [{}, {"share_layers": True}, {"memory": "gru"}, {"squash_actions": True}, {"clip_obs": 0.4}, SMOOTH],
)
def test_the_same_noise_gives_what_arrays_give(kind, settings, monkeypatch):
    if settings.keys() & {"squash_actions", "use_sde"} and kind != "numbers":
        pytest.skip("only for numbers")
    config = replace(CONFIG, **settings)
    (envs, policy), (device_envs, device_policy) = parts(kind, config), parts(kind, config, "cpu")
    with torch.no_grad():  # likely to take other actions than the first
        for each in (policy, device_policy):
            for weight in each.network.parameters():
                weight.mul_(3.0)
            each.refresh()
    on_host = HostCollector(envs, policy, config, seed=3)
    on_device = DeviceCollector(device_envs, device_policy, config, seed=3)
    generator = np.random.default_rng(5)
    monkeypatch.setattr(
        on_device._actions,
        "draw_noise",
        lambda _, shape: torch.from_numpy(policy.distribution.draw_noise(generator, shape)),
    )
    on_host._noise_generator = np.random.default_rng(5)
    for _ in range(2):
        for collector in (on_host, on_device):
            assert collector.collect(should_stop=lambda: False)
        ours, theirs = on_device.buffer, on_host.buffer
        assert theirs.terminated.any()
        assert theirs.truncated.any()
        for name in ("actions", "observations", "terminated", "truncated"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours.scaled_rewards, theirs.rewards, rtol=1e-5)
        found, expected = on_device.estimates(), on_host.estimates()
        for ours, theirs in zip(found.batch.inputs, expected.batch.inputs, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
        assert found.explained_variance == pytest.approx(expected.explained_variance, abs=1e-4)
        for ours, theirs in zip(on_device.episodes.finished, on_host.episodes.finished, strict=True):
            assert ours._replace(time_s=0, episode_return=0) == theirs._replace(time_s=0, episode_return=0)
            assert ours.episode_return == pytest.approx(theirs.episode_return, rel=1e-5)
    ours, theirs = device_policy.observations.normalizer.moments, policy.observations.normalizer.moments
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-5)
    assert ours.count == theirs.count


ASKING = ("item", "cpu", "numpy", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__")


@pytest.fixture
def asked(monkeypatch):
    """Every time that the host asks for a value of a tensor."""
    calls = []

    def counted(name, original):
        def call(*arguments, **named):
            calls.append(name)
            return original(*arguments, **named)

        return call

    for name in ASKING:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    for name in ("nonzero", "equal", "is_nonzero"):
        monkeypatch.setattr(torch, name, counted(name, getattr(torch, name)))
    return calls


@pytest.mark.parametrize("settings", [{}, {"share_layers": True}, {"memory": "lstm"}])
def test_nothing_is_asked_of_the_device_but_once_an_iteration(settings, asked, monkeypatch):
    monkeypatch.setattr(ppo_update, "can_compile", lambda network: False)  # as on a GPU
    counts = []
    for n_steps, n_epochs in ((4, 1), (24, 3)):
        trained = trainer(config=replace(CONFIG, n_steps=n_steps, n_epochs=n_epochs, **settings))
        trained.train_episode_vectorized()  # the gradient is compared with autograd's once a run
        step = trained._envs.step
        within = []

        def counting_step(actions, step=step, within=within):
            result = step(actions)
            within.append(len(asked))
            return result

        trained._envs.step = counting_step
        asked.clear()
        trained.train_episode_vectorized()
        assert within == [0] * n_steps
        counts.append(len(asked))
    assert counts[0] == counts[1] < 40


def test_asking_is_noticed(asked):
    trained = trainer()
    step = trained._envs.step
    seen = []

    def asking_step(actions):
        seen.append(len(asked))
        float(actions.sum())
        return step(actions)

    trained._envs.step = asking_step
    trained.train_episode_vectorized()
    assert np.diff(seen).min() > 0


class Seen(TorchDispatchMode):
    """The kind of number of every tensor that is made within, also of those that nobody keeps."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        made = function(*arguments, **(named or {}))
        self.dtypes |= {each.dtype for each in tree_leaves(made) if isinstance(each, torch.Tensor)}
        return made


@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize("settings", [{}, {"memory": "gru"}, {"normalize_values": True}])
def test_no_tensor_is_float64(kind, settings, monkeypatch):
    monkeypatch.setattr(ppo_update, "can_compile", lambda network: False)  # as on a GPU
    trained = trainer(kind, replace(CONFIG, **settings))
    collector, step, seen = trained._collector, trained._collector._step, Seen()

    def watched_step():
        with seen:
            step()

    monkeypatch.setattr(collector, "_step", watched_step)
    collector.collect(should_stop=lambda: False)  # what comes before and after the steps is the host's, in float64
    with seen:
        trained._learn(progress=0.0)
    assert seen.dtypes == {torch.float32, torch.int64, torch.bool}


@pytest.mark.parametrize("n_steps", [29, 36])  # in the third rollout, and at its end
@pytest.mark.parametrize(("kind", "settings"), [("one choice", {}), ("numbers", {"memory": "gru"})])
def test_resumed_equals_uninterrupted(tmp_path, n_steps, kind, settings):
    config = replace(CONFIG, **settings)
    whole, stopped, resumed = (trainer(kind, config) for _ in range(3))
    whole.train()
    step, taken = stopped._envs.step, []

    def step_and_stop(actions):
        taken.append(1)
        if len(taken) == n_steps:
            stopped.request_stop()
        return step(actions)

    stopped._envs.step = step_and_stop
    stopped.train()
    assert not stopped.finished
    torch.save(stopped.state_dict(), tmp_path / "state.pt")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    resumed.train()
    assert resumed.finished
    assert resumed.global_step == whole.global_step
    for ours, theirs in zip(resumed.policy.network.parameters(), whole.policy.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert resumed.policy.observations.normalizer.state_dict() == whole.policy.observations.normalizer.state_dict()
    assert resumed._collector.episodes.state_dict()["recent"] == whole._collector.episodes.state_dict()["recent"]


def test_a_number_that_is_not_finite_is_named():
    trained = trainer()
    trained.train_episode_vectorized()
    before = trained.policy.observations.normalizer.state_dict()
    step, taken = trained._envs.step, []

    def broken(actions):
        observations, rewards, *rest = step(actions)
        taken.append(1)
        if len(taken) == 7:
            observations = observations.clone()
            observations[4, 1] = torch.nan
        return observations, rewards, *rest

    trained._envs.step = broken
    with pytest.raises(TrainingFailed, match="environment 4 after step 7 of the rollout is not finite"):
        trained.train_episode_vectorized()
    assert trained.policy.observations.normalizer.state_dict() == before


def test_what_does_not_fit_together():
    with pytest.raises(UserError, match="environments give tensors on cuda, but the policy is on cpu"):
        trainer(device="cuda")
    arrays, tensors = trainer(device=None), trainer()
    with pytest.raises(UserError, match="made with observations as tensors on cpu, but here it is arrays"):
        arrays.load_state_dict(tensors.state_dict())
    with pytest.raises(UserError, match="made with observations as arrays, but here it is tensors on cpu"):
        tensors.load_state_dict(arrays.state_dict())
    with pytest.raises(UserError, match="normalize_rewards False, but here it is True"):
        tensors.load_state_dict(trainer(config=replace(CONFIG, normalize_rewards=False)).state_dict())
    stopped = trainer()
    stopped._collector._begin()
    with pytest.raises(UserError, match="made with n_steps 12, but here it is 24"):
        trainer(config=replace(CONFIG, n_steps=24)).load_state_dict(stopped.state_dict())
    envs, _ = parts("one choice", device="cpu")
    envs.single_action_space = spaces.MultiBinary(2)
    policy = Policy(envs.single_observation_space, envs.single_action_space, CONFIG)
    with pytest.raises(UserError, match="On a device, actions must be Box, Discrete or MultiDiscrete"):
        DeviceCollector(envs, policy, CONFIG, seed=0)
