"""A run gets more or fewer environments while it goes on, and what is done by hand is as good as planned."""

import errno
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
import torch
import yaml

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.core.stepping.errors import EnvFailedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.runs import checkpoint
from ml_pipeline.runs.checkpoint import load_checkpoint, save_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.env_pool import EnvPool
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.requests import REQUEST_FILE, write_request
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.training import env_scaling
from ml_pipeline.runs.training.env_scaling import EnvScaling, n_envs_in
from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE
from tests.models.rl.core.workers.probes import is_gone, wait_until
from tests.small_runs import config_of, resumed, weights
from tests.training_commands import REPOSITORY

PPO = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=2, hidden_sizes=(8,), learning_rate_schedule="linear")
# Iterations begin at 0, 128, 256, 384 (of 4 environments), 512, 768, 1024 (of 8), 1280, 1376, ... (of 3).
SCHEDULE = {400: 8, 1200: 3}
APPLIED = {512: 8, 1280: 3}
N_ENVS = [4] * 4 + [8] * 3 + [3] * 3
LENGTH = {"n_envs": 4, "iterations": None, "total_timesteps": 1500, "eval_interval": 100, "checkpoint_interval": 100}


class Told(RunListener):
    def __init__(self):
        self.sentences = []
        self.totals = None

    def started(self, start):
        self.totals = (start.total_iterations, start.total_steps)

    def say(self, sentence):
        self.sentences.append(sentence)


class At:
    """A sink that does something when the run has reached a step."""

    def __init__(self, **actions):
        self._actions = {int(name.removeprefix("step_")): action for name, action in actions.items()}

    def write(self, metrics, episodes):
        if (step := metrics["time/global_step"]) in self._actions:
            self._actions[step]()

    def close(self):
        pass


def settings_of(folder, **changes):
    return config_of(folder, **{"ppo": PPO, **LENGTH, **changes})


def train(config, *sinks, task=None, stop=None):
    told = Told()
    result = Run(config, task or make_task(config), sinks=sinks, listener=told, stop=stop).train()
    return result, told.sentences


