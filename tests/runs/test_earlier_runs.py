"""A run that is resumed keeps its settings, and auto or a settings file find the newest that fits."""

import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import LostFunction, build, flatten
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.earlier_runs import KEPT, MAY_CHANGE, find_checkpoint, resumed_config
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.settings import TradingConfig


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ml_pipeline.runs.earlier_runs.runs_folder", lambda: tmp_path / "checkpoints")
    return tmp_path


def run_folder(path: Path, config: TrainConfig) -> Path:
    """A run as the trainer leaves it, as far as its settings are concerned."""
    path.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path / "latest.pt", {"config": flatten(config), "trainer": {}})
    return path


def test_a_resumed_run_keeps_its_settings_where_none_are_given(in_tmp):
    ran = TrainConfig(run=RunConfig(n_envs=8, seed=3), ppo=PPOConfig(gamma=0.5, n_epochs=2, clip_range=0.1))
    folder = run_folder(in_tmp / "moved" / "run", ran)
    Path("run.yaml").write_text("n_epochs: 3\nclip_range: 0.3")
    start = parse_train_start(["--resume", "moved/run", "--config", "run.yaml", "--clip-range", "0.4"])
    assert start.checkpoint == folder / "latest.pt"
    assert start.config.ppo == PPOConfig(gamma=0.5, n_epochs=3, clip_range=0.4)
    assert start.config.run == RunConfig(n_envs=8, seed=3, checkpoint_dir=folder)


def test_a_run_of_one_process_is_no_run_of_several_unless_it_has_their_statistics(in_tmp):
    ran = {
        "step": PPOConfig(normalize_update="step"),
        "rollout": PPOConfig(normalize_update="rollout"),
        "not normalized": PPOConfig(normalize_obs=False),
    }
    folders = {
        name: run_folder(in_tmp / name, TrainConfig(run=RunConfig(n_envs=4), ppo=ppo)) for name, ppo in ran.items()
    }
    assert resumed_config(folders["rollout"] / "latest.pt", {"n_processes": 2}).run.n_processes == 2
    assert resumed_config(folders["step"] / "latest.pt", {"n_processes": 1}).ppo.normalize_update == "step"
    for name in ("step", "not normalized"):
        with pytest.raises(UserError, match=r"needs one process; leave out --n-processes, or start a new run with "):
            resumed_config(folders[name] / "latest.pt", {"n_processes": 2})


def test_of_a_function_the_name_is_kept_and_it_is_handed_again_or_replaced(in_tmp):
    def warm_up(left):
        return 1e-3 * left

    ran = TrainConfig(ppo=PPOConfig(learning_rate=warm_up))
    latest = run_folder(in_tmp / "run", ran) / "latest.pt"
    assert flatten(ran)["learning_rate"] == "function warm_up"
    assert resumed_config(latest, {}).ppo.learning_rate == LostFunction("learning_rate", "warm_up")
    assert resumed_config(latest, {"learning_rate": warm_up}).ppo.learning_rate is warm_up
    ppo = parse_train_start(["--resume", "run", "--learning-rate", "lin_1e-4"]).config.ppo
    assert (ppo.learning_rate, ppo.learning_rate_schedule) == (1e-4, "linear")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--env-kwargs", '{"size": 4}'], '--env-kwargs {}, which cannot change on resume, but got {"size": 4};'),
        (["--wrappers", "FlattenObservation"], "--wrappers none, which cannot change on resume, but got FlattenObs"),
        (["--frame-stack", "2"], "--frame-stack none, which cannot change on resume, but got 2;"),
        (["--atari"], "--atari false, which cannot change on resume, but got true;"),
    ],
)
def test_a_resumed_run_keeps_its_environment(in_tmp, flags, sentence):
    run_folder(in_tmp / "run", TrainConfig(run=RunConfig(env_id="CartPole-v1")))
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
    assert told[0].startswith(f"The run in {folder} has {kept}, which cannot change on resume, but got ")


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
    assert start.notice == f"There is no run{whose} to resume in checkpoints; starting a new one."


