"""Stable-Baselines3's policy_kwargs, in Python and in files."""

import pytest
import yaml
from torch import nn

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.runs.train_config import read_train_settings, train_config, train_settings_of

sb3_layers = pytest.importorskip("stable_baselines3.common.torch_layers", reason="pip install stable-baselines3")


def test_each_argument_becomes_the_setting_that_means_the_same():
    config = PPOConfig(
        policy_kwargs={
            "features_extractor_class": sb3_layers.CombinedExtractor,
            "features_extractor_kwargs": {"cnn_output_dim": 32},
            "share_features_extractor": False,
            "net_arch": {"pi": [32], "vf": []},
            "activation_fn": nn.LeakyReLU,
            "ortho_init": False,
            "log_std_init": -1.0,
        }
    )
    assert config == PPOConfig(
        network="stable_baselines3.common.torch_layers:CombinedExtractor",
        network_kwargs={"cnn_output_dim": 32},
        share_encoder=False,
        hidden_sizes=(32,),
        value_hidden_sizes=(),
        activation="leaky_relu",
        ortho_init=False,
        log_std_init=-1.0,
    )
    assert PPOConfig(policy_kwargs={"net_arch": [8, 4]}).hidden_sizes == (8, 4)
    assert PPOConfig(policy_kwargs={}) == PPOConfig(policy_kwargs=None) == PPOConfig()


def test_heads_follow_their_convolutions_directly_unless_layers_are_named():
    cnn = {"features_extractor_class": sb3_layers.NatureCNN}
    assert PPOConfig(policy_kwargs=cnn).hidden_sizes == ()
    assert PPOConfig(policy_kwargs={**cnn, "net_arch": [16]}).hidden_sizes == (16,)


@pytest.mark.parametrize("where", ["top", "kwargs", "training"])
def test_files_name_classes(where, tmp_path):
    kwargs = {
        "features_extractor_class": "my.extractors.Small",
        "features_extractor_kwargs": {"width": 8},
        "net_arch": {"pi": [32], "vf": [16]},
        "activation_fn": "torch.nn.ReLU",
    }
    content = {"policy_kwargs": kwargs} if where == "top" else {where: {"policy_kwargs": kwargs}}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**content, "env_id": "CartPole-v1"}))
    ppo = train_config(read_train_settings(path)).ppo
    assert (ppo.network, ppo.network_kwargs, ppo.activation) == ("my.extractors:Small", {"width": 8}, "relu")
    assert (ppo.hidden_sizes, ppo.value_hidden_sizes) == ((32,), (16,))


def test_those_of_other_algorithms_are_theirs(tmp_path):
    content = {"algorithm": "SAC", "policy_kwargs": {"net_arch": [32], "log_std_init": -2}}
    found = train_settings_of(content, tmp_path / "run.yaml")
    assert found["algorithm_kwargs"] == {"policy_kwargs": {"net_arch": [32], "log_std_init": -2}}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"policy_kwargs": {"net_arhc": [8]}},
            r'unknown setting "net_arhc" in policy_kwargs\. Did you mean "net_arch"',
        ),
        ({"policy_kwargs": {"net_arch": {"pi": [8]}}}, r"net_arch must give the layers of pi and of vf"),
        ({"policy_kwargs": {"features_extractor_class": "Small"}}, r"must name a class and its module, such as my_ex"),
        (
            {"policy_kwargs": {"net_arch": [8]}, "hidden_sizes": (4,)},
            r"hidden_sizes is \(4,\), but policy_kwargs has \[8\]",
        ),
        ({"policy_kwargs": {"activation_fn": "Mish"}}, r"activation must be .* but got \"mish\""),
    ],
)
def test_a_mistake_is_named(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        PPOConfig(**settings)