def asking(folder, **at):
    """A sink that asks for so many environments at these steps."""
    return At(**{step: lambda n=n: write_request(folder, n_envs=n) for step, n in at.items()})


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A run whose schedule was known from the start."""
    folder = tmp_path_factory.mktemp("planned")
    train(settings_of(folder, n_envs_schedule=SCHEDULE))
    return folder


def test_the_schedule_is_followed_at_the_ends_of_iterations(planned):
    assert [row["time/n_envs"] for row in rows(planned)] == N_ENVS
    steps = [row["time/global_step"] for row in rows(planned)]
    assert [b - a for a, b in zip([0, *steps], steps, strict=False)] == [32 * n for n in N_ENVS]
    saved = load_checkpoint(planned / "latest.pt")
    assert (saved["n_envs"], saved["config"]["n_envs_schedule"], saved["config"]["n_envs"]) == (3, SCHEDULE, 4)


def test_a_run_scaled_by_hand_has_the_bits_of_one_that_was_planned(planned, tmp_path):
    folder = tmp_path / "by hand"
    result, told = train(settings_of(folder), asking(folder, step_512=8, step_1280=3))
    assert result.status == "finished"
    assert told[:2] == [
        "As requested: from step 512 on, 8 environments instead of 4.",
        "As requested: from step 1,280 on, 3 environments instead of 8. The unfinished episodes of the last 5 end as "
        "truncated.",
    ]
    assert torch.equal(weights(folder), weights(planned))
    assert torch.equal(weights(folder, "best.pt"), weights(planned, "best.pt"))
    assert not (folder / REQUEST_FILE).exists()
    # What happened stands in its settings; started with those, another run ends the same.
    assert yaml.safe_load((folder / "config.yaml").read_text())["n_envs_schedule"] == APPLIED
    config = parse_train_start(["--config", str(folder / "config.yaml")]).config
    again = tmp_path / "again"
    train(replace(config, run=replace(config.run, checkpoint_dir=again)))
    assert torch.equal(weights(again), weights(planned))


@pytest.mark.slow
def test_who_steps_the_environments_changes_no_bit(planned, tmp_path):
    config = settings_of(tmp_path, n_envs_schedule=SCHEDULE, vec_env="parallel", n_workers=4)
    _, told = train(config)
    assert told[0] == "By n_envs_schedule: from step 512 on, 8 environments instead of 4."
    assert told[1].endswith("n_workers is 4, but each environment has at most one worker: now 3.")
    assert torch.equal(weights(tmp_path), weights(planned))


def test_a_run_announces_its_length_with_the_schedule(planned, tmp_path):
    totals = (len(N_ENVS), 1280 + 3 * 96)
    begun, again, stop = Told(), Told(), StopRequest()
    config = settings_of(tmp_path, n_envs_schedule=SCHEDULE)
    Run(config, make_task(config), sinks=[At(step_512=lambda: stop.request("test"))], listener=begun, stop=stop).train()
    latest = tmp_path / "latest.pt"
    Run(resumed_config(latest, {}), make_task(config), checkpoint=latest, listener=again).train()
    assert begun.totals == again.totals == totals
    (*_, last) = rows(planned)
    assert (last["time/iteration"], last["time/global_step"]) == totals


@pytest.mark.parametrize("step", [256, 512, 768, 1280, 1376])
def test_a_run_that_was_stopped_beside_a_change_ends_as_if_it_had_not_been(planned, tmp_path, step):
    stop = StopRequest()
    result, _ = train(
        settings_of(tmp_path, n_envs_schedule=SCHEDULE), At(**{f"step_{step}": lambda: stop.request("test")}), stop=stop
    )
    assert (result.status, result.global_step) == ("stopped", step)
    assert resumed(tmp_path).train().status == "finished"
    assert torch.equal(weights(tmp_path), weights(planned))
    assert [row["time/n_envs"] for row in rows(tmp_path)] == N_ENVS


@pytest.mark.parametrize("n_steps", [4 * 32 + 10, 7 * 32 + 31])
def test_a_run_stopped_in_the_middle_of_a_rollout_ends_as_if_it_had_not_been(planned, tmp_path, monkeypatch, n_steps):
    """In the first rollout of 8 environments, and in the first of 3."""
    stop, step, left = StopRequest(), ParallelEnv.step, iter(range(n_steps, -1, -1))

    def stopping(envs, actions):
        if next(left) == 0:
            stop.request("test")
        return step(envs, actions)

    with monkeypatch.context() as patched:
        patched.setattr(ParallelEnv, "step", stopping)
        result, _ = train(settings_of(tmp_path, n_envs_schedule=SCHEDULE), stop=stop)
    assert (result.status, result.global_step % 32) == ("stopped", (n_steps + 1) * result_envs(tmp_path) % 32)
    resumed(tmp_path).train()
    assert torch.equal(weights(tmp_path), weights(planned))


def result_envs(folder):
    return load_checkpoint(folder / "latest.pt")["n_envs"]


def test_what_was_requested_survives_a_resumption(planned, tmp_path):
    stop = StopRequest()
    sinks = asking(tmp_path, step_512=8, step_1280=3), At(step_768=lambda: stop.request("test"))
    train(settings_of(tmp_path), *sinks, stop=stop)
    run = resumed(tmp_path, n_envs_schedule={1280: 3})  # what lies ahead; what happened stays
    assert run.train().status == "finished"
    assert torch.equal(weights(tmp_path), weights(planned))


def test_two_changes_at_one_step_with_an_end_in_between_repeat_what_was_recorded(tmp_path):
    class Ending(Told):
        def say(self, sentence):
            if "instead of" in sentence:
                raise RuntimeError("it ended here")

    folder, again = tmp_path / "ended", tmp_path / "again"
    config = settings_of(folder)
    with pytest.raises(RuntimeError, match="it ended here"):
        Run(config, make_task(config), sinks=[asking(folder, step_512=8)], listener=Ending()).train()
    assert load_checkpoint(folder / "latest.pt")["n_envs"] == 8
    write_request(folder, n_envs=5)
    assert resumed(folder).train().status == "finished"
    recorded = load_checkpoint(folder / "latest.pt")["config"]["n_envs_schedule"]
    assert [*recorded.values()] == [8, 5]
    train(settings_of(again, n_envs_schedule=recorded))
    assert torch.equal(weights(folder), weights(again))


def test_a_request_to_a_run_that_was_stopped_waits_for_the_end_of_its_iteration(planned, tmp_path):
    stop = StopRequest()
    train(settings_of(tmp_path, n_envs_schedule={1200: 3}), At(step_384=lambda: stop.request("test")), stop=stop)
    write_request(tmp_path, n_envs=8)
    with pytest.raises(UserError, match="but the run is at step 384, and changed nothing there; name only later steps"):
        resumed(tmp_path, n_envs_schedule={384: 8})  # the iteration has begun
    resumed(tmp_path).train()
    assert torch.equal(weights(tmp_path), weights(planned))


@pytest.mark.slow
def test_a_run_that_is_killed_right_after_a_change_goes_on_with_it(planned, tmp_path):
    """By SIGKILL, from within, where the change was saved; and where it was not, it is made again."""
    script = f"""
