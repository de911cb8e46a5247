"""What is handed to the service becomes the settings of a run."""

from ml_pipeline.service import VectorizedEnvConfig
from ml_pipeline.service.submission import submitted_config


def test_how_environments_are_stepped_may_be_an_object():
    vectorized = VectorizedEnvConfig(env_type="DummyVecEnv", num_envs=3)
    run = submitted_config({"env_id": "CartPole-v1", "vectorized": vectorized}).run
    assert (run.n_envs, run.vec_env) == (3, "serial")
    lower = submitted_config({"env_id": "CartPole-v1", "vectorized": VectorizedEnvConfig(max_concurrent_envs=2)})
    assert lower.run.n_envs == 2
