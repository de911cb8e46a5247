"""Exported policies: the file acts as the policy does, and where this package cannot be imported."""

import json
import math
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from ml_pipeline import export_policy as entry
from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.policies.exported import PortablePolicy, ports_of
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.spaces import UnsupportedSpace
from ml_pipeline.runs.trained.export import ParityFailed, export_policy
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

pytestmark = pytest.mark.long

MIXED = spaces.Dict(
    number=spaces.Box(-9, 9, (2, 2), np.float64),
    choice=spaces.Discrete(3, start=5),
    parts=spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3], start=[1, 0])]),
)
NUMBERS = spaces.Box(-9, 9, (3,))
MASKED = spaces.Dict(number=NUMBERS, action_mask=spaces.MultiBinary(5))
SEEN = spaces.Dict({"eye": spaces.Box(0, 255, (36, 36, 3), np.uint8), **MIXED.spaces})


class Summing(nn.Module):
    state_size = 4

    def __init__(self, space):
        super().__init__()
        self.layer = nn.Linear(space.shape[0], 4)

    def forward(self, observations):
        return self.layer(observations)

    def step(self, features, state):
        return (features + state).tanh(), (features + state) / 2


class branches(nn.Module):  # noqa: N801 - used as a function
    def __init__(self, space):
        super().__init__()
        self.eye = nn.Sequential(nn.Conv2d(3, 4, 8, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(8), nn.LayerNorm(8))
        self.number = nn.Linear(math.prod(space["number"].shape), 4)

    def forward(self, seen):
        return torch.cat([self.eye(seen["eye"]), self.number(seen["number"].flatten(1)), seen["choice"]], dim=1).tanh()


KINDS = {
    "plain": (NUMBERS, spaces.Discrete(3, start=-1), {}),
    "without normalization": (NUMBERS, spaces.Discrete(3), {"normalize_obs": False, "activation": "relu"}),
    **{name: (NUMBERS, spaces.Discrete(3), {"activation": name}) for name in ("elu", "gelu", "silu", "leaky_relu")},
    "squashed": (NUMBERS, spaces.Box(np.float32([-3, 1]), np.float32([2, 4])), {"squash_actions": True}),
    "clipped observations": (NUMBERS, spaces.Discrete(3), {"clip_obs": 0.3}),
    "clipped": (NUMBERS, spaces.Box(-0.01, 0.01, (1, 2), np.float64), {}),
    "noise by state": (NUMBERS, spaces.Box(-0.5, 0.5, (2,)), {"use_sde": True}),
    "masked": (MASKED, spaces.MultiDiscrete([3, 2]), {}),
    "image": (SEEN["eye"], spaces.Discrete(3), {}),
    "image, own encoders": (SEEN["eye"], spaces.Discrete(3), {"share_encoder": False}),
    "user's network": (SEEN, MIXED, {"network": branches, "memory": "gru", "memory_size": 4}),
    "user's memory": (NUMBERS, spaces.Discrete(3), {"network": Summing}),
    "mixed, image, gru": (SEEN, MIXED, {"memory": "gru", "memory_size": 4}),
    "lstm, masked, shared": (MASKED, spaces.Discrete(5), {"memory": "lstm", "memory_size": 4, "share_layers": True}),
}
ELSEWHERE = """
import sys
sys.modules["ml_pipeline"] = None  # importing it fails
import numpy as np
kind, path, data = sys.argv[1:]
data = np.load(data)
names = [name for name in data if not name.startswith("expected")]
if kind == "onnx":
    import onnxruntime
    outputs = onnxruntime.InferenceSession(path).run(None, {name: data[name] for name in names})
else:
    import torch
    outputs = torch.export.load(path).module()(*(torch.from_numpy(data[name]) for name in names))
for i, output in enumerate(outputs):
    np.testing.assert_allclose(np.asarray(output), data[f"expected {i}"], rtol=1e-5, atol=1e-6)
"""


class Random(gymnasium.Env):
    """Episodes of ten random observations, whose mask allows something."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def _observe(self):
        observation = self.observation_space.sample()
        if isinstance(observation, dict) and "action_mask" in observation:
            observation["action_mask"][:] |= np.arange(5) % 3 == 0
        return observation

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.t += 1
        return self._observe(), 0.0, self.t == 10, False, {}


def learned(kind):
    """A policy whose statistics are not those of the beginning and whose actions differ, and its environment."""
    observation_space, action_space, settings = KINDS[kind]
    env = Random(observation_space, action_space)
    policy = Policy(observation_space, action_space, PPOConfig(hidden_sizes=(8,), **settings), seed=1)
    env.reset(seed=3)
    if policy.observations.normalizer is not None:
        encoded = [policy.observations.encode_one(env._observe()) for _ in range(20)]
        policy.observations.normalizer.update(3 * np.concatenate(encoded) + 1)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.mul_(3.0)
    policy.refresh()
    return policy, env


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_torch_file_is_proven_for_every_kind_of_policy(kind, tmp_path):
    policy, env = learned(kind)
    export_policy(policy, env, tmp_path / "policy.pt2", "torch")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.pt2"]


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["torch", "onnx"])
def test_a_file_runs_in_batches_where_this_package_cannot_be_imported(file_format, tmp_path):
    policy, env = learned("mixed, image, gru")
    portable = export_policy(policy, env, tmp_path / "policy", file_format)
    inputs = portable.example_inputs(5)
    given = dict(zip(portable.input_names, [part.numpy() for part in inputs], strict=True))
    expected = {f"expected {i}": output.numpy() for i, output in enumerate(portable(*inputs))}
    np.savez(tmp_path / "data.npz", **given, **expected)
    command = [sys.executable, "-I", "-c", ELSEWHERE, file_format, "policy", "data.npz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["torch", "onnx"])
def test_a_file_names_what_a_trading_policy_observes_and_what_its_actions_mean(file_format, tmp_path):
    config = TradingConfig(features=("log_return_1", "rsi_14"), window=3)
    env = TradingTask(config, market=synthetic_market(n_bars=600, n_symbols=1)).evaluation_env("train")
    policy = Policy(env.observation_space, env.action_space, PPOConfig(hidden_sizes=(8,)), seed=1)
    path = tmp_path / "policy"
    export_policy(policy, env, path, file_format)
    if file_format == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        said = onnxruntime.InferenceSession(path.read_bytes()).get_modelmeta().custom_metadata_map
    else:
        files = {"observation.json": "", "action.json": ""}
        with path.open("rb") as file:
            torch.export.load(file, extra_files=files)
        said = {name.removesuffix(".json"): text for name, text in files.items()}
    observation, action = json.loads(said["observation"]), json.loads(said["action"])
    assert observation["features"] == list(env.market.feature_names)
    for name, feature in zip(observation["features"], config.features, strict=True):
        assert name.endswith(feature)
    assert (observation["window"], observation["symbols"]) == (3, list(env.market.symbols))
    assert env.observation_space.shape[0] == 3 * 2 + 1
    assert action["choices"] == ["short", "flat", "long"]
    assert action["weights_of_positions"] == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("what", ["_normalizer", "_heads"])
def test_a_file_that_acts_otherwise_is_found_and_not_kept(what, tmp_path, monkeypatch):
    policy, env = learned("squashed")
    wrong = PortablePolicy(policy)
    if what == "_normalizer":
        wrong._normalizer.shift += 0.01
    else:
        wrong._heads[0].high += 0.01
    monkeypatch.setattr("ml_pipeline.runs.trained.export.PortablePolicy", lambda policy: wrong)
    with pytest.raises(ParityFailed, match="on random observations it gives"):
        export_policy(policy, env, tmp_path / "policy.pt2", "torch")
    assert not list(tmp_path.iterdir())


def test_numbers_that_files_do_not_know_are_refused():
    policy = Policy(spaces.Dict(a=spaces.Box(0, 1, (2,), np.float16)), spaces.Discrete(2))
    with pytest.raises(UnsupportedSpace, match=r"observation\.a is of float16, which cannot be exported"):
        PortablePolicy(policy)


def test_parts_are_named_by_their_place():
    names = ["observation.choice", "observation.number", "observation.parts.0", "observation.parts.1"]
    assert sorted(port.name for port in ports_of(MIXED, "observation")) == names


def test_without_onnx_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    policy, env = learned("plain")
    with pytest.raises(UserError, match=r"--format onnx needs onnxscript.*pip install .*\[onnx\]., or"):
        export_policy(policy, env, tmp_path / "policy.onnx", "onnx")


def test_a_checkpoint_is_exported_next_to_it(tmp_path, capsys):
    small = ["--n-steps", "16", "--minibatch-size", "16", "--iterations", "1", "--hidden-sizes", "8"]
    run = ["--env-id", "CartPole-v1", "--eval-episodes", "1", "--n-workers", "0", "--checkpoint-dir", str(tmp_path)]
    assert train_ppo.main([*run, *small]) == 0
    assert entry.main([str(tmp_path / "best.pt"), "--format", "torch"]) == 0
    said = capsys.readouterr().out
    assert said.endswith(
        f"{tmp_path / 'best.pt2'} acts as {tmp_path / 'best.pt'} does, on 256 random and 256 recorded observations.\n"
        "  in:  observation\n  out: action, parameters\n"
    )
    assert (tmp_path / "best.pt2").is_file()