import os, signal, sys
from pathlib import Path
from tests.runs.training.test_env_scaling import *
folder = Path({str(tmp_path)!r})
class Killing(Told):
    def say(self, sentence):
        if "instead of" in sentence:
            os.kill(os.getpid(), signal.SIGKILL)
config = settings_of(folder)
Run(config, make_task(config), sinks=[asking(folder, step_512=8)], listener=Killing()).train()
"""
    killed = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, timeout=100, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert load_checkpoint(tmp_path / "latest.pt")["n_envs"] == 8
    run = resumed(tmp_path, n_envs_schedule={1200: 3})
    run.train()
    assert torch.equal(weights(tmp_path), weights(planned))


def test_a_full_disk_right_after_a_change_leaves_the_checkpoint_before_it(planned, tmp_path, monkeypatch):
    def full(path, state):
        if state["n_envs"] == 8:
            raise UserError(f"Cannot write the checkpoint {path}: {os.strerror(errno.ENOSPC).lower()}.")
        save_checkpoint(path, state)

    config = settings_of(tmp_path, checkpoint_interval=1)
    told = Told()
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_checkpoint", full)
        run = Run(config, make_task(config), sinks=[asking(tmp_path, step_512=8)], listener=told)
        with pytest.raises(UserError, match="no space left on device"):
            run.train()
    assert run.result.status == "failed"
    assert told.sentences == []  # nothing is said to be done that was not saved
    saved = load_checkpoint(tmp_path / "latest.pt")
    assert (saved["n_envs"], saved["config"]["n_envs_schedule"]) == (4, {})
    resumed(tmp_path, n_envs_schedule=SCHEDULE).train()
    assert torch.equal(weights(tmp_path), weights(planned))


@pytest.mark.parametrize(
    ("n_envs", "sentence"),
    [
        (
            1,
            "The request for n_envs = 1 is refused: 1 environments are too few for a minibatch of 64: their rollout ",
        ),
        (4, "As requested: still 4 environments."),
    ],
)
def test_a_request_that_cannot_be_met_is_told_and_the_run_goes_on(tmp_path, n_envs, sentence):
    whole, asked = tmp_path / "whole", tmp_path / "asked"
    config = settings_of(asked, total_timesteps=512)
    _, told = train(config, asking(asked, step_256=n_envs))
    train(settings_of(whole, total_timesteps=512))
    assert told[0].startswith(sentence)
    assert torch.equal(weights(asked), weights(whole))
    assert load_checkpoint(asked / "latest.pt")["config"]["n_envs_schedule"] == {}


def test_a_request_that_is_made_twice_is_met_once_and_of_two_the_later_one_counts(tmp_path):
    def twice():
        write_request(tmp_path, n_envs=2)
        write_request(tmp_path, n_envs=8)

    _, told = train(settings_of(tmp_path, total_timesteps=1000), At(step_256=twice), asking(tmp_path, step_512=8))
    assert told[:2] == [
        "As requested: from step 256 on, 8 environments instead of 4.",
        "As requested: still 8 environments.",
    ]
    assert load_checkpoint(tmp_path / "latest.pt")["config"]["n_envs_schedule"] == {256: 8}


def test_a_request_counts_until_the_schedule_names_a_later_step(tmp_path):
    config = settings_of(tmp_path, n_envs_schedule={256: 8, 800: 4})
    _, told = train(config, asking(tmp_path, step_256=2, step_512=2))
    assert told[0] == (
        "As requested: from step 256 on, 2 environments instead of 4. The unfinished episodes of the last 2 end as "
        "truncated. From step 800 on, n_envs_schedule has 4."
    )
    assert told[2].startswith("By n_envs_schedule: from step 832 on, 4 environments instead of 2.")
    assert load_checkpoint(tmp_path / "latest.pt")["config"]["n_envs_schedule"] == {256: 2, 800: 4}


def test_what_is_asked_after_the_last_iteration_waits(tmp_path):
    train(settings_of(tmp_path, total_timesteps=256), asking(tmp_path, step_256=8))
    assert (tmp_path / REQUEST_FILE).exists()
    resumed(tmp_path, total_timesteps=512).train()
    assert not (tmp_path / REQUEST_FILE).exists()
    assert [row["time/n_envs"] for row in rows(tmp_path)] == [4, 4, 8]


def test_a_finished_run_goes_on_to_more_steps_with_the_schedule_that_is_ahead(planned, tmp_path):
    constant = replace(PPO, learning_rate_schedule="constant")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(settings_of(whole, n_envs_schedule=SCHEDULE, ppo=constant))
    train(settings_of(parts, n_envs_schedule=SCHEDULE, ppo=constant, total_timesteps=512))  # a change is due there
    assert [row["time/n_envs"] for row in rows(parts)] == N_ENVS[:4]
    resumed(parts, total_timesteps=1500).train()
    assert torch.equal(weights(parts), weights(whole))


def test_episodes_that_a_change_cut_short_are_in_no_file(tmp_path):
    """Each environment's finished episodes add up to no more than its steps, and unfinished ones are left out."""
    train(settings_of(tmp_path, n_envs_schedule={400: 2}))
    ended = (tmp_path / "monitor.csv").read_text().splitlines()[2:]
    n_steps = sum(int(line.split(",")[1]) for line in ended)
    assert n_steps <= 4 * 128 + 1500 - 512
    assert sum(row["rollout/n_completed_episodes"] for row in rows(tmp_path)) == len(ended)