def test_auto_begins_a_run_where_there_is_none_at_all(in_tmp):
    start = parse_train_start(["--resume", "auto"])
    assert start.checkpoint is None
    assert start.notice == "There is no run to resume in checkpoints; starting a new one."
    assert parse_train_start([]).notice is None


def test_auto_takes_no_older_run_in_place_of_one_that_cannot_be_read(several_runs):
    newest = several_runs / "checkpoints" / "newest"
    newest.mkdir()
    (newest / "latest.pt").write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"cannot be read as a checkpoint: .* Name the run to resume instead of auto"):
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
    assert run == RunConfig(seed=5, iterations=None, total_timesteps=4096, checkpoint_dir=in_tmp / "run")
    with pytest.raises(UserError, match="has --seed 5, which cannot change on resume, but got 6"):
        resumed_config(checkpoint, {"seed": 6})


def test_a_checkpoint_is_trusted_only_where_one_is_resumed(in_tmp):
    run_folder(in_tmp / "run", TrainConfig())
    assert not parse_train_start(["--resume", "run"]).trust_checkpoint
    assert parse_train_start(["--resume", "run", "--trust-checkpoint"]).trust_checkpoint
    with pytest.raises(UserError, match="--trust-checkpoint is for the run that --resume names; leave it out"):
        parse_train_start(["--trust-checkpoint"])


def test_resuming_what_is_not_there_is_told(in_tmp):
    with pytest.raises(UserError) as told:
        find_checkpoint("run", {})
    expected = f"There is no checkpoint at {in_tmp / 'run'}; name a run folder or a .pt file, or use --resume auto."
    assert str(told.value) == expected


def test_auto_takes_the_newest_run_that_agrees_with_what_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr("ml_pipeline.runs.earlier_runs.runs_folder", lambda: tmp_path)
    for age, (name, env_id) in enumerate({"old": "CartPole-v1", "new": "Acrobot-v1"}.items()):
        run_folder(tmp_path / name, TrainConfig(run=RunConfig(env_id=env_id)))
        os.utime(tmp_path / name / "latest.pt", (age, age))
    assert find_checkpoint("auto", {}) == tmp_path / "new" / "latest.pt"
    assert find_checkpoint("auto", {"env_id": "CartPole-v1"}) == tmp_path / "old" / "latest.pt"
    assert find_checkpoint("auto", {"env_id": "Pendulum-v1"}) is None


OF_RUN_AND_LEARNING = {each.name: each for group in (RunConfig, PPOConfig) for each in fields(group)}
OF_MARKET = {each.name for each in fields(TradingConfig)}


def test_every_setting_is_either_kept_by_a_resumed_run_or_may_change():
    assert {*OF_RUN_AND_LEARNING} == KEPT | MAY_CHANGE
    assert KEPT.isdisjoint(MAY_CHANGE)
    assert OF_MARKET.isdisjoint(KEPT | MAY_CHANGE)  # kept, all of them


def test_the_page_on_resuming_lists_what_may_change_and_what_may_not():
    page = (Path(__file__).parents[2] / "docs" / "guides" / "continue-and-use-runs.md").read_text()
    told = page.partition("\n## Change settings when you resume\n")[2].partition("\n## ")[0]
    may, _, may_not = told.partition("These settings are kept")
    assert set(re.findall(r"`(--[a-z0-9-]+)`", may)) == {*map(flag_of, MAY_CHANGE)}
    assert set(re.findall(r"`(--[a-z-]+)`", may_not)) == {*map(flag_of, KEPT)} | {"--n-envs-schedule"}


