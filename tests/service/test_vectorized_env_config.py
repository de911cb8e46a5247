"""`VectorizedEnvConfig`: names that users know, and one sentence about what cannot be used."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import RunConfig
from ml_pipeline.service import VectorizedEnvConfig
from ml_pipeline.service.agent.config import agent_config


def test_the_usual_values():
    usual = VectorizedEnvConfig()
    assert usual.model_dump() == {
        "env_type": "auto",
        "num_envs": 4,
        "max_concurrent_envs": 8,
        "enable_monitoring": True,
    }


def test_types_are_what_exists():
    settings = {kind: VectorizedEnvConfig(env_type=kind).settings() for kind in ("DummyVecEnv", "auto", "batched")}
    assert settings == {"DummyVecEnv": {"vec_env": "DummyVecEnv"}, "auto": {}, "batched": {"vec_env": "batched"}}
    for n_envs in (4, 1):
        run = RunConfig(n_envs=n_envs, **VectorizedEnvConfig(env_type="SubprocVecEnv").settings())
        assert 1 <= run.n_workers <= n_envs


def test_a_number_of_none_is_left_to_be_chosen():
    assert VectorizedEnvConfig(num_envs=None).model_fields_set == set()
    assert agent_config({"vectorized": {"num_envs": None}}).n_envs is None


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
        (
            {"num_envs": 9},
            "num_envs is 9, but max_concurrent_envs is 8; raise max_concurrent_envs in",
        ),
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
