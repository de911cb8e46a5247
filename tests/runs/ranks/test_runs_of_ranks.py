"""A run of several ranks leaves what a run of one process leaves, and ends on all of them in the same way."""

import json
import threading
from contextlib import nullcontext

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.algorithms.callbacks import CallbackFailed
from ml_pipeline.runs import checkpoint
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.ranks.context import SharedError
from ml_pipeline.runs.ranks.relaunch import ranks_of
from ml_pipeline.runs.requests import write_request
from ml_pipeline.runs.state import read_state
from ml_pipeline.runs.stop import StopRequest
from tests.runs.ranks.small_ranked_runs import FIVE, PPO, learned, resume, run_of, train
from tests.small_runs import After, config_of


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """What one process makes of it."""
    folder = tmp_path_factory.mktemp("whole")
    server.values(train, 0, folder)
    return learned(folder)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_leave_what_one_process_leaves(server, tmp_path, whole, size):
    results = server.values(train, size, tmp_path)
    assert len(set(map(repr, results))) == 1
    assert results[0][0] == "finished"
    assert learned(tmp_path) == whole
    assert len(whole["metrics"]) == 4
    assert read_state(tmp_path).status == "finished"
    assert (tmp_path / "evaluation.json").is_file()


def train_trading(group, folder, settings=None):
    from ml_pipeline.runs.tasks import make_task

    config = config_of(folder, env_id=None, ppo=PPO, **FIVE)
    task = make_task(config)
    task.report = lambda act, folder: "Done."  # the usual one draws figures, which takes seconds
    return train(group, folder, task=task, env_id=None, **(settings or {}))


def test_ranks_learn_to_trade_as_one_process_does(server, tmp_path):
    server.values(train_trading, 0, tmp_path / "one")
    server.values(train_trading, 2, tmp_path / "two")
    assert learned(tmp_path / "two") == learned(tmp_path / "one")


def test_a_line_of_metrics_tells_of_each_rank(server, tmp_path):
    server.values(train, 3, tmp_path)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        sizes = [row[f"system/rank{rank}/rss_mb"] for rank in range(3)]
        assert row["system/rss_mb"] == pytest.approx(sum(sizes))
    assert ranks_of(tmp_path)["size"] == 3


def stopped_in_iteration(group, folder, number, settings=None):
    """The rank that is not the first stops, where there is one, in the middle of a rollout."""
    stop = StopRequest()
    run = run_of(group, folder, stop=stop, **(settings or {}))
    if group is None or group.rank == group.size - 1:
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv

        step, count = ParallelEnv.step, iter(range(10**6))

        def counted_step(envs, actions):
            if next(count) == 16 * number - 7:
                stop.request("the machine is wanted elsewhere")
            return step(envs, actions)

        ParallelEnv.step = counted_step
    result = run.train()
    return result.status, result.reason, result.global_step


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 0), (0, 2)])
def test_a_stopped_run_is_continued_by_another_number_of_ranks(server, tmp_path, whole, before, after):
    stopped = server.values(stopped_in_iteration, before, tmp_path, 3)
    assert {each[:2] for each in stopped} == {("stopped", "the machine is wanted elsewhere")}
    assert len({each[2] for each in stopped}) == 1
    assert read_state(tmp_path).reason == "the machine is wanted elsewhere"
    assert {each[0] for each in server.values(resume, after, tmp_path)} == {"finished"}
    assert learned(tmp_path) == whole


class Unhurried(GymTask):
    """Its evaluation takes until somebody stops it."""

    def __init__(self, begun):
        super().__init__("CartPole-v1", eval_episodes=1, seed=0)
        self._begun = begun

    def score(self, act):
        self._begun()
        observation = self.evaluation_env().reset(seed=0)[0]
        pause = threading.Event()
        for _ in range(6000):
            act(observation)
            pause.wait(0.01)
        raise AssertionError("nobody stopped it")


def stopped_while_the_first_evaluates(group, folder):
    stop, evaluating = StopRequest(), folder.with_name("evaluating")

    def stop_once_it_evaluates():
        pause = threading.Event()
        while not evaluating.exists():
            pause.wait(0.01)
        stop.request("enough")

    if group.rank == 1:
        threading.Thread(target=stop_once_it_evaluates, daemon=True).start()
    result = run_of(group, folder, task=Unhurried(evaluating.touch), stop=stop, eval_interval=1).train()
    return result.status, result.reason, result.iterations


def test_a_stop_on_another_rank_ends_the_evaluation_of_the_first(server, tmp_path):
    assert server.values(stopped_while_the_first_evaluates, 2, tmp_path / "run") == [("stopped", "enough", 1)] * 2


def stopped_by_a_score(group, folder):
    """The first rank stops at its first score. The second hears of it by its channel, whose thread is held up before
    the trainer knows: until the main thread tells the trainer, or takes the next step."""
    stop, heard = StopRequest(), threading.Event()

    def hold_up_the_channel():
        if threading.current_thread() is threading.main_thread():
            heard.set()
        else:
            heard.wait()

    def step_and_let_go(envs, actions):
        if stop.requested:
            heard.set()
        return step(envs, actions)

    sinks = []
    if group.rank == 0:
        sinks = [After(1, lambda: stop.request("enough"))]
    else:
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv

        step, ParallelEnv.step = ParallelEnv.step, step_and_let_go
    with stop.told_to(hold_up_the_channel) if group.rank else nullcontext():
        result = run_of(group, folder, sinks=sinks, stop=stop, eval_interval=1).train()
    return result.status, result.reason, result.global_step