# Another value of every setting, beside a run on an environment with memory, whose every setting can be changed.
RAN = {
    "env_id": "CartPole-v1", "memory": "gru", "n_envs": 4, "n_steps": 64, "minibatch_size": 32, "target_kl": 0.1,
    "ent_coef": 0.1, "normalize_update": "rollout",
}  # fmt: skip
OTHERS = {
    "env_id": "Acrobot-v1", "env_kwargs": {"sutton_barto_reward": True}, "wrappers": ("FlattenObservation",),
    "frame_stack": 2, "atari": True, "n_envs": 5, "vec_env": "serial", "seed": 1, "n_steps": 32, "hidden_sizes": (8,),
    "value_hidden_sizes": (8,), "activation": "relu", "normalize_obs": False, "clip_obs": 5.0,
    "normalize_update": "step", "normalize_rewards": False, "normalize_values": True,
    "ortho_init": False, "log_std_init": -1.0, "use_sde": True, "sde_sample_freq": 4, "squash_actions": True,
    "share_layers": True, "share_encoder": False, "memory": "lstm", "memory_size": 8, "iterations": 7,
    "total_timesteps": 4096, "stop_at_return": 5.0, "stop_on_plateau": 5, "n_envs_schedule": {512: 8}, "n_workers": 2,
    "parallel_start_method": "spawn", "step_timeout_s": 5.0, "on_worker_failure": "restart", "device": "cpu",
    "checkpoint_interval": 3, "eval_interval": 3, "eval_episodes": 3, "minibatch_size": 64, "n_epochs": 3,
    "learning_rate": 0.1, "learning_rate_schedule": "linear", "gamma": 0.5, "gae_lambda": 0.5, "clip_range": 0.5,
    "clip_range_schedule": "linear", "clip_range_vf": 0.5, "ent_coef": 0.5, "ent_coef_schedule": "linear",
    "vf_coef": 1.0, "max_grad_norm": 1.0, "target_kl": 0.5, "normalize_advantages": False,
    "normalize_advantages_over": "batch", "bfloat16": True, "gradient_chunks": 2, "sequence_length": 16,
    "algorithm": "A2C", "algorithm_kwargs": {"use_rms_prop": False}, "tensorboard": True,
    "tensorboard_dir": Path("/events"), "wandb": "project", "init_from": Path("/earlier"), "sink": ("mine:MySink",),
    "callback": ("mine:Curriculum",),
    "n_processes": 2, "launcher": "ray", "max_restarts": 5, "rank_timeout_s": 5.0,
    "network": "nets:small", "network_kwargs": {"width": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(KEPT | MAY_CHANGE - {"checkpoint_dir"}))
def test_a_setting_changes_on_resuming_or_is_refused_by_its_name(in_tmp, name):
    folder = run_folder(in_tmp / "run", build(TrainConfig, RAN))
    earlier = build(TrainConfig, RAN)
    value = OTHERS[name]
    if name in MAY_CHANGE:
        settings = flatten(resumed_config(folder / "latest.pt", {name: value}))
        assert settings[name] == flatten(build(TrainConfig, {**RAN, name: value, **_length(name)}))[name]
        assert settings[name] != flatten(earlier)[name]
    else:
        with pytest.raises(UserError) as told:
            resumed_config(folder / "latest.pt", {name: value})
        assert f"has {flag_of(name)} " in str(told.value)
        assert "may change: docs/guides/continue-and-use-runs.md lists every setting." in str(told.value)


def _length(name):
    return {"iterations": None} if name == "total_timesteps" else {}


def test_a_number_of_environments_is_not_changed_by_its_own_flag_but_by_the_schedule(in_tmp):
    run_folder(in_tmp / "run", TrainConfig(run=RunConfig(n_envs=4)))
    with pytest.raises(UserError, match="has --n-envs 4, which cannot change on resume, but got 8; change it with --n"):
        parse_train_start(["--resume", "run", "--n-envs", "8"])
    start = parse_train_start(["--resume", "run", "--n-envs-schedule", "5000:8"])
    assert start.config.run.n_envs_schedule == {5000: 8}


def test_auto_finds_a_run_that_was_scaled(in_tmp):
    config = TrainConfig(run=RunConfig(env_id="CartPole-v1", n_envs=4, n_envs_schedule={100: 8}))
    run_folder(in_tmp / "checkpoints" / "run", config)
    start = parse_train_start(["--resume", "auto", "--env-id", "CartPole-v1"])
    assert start.config.run.n_envs_schedule == {100: 8}
