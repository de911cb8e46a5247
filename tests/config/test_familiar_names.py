"""Names of other libraries are answered with ours."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.familiar_names import _LOOKS, _OURS, _REMARKS, familiar_name, setting_for
from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.flags import flag_of, read_flags
from ml_pipeline.config.settings import hints_of
from ml_pipeline.runs.train_config import CommandLine


def answer(line):
    with pytest.raises(UserError) as told:
        read_flags(line.split(), CommandLine, prog="train", description="")
    return str(told.value)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--lr 3e-4", 'Unknown flag --lr. Did you mean "--learning-rate"?'),
        ("--env CartPole-v1", 'Unknown flag --env. Did you mean "--env-id"?'),
        ("--num_envs 8", 'Unknown flag --num-envs. Did you mean "--n-envs"?'),
        ("--num-steps=128", 'Unknown flag --num-steps. Did you mean "--n-steps"?'),
        ("--batch-size 64", 'Unknown flag --batch-size. Did you mean "--minibatch-size"?'),
        ("--update-epochs 4", 'Unknown flag --update-epochs. Did you mean "--n-epochs"?'),
        ("--n-timesteps 1e6", 'Unknown flag --n-timesteps. Did you mean "--total-timesteps"?'),
        ("--clip-coef 0.1", 'Unknown flag --clip-coef. Did you mean "--clip-range"?'),
        ("--anneal-lr", "Unknown flag --anneal-lr. Say --learning-rate-schedule linear."),
        ("--cuda", "Unknown flag --cuda. Say --device cuda."),
        ("--commission 0.001", 'Unknown flag --commission. Did you mean "--fee-bps"?'),
        ("CartPole-v1", '"CartPole-v1" belongs to no flag; say --env-id CartPole-v1.'),
        ("mine:Env-v0 --seed 1", '"mine:Env-v0" belongs to no flag; say --env-id mine:Env-v0.'),
        ("settings.yaml", '"settings.yaml" belongs to no flag; say --config settings.yaml.'),
    ],
)
def test_a_flag_of_another_library_is_answered_with_ours(line, sentence):
    assert answer(line) == sentence


@pytest.mark.parametrize("line", ["--n-steps 8", "--ent-coef 0.01", "--total_timesteps 1e5", "--gae-lambda 0.9"])
def test_names_that_all_share_are_taken(line):
    assert len(read_flags(line.split(), CommandLine, prog="train", description="")) == 1


def test_a_key_of_another_library_is_answered_with_ours(tmp_path):
    for key, sentence in (
        ("lr", 'unknown setting "lr". Did you mean "learning_rate"?'),
        ("batch-size", 'unknown setting "batch-size". Did you mean "minibatch_size"?'),
        ("anneal_lr", 'unknown setting "anneal_lr". Say learning_rate_schedule linear.'),
        ("n_env", 'unknown setting "n_env". Did you mean "n_envs"?'),
    ):
        with pytest.raises(UserError) as told:
            convert_settings({key: 1}, CommandLine, source=tmp_path / "a.yaml")
        assert str(told.value) == f"{tmp_path / 'a.yaml'}: {sentence}"


def test_layers_are_read_from_a_key_as_from_a_flag(tmp_path):
    for written in ("64,32", "[64, 32]", [64, 32], ["64", "32"]):
        assert convert_settings({"hidden_sizes": written}, CommandLine, source=tmp_path) == {"hidden_sizes": (64, 32)}


def test_every_answer_names_a_setting_and_no_setting_is_answered():
    shown = {name: flag_of(name) for name in hints_of(CommandLine)}
    assert {*_OURS.values(), *_LOOKS.values()} <= {*shown}
    assert not {*_OURS, *_REMARKS} & {*shown}
    for name in (*_OURS, *_REMARKS):
        assert familiar_name(name, shown), name


def test_what_looks_like_nothing_is_given_to_no_setting():
    for word in ("eight", "CartPole", "v1", "a.parquet.bak"):
        assert setting_for(word, hints_of(CommandLine)) is None
