"""Runs with a network of the user's own: its name in the checkpoint, and everything that is done with a run."""

import re

import pytest
import torch
from torch import nn

from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import train_settings_of
from ml_pipeline.runs.trained.configs import ExportConfig
from ml_pipeline.runs.trained.export import export_checkpoint
from ml_pipeline.runs.trained.load_policy import load_policy
from ml_pipeline.tuning.search.space import read_space
from tests.small_runs import config_of, resumed, trained, weights

NETS = """
from torch import nn
def small(space, width=8):
    return nn.Sequential(nn.Linear(space.shape[0], width), nn.LayerNorm(width), nn.ReLU())
"""
SMALL = ["--env-id", "CartPole-v1", "--n-envs", "2", "--n-steps", "32", "--minibatch-size", "32", "--n-epochs", "1"]
SMALL += ["--iterations", "2", "--eval-episodes", "1", "--vec-env", "serial", "--hidden-sizes", "none"]
OBSERVATION = [0.1, -0.2, 0.03, 0.4]


@pytest.fixture
def nets(tmp_path, monkeypatch):
    """The name of a module in the current folder that no other test has imported."""
    name = f"nets_{re.sub(r'[^a-z0-9]', '_', tmp_path.name)}"
    (tmp_path / f"{name}.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_run_names_its_network_and_every_command_imports_it(nets, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    own = ["--network", f"{nets}:small", "--network-kwargs", '{"width": 5}', "--no-share-network"]
    assert train_ppo.main([*SMALL, *own, "--checkpoint-dir", str(run)]) == 0
    assert capsys.readouterr().out.count(f"The network {nets}:small acts and learns in torch; it is not compiled.") == 1
    saved = load_checkpoint(run / "latest.pt")
    assert (saved["config"]["network"], saved["config"]["network_kwargs"]) == (f"{nets}:small", {"width": 5})
    assert saved["trainer"]["policy"]["fits"]["network"] == f"{nets}:small"
    policy = load_policy(run)
    assert [len(policy.network.inputs), policy.user_network.widths, policy.act(OBSERVATION) in (0, 1)] == [
        2,
        (5,),
        True,
    ]

    assert train_ppo.main([*SMALL, *own, "--checkpoint-dir", str(tmp_path / "next"), "--init-from", str(run)]) == 0
    assert export_checkpoint(
        ExportConfig(checkpoint=run, output=tmp_path / "policy.pt2", format="torch")
    ).path.is_file()

    (tmp_path / f"{nets}.py").rename(tmp_path / "elsewhere.py")
    monkeypatch.delitem(__import__("sys").modules, nets)
    with pytest.raises(UserError, match=rf'^There is no module "{nets}": run in the folder of {nets}\.py, add that'):
        load_policy(run)
    assert load_policy(run, network="elsewhere:small").act(OBSERVATION) == policy.act(OBSERVATION)
    assert train_ppo.main(["--resume", str(run), "--network", "elsewhere:small", "--iterations", "3"]) == 0


def test_a_resumed_run_with_a_lambda_that_is_passed_again_equals_the_uninterrupted_one(tmp_path):
    def ppo(network):
        return PPOConfig(n_steps=32, minibatch_size=64, n_epochs=2, hidden_sizes=(), network=network)

    def network(space):
        return nn.Sequential(nn.Linear(space.shape[0], 8), nn.Tanh())

    whole = trained(tmp_path / "whole", ppo=ppo(network), iterations=4)
    part = trained(tmp_path / "part", ppo=ppo(network), iterations=2)
    assert flatten(config_of(None, ppo=ppo(network)))["network"] == "function network"
    with pytest.raises(
        UserError, match=r"network was the Python function network, .* pass it again, PPOConfig\(network="
    ):
        resumed(part.folder, iterations=4).train()
    with pytest.raises(UserError, match=r"has --network function network, which cannot change on resume"):
        resumed_config(part.folder / "latest.pt", {"network": lambda space: nn.Flatten()})
    with pytest.raises(UserError, match=r"load_policy\(\.\.\., network=\.\.\.\), or move it into a module"):
        load_policy(part.folder)
    resumed(part.folder, iterations=4, network=network).train()
    assert torch.equal(weights(part.folder), weights(whole.folder))
    assert load_policy(part.folder, network=network).act(OBSERVATION) in (0, 1)


def test_flags_and_files_name_the_network_and_whether_it_is_shared(tmp_path):
    ppo = parse_train_start([*SMALL, "--network=nets:small", "--no-share-network"]).config.ppo
    assert (ppo.network, ppo.hidden_sizes, ppo.share_encoder) == ("nets:small", (), False)
    assert parse_train_start([*SMALL, "--network", "nets:small", "--share-network"]).config.ppo.share_encoder
    for content in (
        {"network": "nets:small", "hidden_sizes": [], "share_network": False},
        {"training": {"network": "nets:small", "hidden_sizes": [], "share_network": False}},
    ):
        found = train_settings_of(content, tmp_path / "run.yaml")
        assert found == {"network": "nets:small", "hidden_sizes": (), "share_encoder": False}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"network": "small"},
            r"network must be a function or its name, such as my_networks:small, but got 'small'\.$",
        ),
        ({"network_kwargs": {"width": 3}}, r"network_kwargs are the arguments of network, which is none; set network"),
        ({"network": "nets:small", "network_kwargs": {"act": nn.ReLU}}, r"network_kwargs must hold numbers, texts, "),
    ],
)
def test_settings_of_a_network_that_do_not_fit_are_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        PPOConfig(**settings)


def test_a_study_searches_the_arguments_of_a_network(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text('network_kwargs: [{width: 8}, {width: 16}]\nnetwork: ["nets:small"]')
    values = {each.name: each.edges() for each in read_space(path).of}
    assert values == {"network_kwargs": [{"width": 8}, {"width": 16}], "network": ["nets:small"]}
