"""A model that Stable-Baselines3 saved becomes a run that acts as it does and trains on; its pickles never run."""

import base64
import gzip
import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ml_pipeline.config.errors import UserError
from ml_pipeline.enjoy import main as enjoy
from ml_pipeline.evaluate_ppo import main as evaluate
from ml_pipeline.import_sb3 import main as import_sb3
from ml_pipeline.models.rl.update.gradient_steps import FlatAdam, flatten_parameters
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import train_config
from ml_pipeline.runs.trained.configs import ImportConfig
from ml_pipeline.runs.trained.import_sb3_model import import_model
from ml_pipeline.runs.trained.load_policy import load_policy

NUMBERS = spaces.Box(-3, 3, (2, 2))
PARTS = spaces.Dict(
    b=spaces.Box(-50, 50, (3,)), a=spaces.Discrete(4), c=spaces.MultiBinary(3), d=spaces.MultiDiscrete([2, 3])
)
IMAGE = spaces.Box(0, 255, (44, 40, 2), np.uint8)
SEEN = spaces.Dict(number=spaces.Box(-30, 30, (2,)), picture=IMAGE)
ACTIONS = spaces.Box(-0.5, 0.25, (2, 2))


class Drawn(gymnasium.Env):
    """Observations and rewards are drawn at random, with some scale; episodes have 9 steps."""

    def __init__(self, observation_space=NUMBERS, action_space=ACTIONS):
        self.observation_space, self.action_space = observation_space, action_space
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self._t += 1
        return self.observation_space.sample(), self.np_random.normal(3, 20), self._t == 9, False, {}


gymnasium.register("DrawnNumbers-v0", Drawn)
gymnasium.register("DrawnImages-v0", lambda: Drawn(IMAGE, spaces.Discrete(3)))
gymnasium.register("DrawnParts-v0", lambda: Drawn(SEEN, spaces.Discrete(3)))