class Counted(GymTask):
    """Only so many of its environments can be made."""

    def __init__(self, most):
        super().__init__("CartPole-v1", eval_episodes=1, seed=0)
        self._most = most

    def train_env_fns(self, n):
        def refuse():
            raise OSError("no more licences")

        return [*super().train_env_fns(min(n, self._most)), *[refuse] * (n - self._most)]


def test_environments_that_cannot_be_made_refuse_a_request_and_end_a_run_that_had_planned_them(tmp_path):
    asked, had_planned = tmp_path / "asked", tmp_path / "planned"
    _, told = train(settings_of(asked), asking(asked, step_256=8), task=Counted(4))
    assert told[0].startswith("The request for n_envs = 8 is refused: ")
    assert "no more licences" in told[0]
    with pytest.raises(EnvFailedError, match="no more licences") as failed:
        train(settings_of(had_planned, n_envs_schedule={256: 8}), task=Counted(4))
    assert "The last checkpoint is intact" in failed.value.__notes__[0]
    run = resumed(had_planned, n_envs_schedule={})
    assert run.train().status == "finished"


class Plain:
    """A trainer of another kind."""

    global_step, finished = 100, False


def test_a_trainer_of_another_kind_keeps_its_environments(tmp_path):
    told = []
    config = settings_of(tmp_path, n_envs_schedule={100: 8})
    scaling = EnvScaling(config, make_task(config), n_envs=4, say=told.append, ranks=RankContext())
    assert scaling.may_change(Plain())
    with pytest.raises(UserError, match="Plain cannot change the number of environments while it trains"):
        scaling.apply(Plain(), save=lambda: None)
    scaling.request(8)
    assert not scaling.apply(Plain(), save=lambda: None)
    assert told == [
        "The request for n_envs = 8 is refused: Plain cannot change the number of environments while it trains."
    ]
    scaling.close()
    scaling.close()
    assert scaling.envs.closed


