"""Names of other libraries are answered with ours."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.familiar_names import _LOOKS, _OURS, _REMARKS, familiar_name, setting_for
from ml_pipeline.config.files import convert_settings
from ml_pipeline.config.flags import flag_of, read_flags
from ml_pipeline.config.settings import hints_of
from ml_pipeline.runs.train_command_line import CommandLine


def answer(line):
    with pytest.raises(UserError) as told:
        read_flags(line.split(), CommandLine, prog="train", description="")
    return str(told.value)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("env", 'Did you mean "--env-id"?'),
        ("num_envs", 'Did you mean "--n-envs"?'),
        ("num_steps", 'Did you mean "--n-steps"?'),
        ("batch_size", 'Did you mean "--minibatch-size"?'),
        ("update_epochs", 'Did you mean "--n-epochs"?'),
        ("n_timesteps", 'Did you mean "--total-timesteps"?'),
        ("clip_coef", 'Did you mean "--clip-range"?'),
        ("anneal_lr", "Say --learning-rate-schedule linear."),
        ("cuda", "Say --device cuda."),
        ("algo", 'Did you mean "--algorithm"?'),
        (
            "buffer_size",
            "Stable-Baselines3's own arguments stand in --algorithm-kwargs, such as '{\"buffer_size\": 50000}'.",
        ),
        ("commission", 'Did you mean "--fee-bps"?'),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(name, answer):
    assert familiar_name(name, {each: flag_of(each) for each in hints_of(CommandLine)}) == f" {answer}"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--lr 3e-4", 'Unknown flag --lr. Did you mean "--learning-rate"?'),
        ("--anneal-lr", "Unknown flag --anneal-lr. Say --learning-rate-schedule linear."),
        ("CartPole-v1", '"CartPole-v1" belongs to no flag; say --env-id CartPole-v1.'),
    ],
)
def test_so_is_a_flag_and_a_word_without_one(line, sentence):
    assert answer(line) == sentence


def test_a_word_without_a_flag_is_given_to_the_setting_that_it_looks_like():
    for word, name in (("mine:Env-v0", "env_id"), ("ALE/Pong-v5", "env_id"), ("a.yaml", "config"), ("b.csv", "data")):
        assert setting_for(word, hints_of(CommandLine)) == name


def test_names_that_all_share_are_taken():
    line = "--n-steps 8 --ent-coef 0.01 --total_timesteps 1e5 --gae-lambda 0.9"
    assert len(read_flags(line.split(), CommandLine, prog="train", description="")) == 4


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