@pytest.fixture(scope="module", autouse=True)
def logs(tmp_path_factory):
    """Where Stable-Baselines3 makes the folders of its logger."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("logs")))
        yield


def trained(policy, observation_space=NUMBERS, action_space=ACTIONS, normalization=None, **settings):
    """A model after one update, with larger weights, so that actions differ from each other; and its VecNormalize."""
    envs = DummyVecEnv([lambda: Drawn(observation_space, action_space)] * 2)
    if normalization is not None:
        envs = VecNormalize(envs, **normalization)
    model = PPO(policy, envs, n_steps=16, batch_size=8, n_epochs=2, seed=3, device="cpu", **settings)
    model.learn(32)
    with torch.no_grad():
        for name, parameter in model.policy.named_parameters():
            if "action_net" in name:
                parameter.mul_(50)
    return model, envs


def imported(model, envs, folder, **options):
    model.save(folder / "model.zip")
    if isinstance(envs, VecNormalize):
        envs.save(folder / "vecnormalize.pkl")
        options["vecnormalize"] = folder / "vecnormalize.pkl"
    return import_model(ImportConfig(model=folder / "model.zip", checkpoint_dir=folder / "run", **options))


def observations_of(space, n=1000):
    space.seed(7)
    drawn = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([each[key] for each in drawn]) for key in space.spaces}
    return np.stack(drawn)


def assert_acts_the_same(model, envs, folder, space):
    policy, seen = load_policy(folder / "run"), observations_of(space)
    theirs = envs.normalize_obs(seen) if isinstance(envs, VecNormalize) else seen
    expected, _ = model.predict(theirs, deterministic=True)
    found, _ = policy.predict(seen, deterministic=True)
    assert len(np.unique(found.reshape(1000, -1), axis=0)) > 2
    np.testing.assert_allclose(found, expected, atol=1e-5)
    values = model.policy.predict_values(model.policy.obs_to_tensor(theirs)[0]).detach().numpy()[:, 0]
    inputs = policy.observations.normalize(policy.observations.encode(seen))
    with torch.no_grad():
        np.testing.assert_allclose(policy.network(torch.from_numpy(inputs))[1].numpy(), values, atol=1e-4)


@pytest.mark.parametrize(
    "action_space",
    [ACTIONS, spaces.Discrete(5), spaces.MultiDiscrete([2, 3, 4]), spaces.MultiBinary(3)],
    ids=lambda space: type(space).__name__,
)
def test_actions_and_values_are_those_of_the_model_for_every_kind_of_action(tmp_path, action_space):
    arch = {"pi": [16, 8, 8], "vf": [12]}
    model, envs = trained("MlpPolicy", action_space=action_space, policy_kwargs={"net_arch": arch})
    imported(model, envs, tmp_path)
    assert_acts_the_same(model, envs, tmp_path, NUMBERS)


@pytest.mark.parametrize(
    ("policy", "space"),
    [
        ("MlpPolicy", spaces.Discrete(6)),
        ("MlpPolicy", spaces.MultiDiscrete([3, 4])),
        ("MlpPolicy", spaces.MultiBinary(5)),
        ("MlpPolicy", spaces.Box(-1, 1, (3,), np.float64)),
        ("MultiInputPolicy", PARTS),
    ],
    ids=lambda each: getattr(type(each), "__name__", each),
)
def test_observations_are_read_as_the_model_reads_them(tmp_path, policy, space):
    kwargs = {"net_arch": [16], "activation_fn": torch.nn.ReLU}
    model, envs = trained(policy, space, policy_kwargs=kwargs)
    imported(model, envs, tmp_path)
    assert_acts_the_same(model, envs, tmp_path, space)


def test_exploration_by_gsde_goes_on(tmp_path):
    model, envs = trained("MlpPolicy", use_sde=True, sde_sample_freq=4, policy_kwargs={"net_arch": [16, 8]})
    imported(model, envs, tmp_path)
    assert_acts_the_same(model, envs, tmp_path, NUMBERS)
    policy, seen = load_policy(tmp_path / "run"), observations_of(NUMBERS)
    assert (policy.config.ppo.use_sde, policy.config.ppo.sde_sample_freq) == (True, 4)
    actions = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    _, expected, entropies = model.policy.evaluate_actions(torch.from_numpy(seen), torch.from_numpy(actions))
    parameters, _ = policy.network(torch.from_numpy(policy.observations.encode(seen)))
    found, ours = policy.distribution.log_probs_and_entropies(parameters, torch.from_numpy(actions))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours, entropies, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("policy", "space", "normalization"),
    [
        ("MlpPolicy", NUMBERS, {}),
        ("MlpPolicy", NUMBERS, {"clip_obs": 0.7, "epsilon": 0.5, "norm_reward": False}),
        ("MlpPolicy", NUMBERS, {"norm_obs": False}),
        ("MultiInputPolicy", PARTS, {"norm_obs_keys": ["b"], "clip_obs": 1.5}),
    ],
)
def test_vecnormalize_gives_the_same_numbers(tmp_path, policy, space, normalization):
    model, envs = trained(policy, space, normalization=normalization)
    imported(model, envs, tmp_path)
    assert_acts_the_same(model, envs, tmp_path, space)
    saved = load_checkpoint(tmp_path / "run" / "latest.pt")["trainer"]["collector"]["reward_scaler"]
    if envs.norm_reward:
        assert saved["moments"]["mean"] == [float(envs.ret_rms.mean)]
    else:
        assert saved is None


@pytest.mark.parametrize(
    ("space", "kwargs"),
    [
        (IMAGE, {}),
        (IMAGE, {"net_arch": {"pi": [], "vf": [6]}}),
        (IMAGE, {"net_arch": [8], "share_features_extractor": False}),
        (IMAGE, {"features_extractor_kwargs": {"features_dim": 16}, "share_features_extractor": False}),
        (SEEN, {"features_extractor_kwargs": {"cnn_output_dim": 8}}),
    ],
    ids=lambda each: str(each)[:3] if isinstance(each, spaces.Space) else str(each),
)
def test_networks_for_images_are_imported(tmp_path, space, kwargs):
    policy = "CnnPolicy" if space is IMAGE else "MultiInputPolicy"
    normalization = None if space is IMAGE else {"norm_obs_keys": ["number"]}
    model, envs = trained(policy, space, spaces.Discrete(3), normalization=normalization, policy_kwargs=kwargs)
    with torch.no_grad():  # so that no action is always the best
        seen = model.policy.obs_to_tensor(observations_of(space, 100))[0]
        model.policy.action_net.bias -= model.policy.get_distribution(seen).distribution.logits.mean(dim=0)
    imported(model, envs, tmp_path, env_id="DrawnImages-v0" if space is IMAGE else "DrawnParts-v0")
    assert_acts_the_same(model, envs, tmp_path, space)


def test_settings_are_taken_over_and_functions_are_named(tmp_path):
    model, envs = trained(
        "MlpPolicy", learning_rate=LinearSchedule(1e-3, 0.0, 1.0), clip_range=lambda left: 0.1 * left, gamma=0.9,
        ent_coef=0.01, max_grad_norm=0.7, target_kl=0.5, normalize_advantage=False,
    )  # fmt: skip
    result = imported(model, envs, tmp_path, env_id="DrawnNumbers-v0")
    assert "clip_range is a function, which is not read; the run has the default" in "".join(result.notices)
    config = load_policy(tmp_path / "run").config
    ppo = config.ppo
    assert (ppo.learning_rate, ppo.learning_rate_schedule) == (1e-3, "linear")
    assert (ppo.gamma, ppo.ent_coef, ppo.max_grad_norm, ppo.target_kl) == (0.9, 0.01, 0.7, 0.5)
    assert (ppo.n_steps, ppo.minibatch_size, ppo.n_epochs, ppo.normalize_advantages) == (16, 8, 2, False)
    assert (config.run.n_envs, config.run.seed, config.run.total_timesteps) == (2, 3, 32)


def test_the_state_of_adam_goes_on(tmp_path):
    model, envs = trained("MlpPolicy", policy_kwargs={"net_arch": {"pi": [8, 8], "vf": [4]}})
    imported(model, envs, tmp_path)
    saved = load_checkpoint(tmp_path / "run" / "latest.pt")["trainer"]
    network = load_policy(tmp_path / "run").network
    flat = flatten_parameters(network.parameter_order())
    adam = FlatAdam(flat.data, flat.grad, epsilon=1e-5)
    adam.load_state_dict(saved["update"]["optimizer"])
    for parameter in [*network.parameters(), *model.policy.parameters()]:
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.zero_()
    adam.step(1e-2)
    for group in model.policy.optimizer.param_groups:
        group["lr"] = 1e-2
    model.policy.optimizer.step()
    pairs = [
        ("actor.4.weight", "action_net.weight"), ("actor.2.bias", "mlp_extractor.policy_net.2.bias"),
        ("critic.0.weight", "mlp_extractor.value_net.0.weight"), ("distribution.log_std", "log_std"),
    ]  # fmt: skip
    for ours, theirs in pairs:
        torch.testing.assert_close(
            network.get_parameter(ours), model.policy.get_parameter(theirs), atol=1e-6, rtol=1e-5
        )


def test_an_imported_run_is_evaluated_shown_resumed_and_started_from(tmp_path, capsys):
    envs = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 2))
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, n_epochs=1, policy_kwargs={"net_arch": [8]})
    model.learn(128)
    model.save(tmp_path / "model.zip")
    envs.save(tmp_path / "vecnormalize.pkl")
    run = tmp_path / "run"
    argv = [str(tmp_path / "model.zip"), "--vecnormalize", str(tmp_path / "vecnormalize.pkl")]
    assert import_sb3([*argv, "--env-id", "CartPole-v1", "--checkpoint-dir", str(run)]) == 0
    assert "is now the run" in capsys.readouterr().out
    assert evaluate([str(run), "--eval-episodes", "2"]) == 0
    assert enjoy([str(run), "--episodes", "1"]) == 0
    with pytest.raises(SystemExit):
        import_sb3([*argv, "--checkpoint-dir", str(run)])
    assert "already holds a run" in capsys.readouterr().err
    config = resumed_config(run / "latest.pt", {"total_timesteps": 384, "n_workers": 0, "eval_episodes": 1})
    result = Run(config, make_task(config), checkpoint=run / "latest.pt").train()
    assert (result.global_step, result.iterations) == (384, 3)
    saved = load_checkpoint(run / "latest.pt")["trainer"]
    assert saved["policy"]["normalizer"]["count"] > envs.obs_rms.count
    assert saved["collector"]["reward_scaler"]["moments"]["count"] == 384
    settings = {"env_id": "CartPole-v1", "n_envs": 1, "n_workers": 0, "iterations": 1, "eval_episodes": 1}
    begun = train_config({**settings, "hidden_sizes": (8,), "init_from": run, "checkpoint_dir": tmp_path / "begun"})
    assert Run(begun, make_task(begun)).train().status == "finished"


@pytest.mark.parametrize("given", [0.3, LinearSchedule(0.3, 0.0, 1.0)], ids=["constant", "linear"])
def test_a_constant_clip_range_vf_is_taken_over(tmp_path, given):
    model, envs = trained("MlpPolicy", clip_range_vf=given)
    result = imported(model, envs, tmp_path)
    assert load_policy(tmp_path / "run").config.ppo.clip_range_vf == (0.3 if given == 0.3 else None)
    assert ("clip_range_vf is a function" in "".join(result.notices)) == (given != 0.3)


def changed(source: Path, target: Path, **entries) -> Path:
    """A copy of a model with other entries of its JSON, and of its files with names of Python."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as copy:
        for name in archive.namelist():
            content = archive.read(name)
            if name == "data":
                content = json.dumps({**json.loads(content), **entries}).encode()
            copy.writestr(name, content)
    return target


