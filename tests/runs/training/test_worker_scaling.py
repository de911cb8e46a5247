"""A run that moves between workers, as asked or by itself, ends with the weights of one that never did."""

import os
import random
import re
from dataclasses import replace

import gymnasium
import numpy as np
import psutil
import pytest
import torch

from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.core.stepping.errors import StateNotAvailable, WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers.choice import HERE, Division, DynamicChoice, Move
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.requests import REQUEST_FILE, write_request
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.training import worker_scaling
from tests.small_runs import PPO, After, config_of, resumed, trained, weights

pytestmark = pytest.mark.timeout(120)

DIVISIONS = [HERE, Division(1, steps_here=False), Division(2, steps_here=False), Division(1, steps_here=True)]


class Heard(RunListener):
    def __init__(self):
        self.sentences = []

    def say(self, sentence):
        self.sentences.append(sentence)


class Drift(gymnasium.Env):
    """Can be pickled, and has no plain state."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = self.np_random.normal(size=2).astype(np.float32), 0
        return self.at.copy(), {}

    def step(self, action):
        self.t += 1
        self.at += self.np_random.normal(size=2).astype(np.float32) + 0.1 * np.float32(action[0])
        return np.clip(self.at, -9, 9), -float(abs(self.at[0])), bool(abs(self.at[0]) > 4), self.t >= 11, {}


class Unpicklable(Drift):
    """Cannot be pickled at all."""

    def __getstate__(self):
        raise TypeError("a handle of a simulator")


def task_of(env_class):
    """A task in environments of this class, which travels to workers by value."""
    here = type(env_class.__name__, (env_class,), {"__module__": "__main__"})

    class OfClass(GymTask):
        def train_env_fns(self, n):
            return [here] * n

        def score(self, act):
            return 0.0

        def report(self, act, folder):
            return "trained"

    return OfClass("Pendulum-v1", eval_episodes=1, seed=0)


KINDS = {
    "plain": ({}, PPO, None),
    "pickled": ({"env_id": "Pendulum-v1"}, PPO, Drift),
    "trading": ({"env_id": None}, PPO, None),
    "memory": ({}, replace(PPO, memory="lstm", memory_size=4, normalize_values=True), None),
}


@pytest.fixture
def schedule(monkeypatch):
    """Lets a dynamic run move after each iteration, as random numbers have it; returns where it moved."""
    rng, moved = random.Random(7), []

    def next_move(choice, look):
        moved.append(rng.choice([each for each in DIVISIONS if each != look.division]))
        return Move(division=moved[-1], reason="the dice say so")

    monkeypatch.setattr(DynamicChoice, "next_move", next_move)
    monkeypatch.setattr(worker_scaling, "_LOOK_S", 0.0)
    return moved


def run_of(folder, *, task=None, ppo=PPO, sinks=(), listener=None, stop=None, checkpoint=None, **run):
    config = config_of(folder, ppo=ppo, **{"vec_env": "parallel", "n_workers": 0, "n_envs": 3, "iterations": 5, **run})
    return Run(config, task or make_task(config), sinks=sinks, listener=listener, stop=stop, checkpoint=checkpoint)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_random_moves_change_no_bit_of_the_weights(kind, tmp_path, schedule):
    settings, ppo, env_class = KINDS[kind]
    ppo = replace(ppo, minibatch_size=48)
    task = None if env_class is None else task_of(env_class)
    run_of(tmp_path / "stayed", task=task, ppo=ppo, **settings).train()
    heard = Heard()
    run_of(tmp_path / "moved", task=task, ppo=ppo, listener=heard, **settings, n_workers="dynamic").train()
    assert len(schedule) >= 3
    assert len([sentence for sentence in heard.sentences if "the dice say so" in sentence]) == len(schedule)
    assert torch.equal(weights(tmp_path / "moved"), weights(tmp_path / "stayed"))


@pytest.mark.slow
def test_moves_an_interruption_and_a_resumption_change_no_bit(tmp_path, schedule):
    ppo = replace(PPO, minibatch_size=48)
    run_of(tmp_path / "stayed", ppo=ppo, iterations=6).train()
    stop = StopRequest()
    interrupted = After(3, stop.request)
    result = run_of(
        tmp_path / "moved", ppo=ppo, iterations=6, n_workers="dynamic", stop=stop, sinks=[interrupted]
    ).train()
    assert (result.status, result.iterations) == ("stopped", 3)
    assert resumed(tmp_path / "moved", n_workers="dynamic").train().status == "finished"
    assert len(schedule) >= 3
    assert torch.equal(weights(tmp_path / "moved"), weights(tmp_path / "stayed"))


def asked(folder, *requests, **run):
    """What a run said that was asked for something after each of its iterations, and its rows of metrics."""
    heard, left = Heard(), list(requests)

    class Asks:
        def __init__(self):
            self.rows = []

        def write(self, metrics, episodes):
            self.rows.append(metrics)
            if left:
                request = left.pop(0)
                if isinstance(request, str):
                    (folder / REQUEST_FILE).write_text(request)
                elif request:
                    write_request(folder, **request)

    sink = Asks()
    result = run_of(folder, ppo=replace(PPO, minibatch_size=48), sinks=[sink], listener=heard, **run).train()
    assert result.status == "finished"
    assert not (folder / REQUEST_FILE).exists()
    return heard.sentences, sink.rows


def test_a_run_moves_as_asked_at_the_end_of_its_iteration(tmp_path):
    sentences, rows = asked(tmp_path / "asked", {"n_workers": 2}, {"n_workers": 2}, {"n_workers": 0})
    assert [row["workers/count"] for row in rows] == [0, 2, 2, 0, 0]
    assert [sentence for sentence in sentences if sentence.startswith("As requested")] == [
        "As requested: now 2 workers.",
        "As requested: now 2 workers.",
        "As requested: now no workers, only the trainer's process.",
    ]
    trained(tmp_path / "stayed", n_envs=3, iterations=5, ppo=replace(PPO, minibatch_size=48))
    assert torch.equal(weights(tmp_path / "asked"), weights(tmp_path / "stayed"))


@pytest.mark.parametrize(
    ("request_", "settings", "sentence"),
    [
        ({"n_workers": 4}, {}, "The request for n_workers = 4 is refused: n_workers must be at most n_envs = 3."),
        ({"n_workers": 1}, {"vec_env": "serial"}, 'vec_env "serial" has no workers'),
        ({"n_workers": 0}, {"n_workers": 1, "on_worker_failure": "restart"}, "need worker processes"),
        ('{"n_workers": 1', {}, "request.json is ignored: it must hold a JSON object"),
    ],
)
def test_what_cannot_be_done_is_said_once_and_the_run_goes_on(tmp_path, request_, settings, sentence):
    sentences, rows = asked(tmp_path, request_, **settings)
    assert len([each for each in sentences if sentence in each]) == 1
    assert len({row["workers/count"] for row in rows}) == 1


def test_environments_that_cannot_be_pickled_stay_where_they_are(tmp_path, schedule):
    heard, sink = Heard(), After(-1, None)
    run = run_of(
        tmp_path,
        task=task_of(Unpicklable),
        env_id="Pendulum-v1",
        ppo=replace(PPO, minibatch_size=48),
        n_workers="dynamic",
        listener=heard,
        sinks=[sink],
    )
    assert run.train().status == "finished"
    said = [sentence for sentence in heard.sentences if "whatever the load" in sentence]
    assert len(said) == 1
    assert "cannot be pickled" in said[0]
    assert len(schedule) == 1
    assert len({row["workers/count"] for row in sink.rows}) == 1


def test_a_killed_worker_is_replaced_and_then_others_take_over(tmp_path, monkeypatch):
    heard, found = Heard(), []
    made = worker_scaling.WorkerScaling

    def kill(metrics, episodes):
        rows.append(metrics)
        if len(rows) == 2:
            psutil.Process(found[0]().worker_pids[0]).kill()
            write_request(tmp_path, n_workers=3)

    rows = []
    sink = After(-1, None)
    sink.write = kill

    def remember(envs, say, **options):
        found.append(envs)
        return made(envs, say, **options)

    monkeypatch.setattr("ml_pipeline.runs.run.WorkerScaling", remember)
    run = run_of(
        tmp_path,
        ppo=replace(PPO, minibatch_size=48),
        n_workers=2,
        on_worker_failure="restart",
        listener=heard,
        sinks=[sink],
        iterations=6,
    )
    assert run.train().status == "finished"
    assert rows[-1]["rollout/n_worker_restarts"] == 1
    assert rows[-1]["workers/count"] == 3
    assert "As requested: now 3 workers." in heard.sentences


class Envs(ParallelEnv):
    """Fails to move in a chosen way, or does nothing but count."""

    error = None

    def rescale(self, num_workers, *, steps_here=False):
        if self.error:
            raise self.error
        super().rescale(num_workers, steps_here=steps_here)


class Told:
    """An iteration of which a second was spent in steps."""

    def __init__(self, step):
        self.step = step

    def metrics(self):
        return {"time/global_step": self.step, "time/stepping_s": 1.0, "time/waiting_s": 0.0}


class Trainer:
    total_timesteps, global_step = 10**9, 0


@pytest.fixture
def envs():
    with Envs([lambda: gymnasium.make("CartPole-v1")] * 3, num_workers=1) as made:
        made.reset(seed=0)
        yield made


def test_after_some_failures_the_choice_is_left_alone(envs, schedule):
    said = []
    scaling = worker_scaling.WorkerScaling(lambda: envs, said.append, dynamic=True)
    envs.error = OSError(11, "Resource temporarily unavailable")
    for number in range(20):
        scaling(Trainer, Told(number * 30))
    assert [re.split("[,;]", sentence)[0] for sentence in said] == ["Still 1 worker"] * 2 + ["Staying with 1 worker"]
    assert envs.num_workers == 1
    envs.error = None
    scaling.request("dynamic")
    scaling(Trainer, Told(1000))
    assert envs.num_workers != 1 or envs.steps_here


def test_a_failure_that_closes_the_environments_is_raised(envs, schedule):
    scaling = worker_scaling.WorkerScaling(lambda: envs, print, dynamic=True)
    scaling(Trainer, Told(0))
    psutil.Process(envs.worker_pids[0]).kill()
    with pytest.raises(WorkerDiedError):
        scaling(Trainer, Told(30))


def test_a_refused_request_keeps_what_was_chosen(envs):
    said = []
    scaling = worker_scaling.WorkerScaling(lambda: envs, said.append, dynamic=True)
    envs.error = StateNotAvailable(1, "it cannot be pickled")
    with pytest.raises(worker_scaling.UserError, match="environment 1 is not available"):
        scaling.request(2)
    assert scaling._dynamic


def test_workers_that_memory_has_no_room_for_are_refused(envs, schedule, monkeypatch):
    said = []
    scaling = worker_scaling.WorkerScaling(lambda: envs, said.append, dynamic=True)
    memory = psutil.virtual_memory()._replace(available=1_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(worker_scaling.UserError, match=r"3 workers would need .* MB .* but 1 MB are free"):
        scaling.request(3)
    scaling.request(0)
    assert said == ["As requested: now no workers, only the trainer's process."]


def test_auto_chooses_once(envs, monkeypatch):
    monkeypatch.setattr(
        "ml_pipeline.models.rl.core.arguments._fastest", lambda example, num_envs: Division(2, steps_here=True)
    )
    said = []
    scaling = worker_scaling.WorkerScaling(lambda: envs, said.append, dynamic=True)
    scaling.request("auto")
    assert said == ["As requested: now 2 workers and the trainer's process, as measured."]
    assert not scaling._dynamic


def test_a_look_counts_steps_and_time_since_the_last_one(envs):
    now = [0.0]
    window = worker_scaling._Window(lambda: now[0])
    window.add(envs, Told(300).metrics())
    now[0] = 4.0
    window.add(envs, Told(600).metrics())
    window.add(envs, Told(900).metrics())
    look = window.look(envs, type("T", (), {"total_timesteps": 2100, "global_step": 900}))
    assert (look.n_steps, look.step_s, look.wall_s, look.left_s) == (200, 0.01, 4.0, 8.0)
    assert (look.division, look.num_envs) == (Division(1, steps_here=False), 3)
    assert 0.5 <= look.free_cores <= (os.cpu_count() or 1)


def test_environments_without_workers_tell_no_count():
    scaling = worker_scaling.WorkerScaling(object, print, dynamic=True)
    assert scaling(Trainer, Told(0)) is None
    with pytest.raises(worker_scaling.UserError, match=re.escape('vec_env "batched" has no workers')):
        worker_scaling.WorkerScaling(object, print, dynamic=False, vec_env="batched").request(1)


def test_dynamic_is_a_setting_of_runs_with_workers():
    assert RunConfig(n_workers="dynamic", n_envs=2).n_workers == "dynamic"
    with pytest.raises(ValueError, match="has no workers, but n_workers is dynamic"):
        RunConfig(n_workers="dynamic", vec_env="serial")
    assert isinstance(TrainConfig(run=RunConfig(n_workers="dynamic")), TrainConfig)