def test_environments_of_another_number_of_workers_keep_it(tmp_path, monkeypatch):
    """As many as somebody has moved them to, where these are others than the settings say."""
    made = []
    real = env_scaling.make_envs
    monkeypatch.setattr(env_scaling, "make_envs", lambda *a, **k: made.append(k.get("n_workers")) or real(*a, **k))
    moved = iter([0, 0, 0, 3, 0])
    monkeypatch.setattr(env_scaling, "n_workers_of", lambda envs: next(moved, 0))
    train(settings_of(tmp_path, n_envs_schedule=SCHEDULE))
    assert made == [None, None, 3]


@pytest.mark.parametrize("n_envs", [0, -4, "many", 1e9, None])
def test_a_checkpoint_with_an_impossible_number_is_refused(tmp_path, n_envs):
    with pytest.raises(UserError, match="n_envs in the checkpoint must be"):
        n_envs_in({"n_envs": n_envs}, TrainConfig().run)


def test_a_checkpoint_whose_number_is_not_that_of_its_state_is_refused(tmp_path):
    stop = StopRequest()
    train(settings_of(tmp_path), At(step_256=lambda: stop.request("test")), stop=stop)
    saved = load_checkpoint(tmp_path / "latest.pt")
    save_checkpoint(tmp_path / "latest.pt", {**saved, "n_envs": 5})
    with pytest.raises(UserError, match="num_envs 4, but here it is 5"):
        resumed(tmp_path).train()


@pytest.fixture
def made(monkeypatch):
    """The environments that runs make."""
    envs = []
    real = env_scaling.make_envs
    monkeypatch.setattr(env_scaling, "make_envs", lambda *a, **k: envs.append(real(*a, **k)) or envs[-1])
    return envs


@pytest.mark.slow
@pytest.mark.parametrize("planned_at", [None, 200], ids=["requested", "planned"])
def test_a_change_waits_until_the_episodes_of_a_lost_worker_are_reported(tmp_path, made, planned_at):
    def lose_a_worker():
        lost = psutil.Process(made[0].worker_pids[1])
        lost.kill()
        wait_until(lambda: is_gone(lost))
        if planned_at is None:
            write_request(tmp_path, n_envs=8)

    config = settings_of(
        tmp_path,
        total_timesteps=700,
        vec_env="parallel",
        n_workers=2,
        on_worker_failure="restart",
        n_envs_schedule={} if planned_at is None else {planned_at: 8},
    )
    _, told = train(config, At(step_256=lose_a_worker))
    assert [row["time/n_envs"] for row in rows(tmp_path)] == [4, 4, 4, 8, 8]
    assert rows(tmp_path)[2]["rollout/n_worker_restarts"] == 1
    assert "was killed by SIGKILL" in told[0]
    assert "from step 384 on, 8 environments instead of 4" in told[1]


@pytest.mark.slow
def test_environments_that_go_on_in_others_count_once_in_a_pool(planned, tmp_path, monkeypatch, made):
    """Else the pool would be too small; its refusal would be a warning, which is an error here."""
    with EnvPool(max_concurrent_envs=8) as pool:
        monkeypatch.setenv(ENV_POOL_VARIABLE, pool.address)
        lent = []
        config = settings_of(tmp_path, n_envs_schedule=SCHEDULE, vec_env="parallel", n_workers=2)
        train(config, At(**{f"step_{step}": lambda: lent.append(pool.state().n_envs) for step in (128, 768, 1376)}))
        assert lent == [4, 8, 3]
    assert torch.equal(weights(tmp_path), weights(planned))


@pytest.mark.slow
def test_a_pool_that_is_gone_is_told_once(planned, tmp_path, monkeypatch):
    monkeypatch.setenv(ENV_POOL_VARIABLE, "ml-env-pool-of-nobody")
    with pytest.warns(RuntimeWarning, match="Workers are started as usual"):
        _, told = train(settings_of(tmp_path, vec_env="parallel", n_workers=1, total_timesteps=256))
    (sentence,) = [each for each in told if "pool" in each]
    assert sentence.startswith("The pool of environments ml-env-pool-of-nobody no longer exists")
    assert sentence.endswith("Workers are started as usual.")


def test_rubbish_in_place_of_a_request_is_told_and_the_run_goes_on(tmp_path):
    _, told = train(
        settings_of(tmp_path, total_timesteps=512), At(step_256=lambda: (tmp_path / REQUEST_FILE).write_text("[]"))
    )
    assert "request.json is ignored: it must hold a JSON object" in told[0]