def changed_tensors(source: Path, target: Path, file: str, change) -> Path:
    """A copy of a model after `change` of the content of one of its files of tensors."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as copy:
        for name in archive.namelist():
            content = archive.read(name)
            if name == file:
                tensors = torch.load(io.BytesIO(content))
                change(tensors)
                buffer = io.BytesIO()
                torch.save(tensors, buffer)
                content = buffer.getvalue()
            copy.writestr(name, content)
    return target


class Bomb:
    """Its pickle makes a folder when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def serialized(value) -> dict:
    return {":type:": "anything", ":serialized:": base64.b64encode(pickle.dumps(value)).decode()}


@pytest.fixture(scope="module")
def saved(logs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    model, envs = trained("MlpPolicy", normalization={}, policy_kwargs={"net_arch": [8]})
    model.save(folder / "model.zip")
    envs.save(folder / "vecnormalize.pkl")
    return folder


ENTRIES = [
    "policy_class",
    "policy_kwargs",
    "observation_space",
    "action_space",
    "learning_rate",
    "_last_obs",
    "n_steps",
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_pickle_of_a_model_runs(saved, tmp_path, entry):
    path = changed(saved / "model.zip", tmp_path / "m.zip", **{entry: serialized(Bomb(tmp_path / "ran"))})
    config = ImportConfig(model=path, vecnormalize=saved / "vecnormalize.pkl", checkpoint_dir=tmp_path / "run")
    if entry in ("learning_rate", "n_steps"):
        assert any(entry in notice for notice in import_model(config).notices)
    else:
        with pytest.raises(UserError, match=r"m\.zip cannot be imported: [^\n]+\.$"):
            import_model(config)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"value_net.bias": torch.zeros(1).expand(10**5, 10**5)}, "it has weights of another size than their numbers"),
        ({"value_net.bias": torch.zeros(10**12, 0)}, "it has weights of another size than their numbers"),
        ({"mlp_extractor.policy_net.2.weight": torch.ones(7, 9)}, "its weights mlp_extractor.policy_net do not fit"),
        ({"value_net.bias": torch.ones(3)}, "its weights .*bias have the shape .3,., which does not fit its spaces"),
        ({"action_net.weight": torch.ones(3)}, "its weights action_net.weight have the shape .3,., but its actions"),
        ({"mine\n" * 99: torch.ones(3)}, "it has the weights mine.{1,150}, of a network of its own"),
    ],
    ids=["expanded", "empty", "layers", "shape", "head", "name"],
)
def test_weights_that_do_not_fit_get_one_sentence(saved, tmp_path, change, sentence):
    path = changed_tensors(
        saved / "model.zip", tmp_path / "m.zip", "policy.pth", lambda weights: weights.update(change)
    )
    with pytest.raises(UserError, match=rf"m\.zip cannot be imported: {sentence}[^\n]*\.$"):
        import_model(ImportConfig(model=path, vecnormalize=saved / "vecnormalize.pkl", checkpoint_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_weights_for_another_kind_of_action_get_one_sentence(tmp_path):
    PPO("MlpPolicy", Drawn(action_space=spaces.Discrete(4)), n_steps=8, batch_size=8).save(tmp_path / "whole.zip")
    path = changed_tensors(
        tmp_path / "whole.zip", tmp_path / "m.zip", "policy.pth", lambda weights: weights.update(log_std=torch.ones(4))
    )
    with pytest.raises(UserError, match=r"its weights distribution\.log_std have the shape \(4,\), which does not fit"):
        import_model(ImportConfig(model=path, checkpoint_dir=tmp_path / "run"))
    path = changed(tmp_path / "whole.zip", tmp_path / "m.zip", action_space=serialized(spaces.Discrete(10**12)))
    with pytest.raises(UserError, match=r"have the shape \(4, 64\), but its actions need \(1000000000000, 64\)"):
        import_model(ImportConfig(model=path, checkpoint_dir=tmp_path / "run"))


def test_a_layer_behind_convolutions_of_another_size_gets_one_sentence(tmp_path):
    PPO("CnnPolicy", Drawn(IMAGE, spaces.Discrete(3)), n_steps=8, batch_size=8).save(tmp_path / "whole.zip")
    path = changed_tensors(
        tmp_path / "whole.zip", tmp_path / "m.zip", "policy.pth",
        lambda weights: weights.update({"features_extractor.linear.0.weight": torch.ones(512, 7)}),
    )  # fmt: skip
    with pytest.raises(UserError, match=r"its weights .*last\.weight have the shape \(512, 7\), which does not fit"):
        import_model(ImportConfig(model=path, checkpoint_dir=tmp_path / "run"))


@pytest.mark.parametrize(
    ("key", "moments"),
    [
        ("exp_avg", torch.ones(3)),
        ("exp_avg", "no tensor"),
        ("exp_avg", torch.full((8, 4), torch.nan)),
        ("exp_avg_sq", torch.full((8, 4), -1.0)),
        ("exp_avg", torch.zeros(1).expand(10**5, 10**5)),
        ("exp_avg", torch.ones(8, 4, dtype=torch.float64)),
    ],
    ids=["shape", "text", "nan", "negative", "expanded", "double"],
)
def test_moments_of_adam_that_do_not_fit_are_not_taken_over(saved, tmp_path, key, moments):
    def change(optimizer):
        [i] = [i for i, each in optimizer["state"].items() if each[key].shape == (8, 4)][:1]
        optimizer["state"][i][key] = moments

    path = changed_tensors(saved / "model.zip", tmp_path / "m.zip", "policy.optimizer.pth", change)
    config = ImportConfig(model=path, vecnormalize=saved / "vecnormalize.pkl", checkpoint_dir=tmp_path / "run")
    if getattr(moments, "ndim", 0) and moments.numel() > 32:
        with pytest.raises(UserError, match=r"m\.zip cannot be imported: it has weights of another size"):
            import_model(config)
        return
    is_usable = getattr(moments, "dtype", None) == torch.float64
    assert ("no usable state of Adam" in "".join(import_model(config).notices)) != is_usable
    update = load_checkpoint(tmp_path / "run" / "latest.pt")["trainer"]["update"]
    if is_usable:
        assert update["optimizer"]["mean"].dtype == torch.float32


@pytest.mark.parametrize(
    ("policy", "space", "other", "sentence"),
    [
        ("MlpPolicy", NUMBERS, spaces.Dict(a=NUMBERS), "its VecNormalize is of other observations than those in Box"),
        (
            "MultiInputPolicy",
            spaces.Dict(a=NUMBERS),
            NUMBERS,
            "its VecNormalize is of other observations than those in",
        ),
        ("MlpPolicy", NUMBERS, spaces.Box(-1, 1, (3,)), "its VecNormalize has 3 columns in the place of 4"),
        (
            "MultiInputPolicy",
            spaces.Dict(a=NUMBERS),
            spaces.Dict(a=spaces.Box(-1, 1, (3,))),
            "its VecNormalize has 3 columns in the place of 4",
        ),
    ],
    ids=["box-dict", "dict-box", "box-box", "dict-dict"],
)
def test_a_vecnormalize_of_other_observations_is_refused(tmp_path, policy, space, other, sentence):
    PPO(policy, Drawn(space), n_steps=8, batch_size=8).save(tmp_path / "m.zip")
    envs = VecNormalize(DummyVecEnv([lambda: Drawn(other)]))
    envs.reset()
    envs.save(tmp_path / "v.pkl")
    with pytest.raises(UserError, match=rf"m\.zip cannot be imported: {sentence}[^\n]*\.$"):
        import_model(
            ImportConfig(model=tmp_path / "m.zip", vecnormalize=tmp_path / "v.pkl", checkpoint_dir=tmp_path / "run")
        )
    assert not (tmp_path / "run").exists()


LOOP: list = []
LOOP.append(LOOP)
SHARED: tuple = ()
for _ in range(60):
    SHARED = (SHARED, SHARED)


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"squash_output": SHARED}, "its policy has squash_output=tuple, which is not supported"),
        ({"full_std": "x\n" * 99}, "its policy has full_std=str, which is not supported"),
        ({"features_extractor_kwargs": {"a": LOOP}}, "its features_extractor_kwargs are not all numbers or texts"),
        ({"features_extractor_kwargs": SHARED}, "its features_extractor_kwargs are not all numbers or texts"),
    ],
    ids=["shared", "text", "loop", "no-dict"],
)
def test_arguments_of_the_policy_of_any_kind_get_one_sentence(saved, tmp_path, kwargs, sentence):
    path = changed(saved / "model.zip", tmp_path / "m.zip", policy_kwargs=serialized(kwargs))
    with pytest.raises(UserError, match=rf"m\.zip cannot be imported: {sentence}\.$"):
        import_model(ImportConfig(model=path, vecnormalize=saved / "vecnormalize.pkl", checkpoint_dir=tmp_path / "run"))


