"""Flags win over the file, the file over the run that is resumed, that over defaults; nothing heavy is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import ml_pipeline.runs.train_config
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_settings, write_yaml
from ml_pipeline.config.flags import flag_of, read_flags
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import build, flatten, hints_of
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.train_config import TrainConfig, find_checkpoint, parse_train_start, resumed_config
from ml_pipeline.trading.settings import TradingConfig


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ml_pipeline.runs.train_config, "runs_folder", lambda: tmp_path / "checkpoints")
    return tmp_path


def run_folder(path: Path, config: TrainConfig) -> Path:
    """A run as the trainer leaves it, as far as its settings are concerned."""
    path.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path / "latest.pt", {"config": flatten(config)})
    return path


def test_without_flags_everything_has_its_default(in_tmp):
    start = parse_train_start([])
    assert start.config == TrainConfig()
    assert start.checkpoint is None


def test_flags_win_over_the_file_and_the_file_over_defaults(in_tmp):
    Path("run.json").write_text(json.dumps({"n-envs": 8, "gamma": 0.5}))
    start = parse_train_start(["--gamma", "0.9", "--config", "run.json"])
    assert start.config == TrainConfig(run=RunConfig(n_envs=8), ppo=PPOConfig(gamma=0.9))


def test_a_resumed_run_keeps_its_settings_where_none_are_given(in_tmp):
    ran = TrainConfig(run=RunConfig(n_envs=8, seed=3), ppo=PPOConfig(gamma=0.5, n_epochs=2, clip_range=0.1))
    folder = run_folder(in_tmp / "moved" / "run", ran)
    Path("run.yaml").write_text("n_epochs: 3\nclip_range: 0.3")
    start = parse_train_start(["--resume", "moved/run", "--config", "run.yaml", "--clip-range", "0.4"])
    assert start.checkpoint == folder / "latest.pt"
    assert start.config.ppo == PPOConfig(gamma=0.5, n_epochs=3, clip_range=0.4)
    assert start.config.run == RunConfig(n_envs=8, seed=3, checkpoint_dir=folder)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--env-kwargs", '{"size": 4}'], '--env-kwargs {}, and a resumed run keeps it, but got {"size": 4};'),
        (["--wrappers", "FlattenObservation"], "--wrappers none, and a resumed run keeps it, but got FlattenObs"),
        (["--frame-stack", "2"], "--frame-stack none, and a resumed run keeps it, but got 2;"),
        (["--atari"], "--atari false, and a resumed run keeps it, but got true;"),
    ],
)
@pytest.mark.parametrize("older", [False, True])
def test_a_resumed_run_keeps_its_environment(in_tmp, flags, sentence, older):
    settings = flatten(TrainConfig(run=RunConfig(env_id="CartPole-v1")))
    if older:  # of a version without these settings
        for name in ("env_kwargs", "wrappers", "frame_stack", "atari"):
            del settings[name]
    (in_tmp / "run").mkdir()
    save_checkpoint(in_tmp / "run" / "latest.pt", {"config": settings})
    with pytest.raises(UserError) as told:
        parse_train_start(["--resume", "run", *flags])
    assert sentence in str(told.value)
    assert parse_train_start(["--resume", "run"]).config.run.wrappers == ()


def test_a_resumed_run_may_treat_its_workers_otherwise(in_tmp):
    run_folder(in_tmp / "run", TrainConfig(run=RunConfig(step_timeout_s=5.0)))
    given = ["--step-timeout-s", "60", "--on-worker-failure", "restart", "--n-workers", "1"]
    run = parse_train_start(["--resume", "run", *given]).config.run
    assert (run.step_timeout_s, run.on_worker_failure, run.n_workers) == (60.0, "restart", 1)


def test_settings_are_judged_together_with_those_of_the_resumed_run(in_tmp):
    folder = run_folder(in_tmp / "run", TrainConfig(run=RunConfig(n_envs=8)))
    # 2,048 = 8 * 256 fits the resumed run's 8 environments, and not the default of one.
    assert parse_train_start(["--resume", str(folder), "--minibatch-size", "2048"]).config.run.n_envs == 8


def test_a_minibatch_larger_than_the_rollout_is_told():
    with pytest.raises(UserError, match=r"at most n_envs \* n_steps = 8 \* 256 = 2048, but got 2049"):
        TrainConfig(run=RunConfig(n_envs=8), ppo=PPOConfig(minibatch_size=2049))


@pytest.mark.parametrize(
    ("lower", "upper"), [("num_episodes: 7", "--total-timesteps=1e6"), ("total_timesteps: 7", "--num-episodes=9")]
)
def test_one_length_of_training_replaces_the_other(in_tmp, lower, upper):
    Path("run.yaml").write_text(lower)
    run = parse_train_start(["--config", "run.yaml", upper]).config.run
    assert (run.num_episodes, run.total_timesteps) in {(None, 1_000_000), (9, None)}


def test_the_length_of_a_training_in_steps():
    run = RunConfig(n_envs=8, num_episodes=None, total_timesteps=100_000)
    assert TrainConfig(run=run).timesteps == 100_000
    assert TrainConfig(run=RunConfig(n_envs=8, num_episodes=20)).timesteps == 20 * 8 * 256


def test_paths_do_not_depend_on_the_working_directory(in_tmp):
    assert parse_train_start(["--checkpoint-dir", "runs/a"]).config.run.checkpoint_dir == in_tmp / "runs" / "a"


@pytest.fixture
def several_runs(in_tmp):
    """Runs in checkpoints/, from the oldest to the newest, by name."""
    runs = {
        "prices": TrainConfig(trading=TradingConfig(data=in_tmp / "prices.csv", fee_bps=2.0)),
        "pole, old": TrainConfig(run=RunConfig(env_id="CartPole-v1", n_envs=4)),
        "built-in": TrainConfig(run=RunConfig(n_envs=4, seed=1)),
        "pole": TrainConfig(run=RunConfig(env_id="CartPole-v1", n_envs=2, seed=7)),
        "pendulum": TrainConfig(run=RunConfig(env_id="Pendulum-v1", n_envs=2)),
    }
    for i, (name, config) in enumerate(runs.items()):
        path = run_folder(in_tmp / "checkpoints" / name, config) / "latest.pt"
        os.utime(path, (1e9 + i, 1e9 + i))
    (in_tmp / "checkpoints" / "c").mkdir()  # a run that ended before its first checkpoint
    (in_tmp / "checkpoints" / "d" / "latest.pt").mkdir(parents=True)
    return in_tmp


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ([], "pendulum"),
        (["--learning-rate", "0.1"], "pendulum"),
        (["--env-id", "CartPole-v1"], "pole"),
        (["--env-id", "CartPole-v1", "--seed", "7", "--total-timesteps", "9"], "pole"),
        (["--env-id", "none"], "built-in"),
        (["--data", "none"], "built-in"),
        (["--fee-bps", "5"], "built-in"),
        (["--data", "prices.csv"], "prices"),
        (["--data", "prices.csv", "--fee-bps", "2"], "prices"),
    ],
    ids=" ".join,
)
def test_auto_resumes_the_newest_run_of_the_task_and_says_which(several_runs, flags, name):
    start = parse_train_start(["--resume", "auto", *flags])
    assert start.checkpoint == several_runs / "checkpoints" / name / "latest.pt"
    assert start.notice == f"Resuming the run in checkpoints/{name}."


@pytest.mark.parametrize(
    ("flags", "run", "kept"),
    [
        (["--seed", "3"], "pendulum", "--seed 0"),
        (["--n-envs", "8"], "pendulum", "--n-envs 2"),
        (["--env-id", "CartPole-v1", "--n-envs", "4"], "pole", "--n-envs 2"),  # an older run has 4
        (["--env-id", "CartPole-v1", "--seed", "0"], "pole", "--seed 7"),
        (["--data", "none", "--seed", "0"], "built-in", "--seed 1"),
        (["--data", "prices.csv", "--fee-bps", "5"], "prices", "--fee-bps 2.0"),
        (["--data", "prices.csv", "--window", "3"], "prices", "--window 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_auto_refuses_a_changed_setting_as_naming_the_folder_does(several_runs, flags, run, kept):
    folder = several_runs / "checkpoints" / run
    told = []
    for resume in ("auto", str(folder)):
        with pytest.raises(UserError) as refused:
            parse_train_start(["--resume", resume, *flags])
        told.append(str(refused.value))
    assert told[0] == told[1]
    assert told[0].startswith(f"The run in {folder} has {kept}, and a resumed run keeps it, but got ")


@pytest.mark.parametrize(
    ("flags", "whose"),
    [
        (["--env-id", "Acrobot-v1"], " of Acrobot-v1"),
        (["--data", "other.csv"], " of this market"),
        (["--features", "rsi_14"], " of this market"),
        (["--data", "prices.csv", "--symbols", "A"], " of this market"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_auto_begins_a_new_run_where_the_task_has_none_and_says_so(several_runs, flags, whose):
    start = parse_train_start(["--resume", "auto", *flags])
    assert start.checkpoint is None
    assert start.notice == f"There is no run{whose} to resume in checkpoints yet, so a new one begins."


def test_auto_begins_a_run_where_there_is_none_at_all(in_tmp):
    start = parse_train_start(["--resume", "auto"])
    assert start.checkpoint is None
    assert start.notice == "There is no run to resume in checkpoints yet, so a new one begins."
    assert parse_train_start([]).notice is None


def test_auto_takes_no_older_run_in_place_of_one_that_cannot_be_read(several_runs):
    newest = several_runs / "checkpoints" / "newest"
    newest.mkdir()
    (newest / "latest.pt").write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"cannot be read as a checkpoint: .* Name the run to resume in place of auto"):
        parse_train_start(["--resume", "auto", "--env-id", "CartPole-v1"])


def test_auto_looks_only_into_the_folder_that_is_given(in_tmp):
    run_folder(in_tmp / "checkpoints" / "a", TrainConfig())
    assert parse_train_start(["--resume", "auto", "--checkpoint-dir", "mine"]).checkpoint is None
    mine = run_folder(in_tmp / "mine", TrainConfig())
    assert parse_train_start(["--resume", "auto", "--checkpoint-dir", "mine"]).checkpoint == mine / "latest.pt"


def test_a_checkpoint_file_is_resumed_with_its_own_settings_wherever_it_lies(in_tmp):
    folder = run_folder(in_tmp / "run", TrainConfig(run=RunConfig(seed=5, checkpoint_dir=in_tmp / "run")))
    (in_tmp / "moved").mkdir()
    moved = (folder / "latest.pt").rename(in_tmp / "moved" / "mine.pt")
    start = parse_train_start(["--resume", "moved/mine.pt"])
    assert start.checkpoint == moved
    assert start.config.run == RunConfig(seed=5, checkpoint_dir=in_tmp / "moved")


@pytest.mark.parametrize("written", [None, "seed: 6\nn_envs: 3\n", "seed: [5\n", "\0\0\0"], ids=repr)
def test_a_config_file_that_is_gone_edited_or_torn_changes_nothing(in_tmp, written):
    folder = run_folder(in_tmp / "checkpoints" / "run", TrainConfig(run=RunConfig(seed=5)))
    if written is not None:
        (folder / "config.yaml").write_text(written)
    for resume in ("checkpoints/run", "checkpoints/run/latest.pt", "auto"):
        assert parse_train_start(["--resume", resume]).config.run == RunConfig(seed=5, checkpoint_dir=folder)


def test_settings_to_resume_with_are_those_of_the_checkpoint_with_changes(in_tmp):
    checkpoint = run_folder(in_tmp / "run", TrainConfig(run=RunConfig(seed=5))) / "latest.pt"
    run = resumed_config(checkpoint, {"total_timesteps": 4096}).run
    assert run == RunConfig(seed=5, num_episodes=None, total_timesteps=4096, checkpoint_dir=in_tmp / "run")
    with pytest.raises(UserError, match="has --seed 5, and a resumed run keeps it, but got 6"):
        resumed_config(checkpoint, {"seed": 6})


def test_a_checkpoint_is_trusted_only_where_one_is_resumed(in_tmp):
    run_folder(in_tmp / "run", TrainConfig())
    assert not parse_train_start(["--resume", "run"]).trust_checkpoint
    assert parse_train_start(["--resume", "run", "--trust-checkpoint"]).trust_checkpoint
    with pytest.raises(UserError, match="--trust-checkpoint is about the run that --resume names; leave it out"):
        parse_train_start(["--trust-checkpoint"])


def test_resuming_what_is_not_there_is_told(in_tmp):
    with pytest.raises(UserError) as told:
        find_checkpoint("run", {})
    expected = f"There is no checkpoint at {in_tmp / 'run'}; name a run folder or a .pt file, or say --resume auto."
    assert str(told.value) == expected


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("n_envs", 0, "n_envs must be a whole number of at least 1, but got 0."),
        ("num_episodes", -1, "num_episodes must be a whole number of at least 1, but got -1."),
        ("n_workers", -1, "n_workers must be a whole number of at least 0, but got -1."),
        (
            "n_workers",
            3,
            "n_workers must be at most n_envs = 1, but got 3; lower it to 1, or leave it to auto.",
        ),
        ("device", "xla", 'device must be one of auto, cpu, cuda, mps, but got "xla".'),
        ("seed", -1, "seed must be a whole number of at least 0, but got -1."),
        ("seed", 2**32, "seed must lie between 0 and 4294967295, but got 4294967296."),
        ("total_timesteps", 9, "One of num_episodes and total_timesteps must be set, but got both."),
        ("num_episodes", None, "One of num_episodes and total_timesteps must be set, but got none."),
    ],
)
def test_a_run_out_of_range_is_told_in_one_sentence(setting, value, sentence):
    with pytest.raises(UserError) as told:
        RunConfig(**{setting: value})
    assert str(told.value) == sentence


def test_a_flag_of_the_market_with_another_environment_is_told(in_tmp):
    with pytest.raises(UserError) as told:
        parse_train_start(["--env-id", "CartPole-v1", "--data", "prices.csv"])
    expected = "--data is about trading, but the environment is CartPole-v1; leave one of the two out."
    assert str(told.value) == expected


def test_episodes_of_evaluation_are_no_setting_of_a_market(in_tmp):
    with pytest.raises(UserError, match="--eval-episodes is about an environment of --env-id"):
        parse_train_start(["--eval-episodes", "3"])
    assert parse_train_start(["--eval-episodes", "3", "--env-id", "CartPole-v1"]).config.run.eval_episodes == 3


def test_a_start_method_that_this_platform_lacks_is_told(monkeypatch):
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(UserError, match='parallel_start_method must be one of spawn, but got "fork"'):
        RunConfig(parallel_start_method="fork")


def test_every_setting_has_a_sentence_in_the_help(capsys):
    with pytest.raises(SystemExit):
        parse_train_start(["--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in (*hints_of(TrainConfig), "config", "resume"):
        after = shown.split(f" --{name.replace('_', '-')}", maxsplit=1)[1]
        sentence, _, _ = after.partition(" (default: ")
        assert sentence.endswith("."), name
        assert len(sentence.split()) > 4, name


@pytest.mark.slow
def test_every_setting_can_be_given_as_a_flag():
    for name, default in flatten(TrainConfig()).items():
        values = default if isinstance(default, list) else [default]
        words = ["none" if value is None else str(value) for value in values] or ["none"]
        argv = [flag_of(name), *words]
        if isinstance(default, bool):
            argv = [flag_of(name) if default else f"--no-{flag_of(name).removeprefix('--')}"]
        read = read_flags(argv, TrainConfig, prog="train_ppo.py", description="")
        assert list(read) == [name]
        assert build(TrainConfig, read) == TrainConfig()


positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
fraction = st.floats(0, 1)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "env_id": st.text(min_size=1).filter(lambda name: name != "none"),
            "n_envs": st.integers(1, 512),
            "n_workers": st.sampled_from(["auto", 0, 1]),
            "checkpoint_dir": st.sampled_from(["/runs/1", "/runs/a b/ü", "/0700"]).map(Path),
            "seed": st.integers(0, 2**32 - 1),
            "minibatch_size": st.integers(1, 256),
            "learning_rate": positive,
            "gamma": fraction,
            "target_kl": st.none() | positive,
            "hidden_sizes": st.lists(st.integers(1, 1024), min_size=1).map(tuple),
            "normalize_obs": st.booleans(),
            "activation": st.sampled_from(["tanh", "relu"]),
        },
    )
)
def test_the_written_config_is_loaded_equal(tmp_path_factory, values):
    config = build(TrainConfig, values)
    path = tmp_path_factory.mktemp("run") / "config.yaml"
    write_yaml(path, flatten(config))
    assert build(TrainConfig, read_settings(path, TrainConfig)) == config
    assert parse_train_start(["--config", str(path)]).config == config


def test_the_written_config_is_plain_yaml_with_every_setting(tmp_path):
    write_yaml(tmp_path / "config.yaml", flatten(TrainConfig()))
    flat = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert list(flat) == list(hints_of(TrainConfig))
    assert flat["hidden_sizes"] == [64, 64]
    assert flat["learning_rate"] == 0.0003


HEAVY = {"torch", "gymnasium", "polars", "matplotlib"}
PARSE = f"""
import sys
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.train_config import parse_train_start
try:
    with entry("train_ppo.py"):
        parse_train_start(sys.argv[1:])
