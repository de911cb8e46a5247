"""A configuration in its familiar shape becomes our settings; what is wrong in it is said in a sentence."""

import json
from pathlib import Path

import pytest
import yaml

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import build
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig, read_train_settings
from ml_pipeline.service import VectorizedEnvConfig
from ml_pipeline.service.agent_config import agent_config

FAMILIAR = {
    "algorithm": "PPO",
    "environment": {
        "observation_feature_cols": ["rsi_14", "ema_10", "ema_20"],
        "initial_balance": 100_000,
        "action_type": "discrete",
    },
    "training": {"total_timesteps": 500_000, "log_interval": 1000},
}


def test_the_familiar_shape():
    agent = agent_config(FAMILIAR)
    config = agent.train
    assert config.trading.features == ("rsi_14", "ema_10", "ema_20")
    assert config.trading.initial_cash == 100_000
    assert config.trading.action_mode == "discrete"
    assert config.run.total_timesteps == 500_000
    assert config.run.iterations is None
    assert agent.logging.log_interval == 1000
    assert agent.logging.log_file is None
    assert agent.n_envs is None


def test_a_dict_a_file_and_settings_are_the_same(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(FAMILIAR))
    (tmp_path / "a.json").write_text(json.dumps(FAMILIAR))
    agents = [agent_config(each) for each in (FAMILIAR, tmp_path / "a.yaml", str(tmp_path / "a.json"))]
    assert agents[0] == agents[1] == agents[2]
    assert agent_config(agents[0].train).train == agents[0].train
    assert agent_config(agents[0]) is agents[0]


def test_the_train_command_takes_the_same_file(tmp_path):
    content = {
        **FAMILIAR,
        "vectorized": {"env_type": "DummyVecEnv", "num_envs": 6},
        "logging": {"log_file": "logs/training.log"},
        "monitoring": {"monitor_path": "logs/m"},
    }
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump(content))
    by_agent, by_command = (
        agent_config(path).train,
        build(TrainConfig, read_train_settings(path) | {"iterations": None}),
    )
    assert by_agent == by_command == parse_train_start(["--config", str(path)]).config
    assert (by_agent.run.n_envs, by_agent.run.vec_env) == (6, "serial")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"action_type": "continuous"}, {"action_mode": "target_weights"}),
        ({"symbols": ["A", "B"], "data_dir": "/x"}, {"symbols": ("A", "B"), "data": Path("/x"), "per_symbol": True}),
        ({"symbols": "A"}, {"symbols": ("A",), "per_symbol": True}),
        ({"transaction_cost": 0.001, "slippage": 0.0002},
         {"fee_bps": pytest.approx(10), "slippage_bps": pytest.approx(2)}),
        ({"window_size": 5, "max_steps": 99}, {"window": 5, "episode_length": 99}),
        ({"allow_short": False, "timeframe": "4h"}, {"allow_short": False, "timeframe": "4h"}),
        ({"observation_feature_cols": ["RSI_14", "sma_20", "macd", "atr_14", "ema:10"]},
         {"features": ("rsi_14", "sma_20", "macd", "atr_14", "ema_10")}),
    ],
)  # fmt: skip
def test_names_of_the_environment_are_ours(environment, expected):
    trading = agent_config({"environment": environment}).train.trading
    assert {name: getattr(trading, name) for name in expected} == expected


def test_names_of_training_are_ours():
    training = {"n_steps": 64, "batch_size": 32, "n_epochs": 3, "learning_rate": 1e-3, "gamma": 0.9, "seed": 4,
                "policy_kwargs": {"net_arch": [32, 32]}, "verbose": 1, "eval_interval": 5}  # fmt: skip
    config = agent_config({"training": training}).train
    assert (config.ppo.n_steps, config.ppo.minibatch_size, config.ppo.n_epochs) == (64, 32, 3)
    assert (config.ppo.learning_rate, config.ppo.gamma, config.ppo.hidden_sizes) == (1e-3, 0.9, (32, 32))
    assert (config.run.seed, config.run.eval_interval) == (4, 5)


def train_of(training, **others):
    return agent_config({"algorithm": "DQN", "environment": "CartPole-v1", "training": training, **others}).train


def test_arguments_of_another_algorithm_may_stand_in_training():
    pytest.importorskip("stable_baselines3")
    arguments = {"buffer_size": 5000, "learning_starts": 100, "exploration_fraction": 0.2}
    alone = train_of({"total_timesteps": 512, "n_steps": 64, "verbose": 1, **arguments})
    assert alone.run.algorithm_kwargs == arguments
    assert (alone.run.total_timesteps, alone.ppo.n_steps) == (512, 64)
    settings = {"total_timesteps": 512, "n_steps": 64}
    assert train_of(settings | {"algorithm_kwargs": arguments}) == alone
    assert train_of({**settings, "algorithm_kwargs": {"buffer_size": 5000}, **dict([*arguments.items()][1:])}) == alone
    assert train_of(settings, kwargs=arguments) == alone
    agent = {"algo": "DQN", "kwargs": arguments}
    assert agent_config({"environment": "CartPole-v1", "training": settings, "agent_config": agent}).train == alone


def test_arguments_that_are_settings_too_become_those_and_texts_become_numbers():
    pytest.importorskip("stable_baselines3")
    config = train_of({
        "learning_rate": "1e-3", "batch_size": 64, "tau": "5e-3", "buffer_size": "1e4", "policy": "MlpPolicy",
        "policy_kwargs": {"net_arch": [8, 8]},
    })  # fmt: skip
    assert (config.ppo.learning_rate, config.ppo.minibatch_size, config.ppo.hidden_sizes) == (1e-3, 64, (8, 8))
    assert config.run.algorithm_kwargs == {"tau": 0.005, "buffer_size": 10_000}
    assert train_of({"ent_coef": 0.25, "n_steps": 16}, algorithm="A2C").ppo.ent_coef == 0.25


