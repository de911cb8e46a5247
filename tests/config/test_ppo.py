"""PPOConfig says in one sentence what is wrong with a value, and names the nearest batch that works."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("n_steps", 0, "n_steps must be a whole number of at least 1, but got 0."),
        ("n_epochs", -3, "n_epochs must be a whole number of at least 1, but got -3."),
        ("minibatch_size", 2.5, "minibatch_size must be a whole number of at least 1, but got 2.5."),
        ("learning_rate", 0.0, "learning_rate must be above 0 and finite, but got 0.0."),
        ("learning_rate", "x", "learning_rate must be a number, but got 'x'."),
        ("gamma", "high", "gamma must be a number, but got 'high'."),
        ("vf_coef", True, "vf_coef must be a number, but got True."),
        ("clip_range", math.inf, "clip_range must be above 0 and finite, but got inf."),
        ("target_kl", -0.1, "target_kl must be above 0 and finite, but got -0.1; leave it out to switch it off."),
        ("ent_coef", math.nan, "ent_coef must be at least 0 and finite, but got nan."),
        ("vf_coef", math.inf, "vf_coef must be at least 0 and finite, but got inf."),
        ("gamma", 1.01, "gamma must lie between 0 and 1, but got 1.01."),
        ("gae_lambda", math.nan, "gae_lambda must lie between 0 and 1, but got nan."),
        (
            "activation",
            "rellu",
            'activation must be one of tanh, relu, elu, gelu, silu, leaky_relu, but got "rellu". Did you mean "relu"?',
        ),
        ("clip_range_schedule", "x", 'clip_range_schedule must be one of constant, linear, cosine, but got "x".'),
        (
            "learning_rate_schedule",
            "adaptive",
            "learning_rate_schedule adaptive needs target_kl to adapt to, such as 0.01, but got none.",
        ),
        (
            "ent_coef_schedule",
            "linear",
            "ent_coef_schedule is linear, but ent_coef is 0; set ent_coef, such as to 0.01.",
        ),
        (
            "memory_size",
            32,
            "memory_size is 32, but memory is none; set memory to gru or lstm, or leave it out.",
        ),
        ("clip_obs", 0.0, "clip_obs must be above 0 and finite, but got 0.0."),
        (
            "sequence_length",
            32,
            "sequence_length is 32, but memory is none; set memory to gru or lstm, or leave it out.",
        ),
        ("sequence_length", 0, "sequence_length must be a whole number of at least 1, but got 0."),
        ("log_std_init", -30, "log_std_init must lie between -20 and 20, but got -30."),
        ("sde_sample_freq", 0, "sde_sample_freq must be a whole number of at least 1, but got 0."),
        (
            "sde_sample_freq",
            4,
            "sde_sample_freq is 4, but use_sde is off; switch it on, or leave sde_sample_freq out.",
        ),
        ("memory", "rnn", 'memory must be one of none, gru, lstm, but got "rnn".'),
        ("value_hidden_sizes", (8, 0), "Each of value_hidden_sizes must be a whole number of at least 1, but got 0."),
        ("hidden_sizes", (64, 0), "Each of hidden_sizes must be a whole number of at least 1, but got 0."),
    ],
)
def test_a_value_out_of_range_is_told_in_one_sentence(setting, value, expected):
    with pytest.raises(UserError) as told:
        PPOConfig(**{setting: value})
    assert str(told.value) == expected


def test_normalizing_over_the_batch_and_not_at_all_contradict_each_other():
    with pytest.raises(UserError, match="normalize_advantages_over is batch, but normalize_advantages is off"):
        PPOConfig(normalize_advantages=False, normalize_advantages_over="batch")


def test_the_spelling_of_the_zoo_is_a_linear_schedule():
    config = PPOConfig(learning_rate="lin_2.5e-4", clip_range="lin_0.1", ent_coef="lin_0.01")
    assert config == PPOConfig(
        learning_rate=2.5e-4, learning_rate_schedule="linear", clip_range=0.1, clip_range_schedule="linear",
        ent_coef=0.01, ent_coef_schedule="linear",
    )  # fmt: skip
    with pytest.raises(UserError, match="learning_rate must be a number, but got 'lin_fast'"):
        PPOConfig(learning_rate="lin_fast")


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "ent_coef"])
def test_a_function_is_its_own_schedule(name):
    def half(left):
        return 0.5 * left

    assert getattr(PPOConfig(**{name: half}), name) is half
    with pytest.raises(UserError, match=f"{name} is a function, but {name}_schedule is linear; leave the schedule out"):
        PPOConfig(**{name: half, f"{name}_schedule": "linear"})


def test_what_is_not_normalized_is_not_clipped():
    with pytest.raises(
        UserError, match=r"clip_obs is 5\.0, but normalize_obs is off, and only normalized observations"
    ):
        PPOConfig(normalize_obs=False, clip_obs=5.0)


def test_noise_by_state_is_not_squashed():
    with pytest.raises(UserError, match="use_sde explores without tanh, but squash_actions is on; switch one of them"):
        PPOConfig(use_sde=True, squash_actions=True)


def test_noise_lasts_a_step_a_rollout_or_as_long_as_said():
    lasting = [{}, {"use_sde": True}, {"use_sde": True, "sde_sample_freq": 4}]
    assert [PPOConfig(n_steps=64, **settings).steps_per_noise for settings in lasting] == [1, 64, 4]


def test_shared_layers_have_no_sizes_of_one_network_alone():
    with pytest.raises(UserError, match="share_layers gives both networks the layers of hidden_sizes; leave value_"):
        PPOConfig(share_layers=True, value_hidden_sizes=(64, 64))


def test_shared_layers_have_one_encoder():
    with pytest.raises(UserError, match="share_layers shares the convolutions of images too; leave share_encoder on"):
        PPOConfig(share_layers=True, share_encoder=False)


def test_the_length_of_a_sequence_divides_a_rollout():
    with pytest.raises(UserError) as told:
        PPOConfig(n_steps=100, memory="gru", sequence_length=16)
    assert str(told.value) == ("sequence_length must divide n_steps = 100, but got 16; 20 is the nearest that does.")
    assert PPOConfig(n_steps=100, memory="gru", sequence_length=20).sequence_length == 20


@pytest.mark.parametrize(("setting", "value"), [("gamma", 0.0), ("gamma", 1.0), ("ent_coef", 0.0), ("target_kl", None)])
def test_the_ends_of_a_range_belong_to_it(setting, value):
    assert getattr(PPOConfig(**{setting: value}), setting) == value


def test_value_clipping_and_early_stopping_are_off_by_default():
    assert (PPOConfig().clip_range_vf, PPOConfig().target_kl) == (None, None)


@given(n_envs=st.integers(1, 64), n_steps=st.integers(1, 512), minibatch_size=st.integers(1, 8192))
def test_a_minibatch_may_be_as_large_as_the_rollout_and_no_larger(n_envs, n_steps, minibatch_size):
    config = PPOConfig(n_steps=n_steps, minibatch_size=minibatch_size)
    if minibatch_size <= n_envs * n_steps:
        config.check_batch(n_envs)
    else:
        with pytest.raises(UserError, match=f"lower it to {n_envs * n_steps}, or raise n_steps"):
            config.check_batch(n_envs)


def test_the_remedy_for_a_minibatch_that_is_too_large_works():
    # 5 environments x 100 steps = 500 < 1001; ceil(1001 / 5) = 201 steps are enough, 200 are one short.
    with pytest.raises(UserError) as told:
        PPOConfig(n_steps=100, minibatch_size=1001).check_batch(n_envs=5)
    assert str(told.value) == (
        "minibatch_size must be at most n_envs * n_steps = 5 * 100 = 500, but got 1001; "
        "lower it to 500, or raise n_steps to 201."
    )
    PPOConfig(n_steps=201, minibatch_size=1001).check_batch(n_envs=5)


def test_importing_the_configuration_pulls_in_no_library():
    libraries = {"torch", "numpy", "pydantic", "tyro", "yaml"}
    code = f"import sys, ml_pipeline.config.ppo; print(sorted({libraries} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