finally:
    heavy = {HEAVY} & sys.modules.keys()
    assert not heavy, heavy
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (["--n-envs", "8"], 0, ""),
        (["--help"], 0, ""),
        (["--n-env", "8"], 2, 'train_ppo.py: Unknown flag --n-env. Did you mean "--n-envs"?\n'),
        (["--n-envs", "0"], 2, "train_ppo.py: n_envs must be a whole number of at least 1, but got 0.\n"),
        (["--config", "nope"], 2, "train_ppo.py: nope cannot be read: No such file or directory.\n"),
    ],
)
def test_the_command_line_is_answered_before_anything_heavy_is_imported(argv, code, complaint):
    run = subprocess.run([sys.executable, "-c", PARSE, *argv], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (code, complaint)


def test_auto_takes_the_newest_run_that_agrees_with_what_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr("ml_pipeline.runs.train_config.runs_folder", lambda: tmp_path)
    for age, (name, env_id) in enumerate({"old": "CartPole-v1", "new": "Acrobot-v1"}.items()):
        run_folder(tmp_path / name, TrainConfig(run=RunConfig(env_id=env_id)))
        os.utime(tmp_path / name / "latest.pt", (age, age))
    assert find_checkpoint("auto", {}) == tmp_path / "new" / "latest.pt"
    assert find_checkpoint("auto", {"env_id": "CartPole-v1"}) == tmp_path / "old" / "latest.pt"
    assert find_checkpoint("auto", {"env_id": "Pendulum-v1"}) is None


def test_seeds_are_trained_one_after_another():
    assert parse_train_start(["--seeds", "1", "2", "30"]).seeds == (1, 2, 30)
    assert parse_train_start([]).seeds == ()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--seeds", "1", "-2"], r"seed must be a whole number of at least 0, but got -2"),
        (["--seeds", "1", "2", "1"], r"seeds must be different numbers, but got 1 2 1\."),
        (["--seeds", "1", "--seed", "0"], "--seeds begins a new run for each seed, so that --seed does not go with it"),
        (["--seeds", "1", "--resume", "auto"], "so that --resume does not go with it"),
        (["--seeds", "1", "--check-env"], "so that --check-env does not go with it"),
        (["--seeds", "one"], "--seeds must be whole numbers, but got"),
    ],
)
def test_seeds_that_cannot_be_are_one_sentence(flags, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_train_start(flags)


def test_a_file_in_sections_is_read_and_flags_win_over_it():
    example = Path(__file__).parents[2] / "configs" / "fast_training_ppo.json"
    config = parse_train_start(["--config", str(example), "--gamma", "0.9"]).config
    assert (config.run.total_timesteps, config.run.num_episodes) == (100_352, None)
    assert (config.ppo.ent_coef, config.ppo.gamma, config.ppo.minibatch_size) == (0.01, 0.9, 256)
    assert (config.trading.reward, config.trading.reward_kwargs) == ("fast_profit_reward", {"reward_scaling": 10_000.0})
    assert config.trading.trade_limit_percent == 50
    assert not config.trading.allow_short


def test_a_file_may_give_the_length_of_training_alone(tmp_path):
    (tmp_path / "settings.yaml").write_text("total_timesteps: 4096\n")
    run = parse_train_start(["--config", str(tmp_path / "settings.yaml")]).config.run
    assert (run.total_timesteps, run.num_episodes) == (4096, None)