@pytest.mark.parametrize(
    ("training", "sentence"),
    [
        ({"bufer_size": 5}, 'DQN has no argument "bufer_size". Did you mean "buffer_size"?'),
        ({"learning_start": 5}, 'DQN has no argument "learning_start". Did you mean "learning_starts"?'),
        ({"total_timestep": 5}, 'unknown setting "total_timestep" in training. Did you mean "total_timesteps"?'),
        ({"lr": 5}, 'unknown setting "lr" in training. Did you mean "learning_rate"?'),
        ({"clip_range": 0.3}, 'DQN has no argument "clip_range"'),
        ({"buffer_size": 5, "algorithm_kwargs": {"buffer_size": 6}}, "buffer_size is set twice"),
        ({"buffer_size": "many"}, "buffer_size of DQN must be a whole number of at least 0, but got 'many'"),
        ({"algorithm_kwargs": 3}, "algorithm_kwargs must be named values"),
        ({"algorithm_kwargs": 3, "tau": 0.5}, "algorithm_kwargs is set twice"),
    ],
)
def test_what_is_wrong_in_training_of_another_algorithm_is_one_sentence(training, sentence):
    pytest.importorskip("stable_baselines3")
    with pytest.raises(UserError) as caught:
        train_of(training)
    assert sentence in str(caught.value)


def test_minibatches_may_be_of_several_environments():
    training = {"n_steps": 32, "batch_size": 128}
    assert agent_config({"training": training}).train.ppo.minibatch_size == 128
    assert agent_config({"environment": "CartPole-v1", "training": training}).train.run.n_envs == 4
    with pytest.raises(UserError, match="minibatch_size must be at most n_envs"):
        agent_config({"training": training, "vectorized": {"num_envs": 2}})


def test_a_gymnasium_environment_may_stand_in_the_section():
    for environment in ("CartPole-v1", {"env_id": "CartPole-v1"}):
        assert agent_config({"environment": environment}).train.run.env_id == "CartPole-v1"


def test_where_it_logs():
    logging = agent_config(
        {"logging": {"log_file": True, "log_interval": 7}, "monitoring": {"monitor_path": "x/y"}}
    ).logging
    assert (logging.log_file, logging.log_interval) == (Path("logs/training.log"), 7)
    assert logging.monitor_path == Path("x/y")
    assert agent_config({"logging": {"log_file": False}}).logging.log_file is None


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"enviroment": {}}, 'unknown setting "enviroment". Did you mean'),
        ({"environment": {"initial_balence": 1}},
         'unknown setting "initial_balence" in environment. Did you mean "initial_balance"?'),
        ({"training": {"total_timestep": 1}},
         'unknown setting "total_timestep" in training. Did you mean "total_timesteps"?'),
        ({"training": {"lr": 1}}, 'unknown setting "lr" in training. Did you mean "learning_rate"?'),
        ({"logging": {"logfile": 1}}, 'unknown setting "logfile" in logging. Did you mean "log_file"?'),
        ({"vectorized": {"env_typ": 1}}, 'unknown setting "env_typ". Did you mean "env_type"?'),
        ({"environment": {"observation_feature_cols": ["rsj_14"]}},
         'There is no feature "rsj_14". Did you mean "rsi_14"?'),
        ({"environment": {"observation_feature_cols": "rsi_14"}},
         'must be a list such as ["rsi_14", "ema_10"], but got \'rsi_14\''),
        ({"environment": {"observation_feature_cols": [14]}}, "must be a list such as"),
        ({"environment": {"observation_feature_cols": ["rsi_14", "rsi_14"]}}, "names rsi_14 twice; name each"),
        ({"environment": {"observation_feature_cols": ["rsi_14", "RSI:14"]}}, "twice, which is the same as rsi_14"),
        ({"environment": {"action_type": "multi"}},
         'action_type must be "discrete" or "continuous", but got \'multi\''),
        ({"environment": {"initial_balance": "much"}}, 'initial_cash must be a number, but got "much"'),
        ({"environment": [1]}, "environment must be a section of settings, but got [1]"),
        ({"training": {"total_timesteps": "many"}}, 'total_timesteps must be a whole number or none, but got "many"'),
        ({"training": {"log_interval": 0}}, "log_interval must be a whole number of at least 1, but got 0"),
        ({"training": {"log_interval": 3}, "logging": {"log_interval": 4}}, "log_interval is set twice; keep one"),
        ({"logging": {"log_file": 3}}, "log_file must be a path, true or false, but got 3"),
        ({"monitoring": {"monitor_path": None}}, "monitor_path must be a path; enable_monitoring: false"),
        ({"vectorized": 3}, "vectorized must be a section of settings, but got 3"),
        ({"vectorized": {"num_envs": 2}, "n_envs": 3}, "n_envs is 3, but num_envs, which means the same, is 2"),
        (3, "config must be a dict, the path of a YAML or JSON file, or a TrainConfig, but got int"),
        (None, "but got NoneType"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(config, sentence):
    with pytest.raises(UserError) as caught:
        agent_config(config)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"gone.yaml cannot be read: No such file"):
        agent_config(tmp_path / "gone.yaml")


def test_nothing_handed_in_is_changed():
    config = json.loads(json.dumps(FAMILIAR))
    agent_config(config)
    assert config == FAMILIAR


def test_what_two_sections_agree_on_is_no_conflict():
    config = agent_config(
        {
            "vectorized": {"num_envs": 2},
            "n_envs": 2,
            "training": {"log_interval": 3},
            "logging": {"log_interval": 3},
        }
    )
    assert (config.n_envs, config.logging.log_interval) == (2, 3)


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