def test_no_pickle_of_weights_or_of_a_vecnormalize_runs(saved, tmp_path):
    bomb = Bomb(tmp_path / "ran")
    (tmp_path / "v.pkl").write_bytes(pickle.dumps(bomb))
    with pytest.raises(UserError, match=r"v\.pkl cannot be imported: it holds posix\.mkdir\."):
        import_model(ImportConfig(model=saved / "model.zip", vecnormalize=tmp_path / "v.pkl"))
    weights = io.BytesIO()
    torch.save({"log_std": bomb}, weights)
    with zipfile.ZipFile(saved / "model.zip") as archive, zipfile.ZipFile(tmp_path / "m.zip", "w") as copy:
        copy.writestr("data", archive.read("data"))
        copy.writestr("policy.pth", weights.getvalue())
    with pytest.raises(UserError, match=r"m\.zip is not a model of Stable-Baselines3, or is damaged or cut short\."):
        import_model(ImportConfig(model=tmp_path / "m.zip"))
    assert not (tmp_path / "ran").exists()


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def unpacking(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", b" " * 30_000_000)
    return packed.getvalue()


def leading_out(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../data", b"{}")
    return packed.getvalue()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (cut, "is not a model of Stable-Baselines3, or is damaged or cut short"),
        (gzip.compress, "is not a model"),
        (lambda content: b"", "is not a model"),
        (unpacking, "cannot be imported: it unpacks to more than 20 times its size"),
        (leading_out, "is not a model"),
    ],
)
def test_a_file_that_is_no_model_gets_one_sentence(saved, tmp_path, change, sentence):
    (tmp_path / "m.zip").write_bytes(change((saved / "model.zip").read_bytes()))
    with pytest.raises(UserError, match=rf"m\.zip {sentence}[^\n]*\.$"):
        import_model(ImportConfig(model=tmp_path / "m.zip", checkpoint_dir=tmp_path / "run"))
    assert [each.name for each in tmp_path.iterdir()] == ["m.zip"]