def test_a_stop_by_a_score_comes_before_the_next_step_though_a_rank_is_still_being_told(server, tmp_path):
    assert server.values(stopped_by_a_score, 2, tmp_path) == [("stopped", "enough", 5 * 16)] * 2


def test_an_early_end_comes_on_all_ranks_alike(server, tmp_path):
    results = server.values(train_to, 2, tmp_path)
    assert len(set(map(repr, results))) == 1
    status, reason, global_step = results[0][:3]
    assert (status, reason) == ("finished", "Training ends early, after iteration 1.")
    assert global_step == 5 * 16


def train_to(group, folder):
    return train(group, folder, stop_at_return=1.0)


def disk_full_at(group, folder, number):
    writes = iter(range(100))
    write = checkpoint.save_checkpoint

    def full(path, state):
        if next(writes) == number:
            raise UserError(f"Cannot write the checkpoint {path}: the disk is full.")
        write(path, state)

    checkpoint.save_checkpoint = full
    try:
        train(group, folder)
    except SharedError as error:
        return str(error)
    return "no error"


def test_a_checkpoint_that_cannot_be_written_ends_all_ranks_with_its_reason(server, tmp_path):
    told = server.values(disk_full_at, 2, tmp_path, 1)
    assert told == [f"Cannot write the checkpoint {tmp_path / 'best.pt'}: the disk is full."] * 2
    assert read_state(tmp_path).status == "failed"


def refusal(group, folder, **settings):
    own = settings.pop("of_rank", {}).get(group.rank, {})
    try:
        train(group, folder, **{**settings, **own})
    except SharedError as error:
        return str(error)
    return "no error"


def test_too_few_environments_name_what_can_be(server, tmp_path):
    def refused(group):
        return refusal(group, tmp_path, n_envs=2)

    (told,) = set(server.values(refused, 3))
    assert "3 ranks need at least 3 environments, one each, but n_envs is 2; raise n_envs to 3 or more" in told
    assert list(tmp_path.iterdir()) == []


def test_other_spaces_are_named_before_training(server, tmp_path):
    def refused(group):
        env_id = {1: "Acrobot-v1"}.get(group.rank, "CartPole-v1")
        return refusal(group, tmp_path, env_id=env_id)

    (told,) = set(server.values(refused, 2))
    assert told.startswith("Ranks must agree on the observation space, but rank 0 (")
    assert "Box([-4.8" in told
    assert "rank 1 (" in told
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_a_run_is_refused_on_all_ranks(server, tmp_path):
    train(None, tmp_path)

    def refused(group):
        return refusal(group, tmp_path)

    (told,) = set(server.values(refused, 2))
    assert told.startswith(f"{tmp_path} already holds a run; continue it with --resume")


def asked(group, folder, requests):
    """A run that is asked for changes after its first iterations."""
    sinks = [After(number, lambda change=change: write_request(folder, **change)) for number, change in requests]
    return train(group, folder, sinks=sinks, iterations=6)


def test_a_change_of_environments_is_made_by_all_ranks(server, tmp_path):
    for name, size in (("alone", 0), ("ranks", 2)):
        (tmp_path / name).mkdir()
        server.values(asked, size, tmp_path / name, [(2, {"n_envs": 7}), (4, {"n_envs": 3})])
    assert learned(tmp_path / "ranks") == learned(tmp_path / "alone")
    rows = (tmp_path / "ranks" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(row)["time/n_envs"] for row in rows} == {5, 7, 3}


def test_ranks_without_the_rollouts_statistics_are_refused(server, tmp_path):
    from dataclasses import replace

    def refused(group):
        return refusal(group, tmp_path, ppo=replace(PPO, normalize_update="step"))

    (told,) = set(server.values(refused, 2))
    assert "normalize_update" in told


@pytest.mark.long
def test_ranks_with_batched_environments_leave_what_one_process_leaves(server, tmp_path):
    settings = {"vec_env": "batched", "iterations": 5, "n_envs_schedule": {160: 7, 272: 3}}
    for size in (0, 1, 2, 3):
        server.values(train_trading, size, tmp_path / str(size), settings)
    whole = learned(tmp_path / "0")
    assert all(learned(tmp_path / str(size)) == whole for size in (1, 2, 3))
    rows = (tmp_path / "2" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(row)["time/n_envs"] for row in rows} == {5, 7, 3}


class FailsOnTheSecond:
    def __init__(self, group):
        self._group = group

    def after_iteration(self, trainer, statistics):
        assert self._group.rank == 0, "only there"


def train_with(group, folder, settings):
    return train(group, folder, **settings)


def failed_on_one(group, folder):
    run = run_of(group, folder)
    run.callbacks = (FailsOnTheSecond(group),)
    with pytest.raises(CallbackFailed) as failure:
        run.train()
    return str(failure.value)


def test_ranks_learn_with_callbacks_what_one_process_learns(server, tmp_path):
    settings = {"callback": ("tests.runs.ranks.small_ranked_runs:Gravity",)}
    server.values(train_with, 0, tmp_path / "one", settings)
    server.values(stopped_in_iteration, 2, tmp_path / "two", 3, settings)
    assert {each[0] for each in server.values(resume, 2, tmp_path / "two")} == {"finished"}
    assert learned(tmp_path / "two") == learned(tmp_path / "one")
    assert None not in [row.get("rollout/own_length") for row in learned(tmp_path / "two")["metrics"]]


def test_a_callback_that_fails_on_one_rank_ends_all(server, tmp_path):
    first, second = server.values(failed_on_one, 2, tmp_path)
    assert second.startswith("The callback FailsOnTheSecond.after_iteration failed in line")
    assert first == f"On another rank: {second}"
    assert (read_state(tmp_path).status, read_state(tmp_path).iterations) == ("failed", 1)
