"""`VectorizedEnvConfig`: names that users know, and one sentence about what cannot be used."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.service import VectorizedEnvConfig


def test_the_usual_values():
    usual = VectorizedEnvConfig()
    assert usual.model_dump() == {
        "env_type": "auto",
        "num_envs": 4,
        "max_concurrent_envs": 8,
        "enable_monitoring": True,
    }


def test_types_are_what_exists():
    settings = {kind: VectorizedEnvConfig(env_type=kind).settings(4) for kind in ("DummyVecEnv", "auto", "batched")}
    assert settings == {"DummyVecEnv": {"vec_env": "serial"}, "auto": {}, "batched": {"vec_env": "batched"}}
    assert 1 <= VectorizedEnvConfig(env_type="SubprocVecEnv").settings(4)["n_workers"] <= 4
    assert VectorizedEnvConfig(env_type="SubprocVecEnv").settings(1) == {"n_workers": 1}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"num_env": 3}, 'vectorized: unknown setting "num_env". Did you mean "num_envs"?'),
        ({"env_type": "SubprocEnv"}, "but got 'SubprocEnv'. Did you mean \"SubprocVecEnv\"?"),
        ({"num_envs": 0}, "num_envs must be a whole number of at least 1, but got 0."),
        ({"num_envs": "4"}, "num_envs must be a whole number of at least 1, but got '4'."),
        ({"num_envs": True}, "num_envs must be a whole number of at least 1, but got True."),
        ({"max_concurrent_envs": 2.5}, "max_concurrent_envs must be a whole number of at least 1, but got 2.5."),
        ({"enable_monitoring": "yes"}, "enable_monitoring must be true or false, but got 'yes'."),
        ({"num_envs": 9}, "num_envs is 9, but max_concurrent_envs is 8; lower the first or raise the second"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(values, sentence):
    for make in (lambda: VectorizedEnvConfig(**values), lambda: VectorizedEnvConfig.of(values)):
        with pytest.raises(UserError) as caught:
            make()
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)


def test_the_usual_number_keeps_a_lower_limit():
    assert VectorizedEnvConfig(max_concurrent_envs=2).num_envs == 2
    with pytest.raises(UserError, match="n_envs is 3, but max_concurrent_envs is 2"):
        VectorizedEnvConfig(max_concurrent_envs=2).require_allowed(3)
    with pytest.raises(UserError, match="vectorized must be a section of settings, but got 3"):
        VectorizedEnvConfig.of(3)