class OwnExtractor(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, 4)
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, observations):
        return self.layer(observations.flatten(1))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: A2C("MlpPolicy", Drawn()), "it is of another algorithm than PPO"),
        (lambda: DQN("MlpPolicy", Drawn(action_space=spaces.Discrete(2)), buffer_size=9), "it is of another algorithm"),
        (
            lambda: PPO(
                "MlpPolicy", Drawn(), n_steps=8, batch_size=8, use_sde=True, policy_kwargs={"squash_output": True}
            ),
            "its policy has squash_output=True, which is not supported",
        ),
        (
            lambda: PPO(
                "MlpPolicy", Drawn(), n_steps=8, batch_size=8, policy_kwargs={"features_extractor_class": OwnExtractor}
            ),
            "its features_extractor_class is .*OwnExtractor, a network of its own",
        ),
        (
            lambda: PPO(
                "MlpPolicy", Drawn(), n_steps=8, batch_size=8, policy_kwargs={"activation_fn": torch.nn.Sigmoid}
            ),
            "its activation_fn is .*Sigmoid, and known are Tanh",
        ),
        (
            lambda: PPO("MlpPolicy", Drawn(spaces.Box(0, 255, (8, 8, 3), np.uint8)), n_steps=8, batch_size=8),
            "MlpPolicy cannot be imported for observations in Box",
        ),
        (
            lambda: PPO("MlpPolicy", Drawn(), n_steps=8, batch_size=8, policy_kwargs={"net_arch": []}),
            "hidden_sizes must name at least one layer",
        ),
        (
            lambda: PPO(
                "MultiInputPolicy",
                Drawn(spaces.Dict(a=NUMBERS, action_mask=spaces.MultiBinary(2))),
                n_steps=8,
                batch_size=8,
            ),
            "its observations have an action_mask, which is an ordinary part of them there",
        ),
    ],
)
def test_what_has_no_counterpart_is_named_in_a_sentence(tmp_path, make, sentence):
    make().save(tmp_path / "m.zip")
    with pytest.raises(UserError, match=rf"m\.zip cannot be imported: {sentence}[^\n]*\.$"):
        import_model(ImportConfig(model=tmp_path / "m.zip", checkpoint_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("entry", "value"), [("n_steps", None), ("gamma", "x"), ("n_envs", 10**30), ("n_epochs", -1), ("policy_kwargs", [])]
)
def test_settings_of_any_kind_are_read_or_refused_in_a_sentence(saved, tmp_path, entry, value):
    path = changed(saved / "model.zip", tmp_path / "m.zip", **{entry: value})
    config = ImportConfig(model=path, vecnormalize=saved / "vecnormalize.pkl", checkpoint_dir=tmp_path / "run")
    if entry == "gamma":
        assert "gamma is a function" in import_model(config).notices[1]
    else:
        with pytest.raises(UserError, match=r"m\.zip cannot be imported: [^\n]+\.$"):
            import_model(config)


def test_sizes_without_weights_are_refused_before_layers_of_that_size_are_made(logs, tmp_path):
    PPO("CnnPolicy", Drawn(IMAGE, spaces.Discrete(3)), n_steps=8, batch_size=8).save(tmp_path / "whole.zip")
    path = changed(
        tmp_path / "whole.zip", tmp_path / "m.zip", policy_kwargs={"features_extractor_kwargs": {"features_dim": 2**40}}
    )
    with pytest.raises(UserError, match="its features_extractor_kwargs do not fit its weights"):
        import_model(ImportConfig(model=path, checkpoint_dir=tmp_path / "run"))


def test_a_forgotten_vecnormalize_and_another_environment_are_noticed(saved, tmp_path):
    with pytest.raises(UserError, match="was trained with VecNormalize, whose statistics it does not hold; name the"):
        import_model(ImportConfig(model=saved / "model.zip"))
    options = {"model": saved / "model.zip", "vecnormalize": saved / "vecnormalize.pkl"}
    with pytest.raises(UserError, match=r"The policy was made for observations Box.*2, 2.*, but those of the env"):
        import_model(ImportConfig(**options, env_id="CartPole-v1", checkpoint_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_unreadable_spaces_are_taken_from_the_environment(saved, tmp_path):
    path = changed(saved / "model.zip", tmp_path / "m.zip", observation_space=serialized(Bomb(tmp_path / "ran")))
    options = {"vecnormalize": saved / "vecnormalize.pkl", "checkpoint_dir": tmp_path / "run"}
    with pytest.raises(
        UserError, match=r"posix\.mkdir is no space of Gymnasium's own; name its environment with --env"
    ):
        import_model(ImportConfig(model=path, **options))
    import_model(ImportConfig(model=path, env_id="DrawnNumbers-v0", **options))
    assert load_policy(tmp_path / "run").observation_space == NUMBERS
    assert not (tmp_path / "ran").exists()


def test_without_an_environment_a_run_can_be_loaded_but_not_evaluated(saved, tmp_path, capsys):
    argv = [str(saved / "model.zip"), "--vecnormalize", str(saved / "vecnormalize.pkl")]
    assert import_sb3([*argv, "--checkpoint-dir", str(tmp_path / "run")]) == 0
    assert "Without --env-id, load_policy and --init-from can use the run" in capsys.readouterr().out
    assert ACTIONS.contains(load_policy(tmp_path / "run").act(NUMBERS.sample()))
    with pytest.raises(SystemExit):
        evaluate([str(tmp_path / "run")])
    assert 'There is no environment "given-by-env-id-of-import-sb3"' in capsys.readouterr().err
