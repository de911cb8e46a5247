"""`ml-pipeline train --n-processes` and torchrun, with ranks that are stopped, killed, hang or raise."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from ml_pipeline.runs.ranks.launcher import LocalLauncher
from ml_pipeline.runs.state import read_state
from tests.runs.ranks.small_ranked_runs import learned
from tests.training_commands import REPOSITORY, TRAIN, run

ENV = ["--env-id", "CartPole-v1", "--n-envs", "5", "--n-steps", "32", "--minibatch-size", "32", "--n-epochs", "2"]
SMALL = [*ENV, "--hidden-sizes", "8", "--n-workers", "0", "--eval-episodes", "1", "--normalize-update", "rollout"]
_ANY_PORT = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", *_ANY_PORT, "--nproc-per-node", "2"]


@contextlib.contextmanager
def training(*arguments, command=TRAIN, cwd=REPOSITORY):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    started = subprocess.Popen(
        [str(word) for word in (*command, *arguments)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield started
    finally:
        started.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.communicate(timeout=30)
        started.kill()
        started.communicate()


def until(condition, process):
    pause = threading.Event()
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        pause.wait(0.02)


def iterations_in(folder):
    try:
        return len((folder / "metrics.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def rows_in(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def members_of(folder):
    return [pid for _, pid in json.loads((folder / "ranks.json").read_text())["members"]]


@pytest.mark.long
@pytest.mark.parametrize("of_rank", [None, 0, 1])
def test_a_signal_stops_all_ranks_after_the_same_step(tmp_path, of_rank):
    folder = tmp_path / "run"
    arguments = [*SMALL, "--n-processes", 2, "--iterations", 10**6, "--checkpoint-dir", folder]
    with training(*arguments) as started:
        until(lambda: iterations_in(folder) > 2, started)
        pid = started.pid if of_rank is None else members_of(folder)[of_rank]
        os.kill(pid, signal.SIGTERM)
        output, _ = started.communicate(timeout=100)
    assert started.returncode == 128 + signal.SIGTERM, output
    assert "--n-processes 2 --resume" in output
    state = read_state(folder)
    assert (state.status, state.reason) == ("stopped", "Stopped by SIGTERM.")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_under_torchrun_a_stop_is_no_failure_and_the_same_call_goes_on(tmp_path):
    folder = tmp_path / "run"
    module = ["-m", "ml_pipeline.train_ppo", *SMALL, "--checkpoint-dir", folder, "--iterations"]
    torchrun = [*TORCHRUN, "--log-dir", tmp_path / "logs"]
    with training(*module, 10**6, command=torchrun) as started:
        until(lambda: iterations_in(folder) > 2, started)
        os.kill(members_of(folder)[1], signal.SIGTERM)
        output, _ = started.communicate(timeout=100)
    assert started.returncode == 0, output
    step = read_state(folder).global_step
    again = run([*torchrun, *module, str(-(-step // 160) + 3)], cwd=REPOSITORY)
    assert f"step {step:,}." in again.stdout
    run([*TRAIN, *SMALL, "--checkpoint-dir", tmp_path / "alone", "--iterations", str(-(-step // 160) + 3)])
    assert learned(folder)["latest.pt"] == learned(tmp_path / "alone")["latest.pt"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_under_torchrun_a_killed_rank_starts_all_again_with_the_same_bits(tmp_path):
    folder = tmp_path / "run"
    settings = [*SMALL, "--checkpoint-interval", "5", "--iterations", "300", "--checkpoint-dir"]
    torchrun = [*TORCHRUN, "--max-restarts", "1", "--log-dir", tmp_path / "logs"]
    with training("-m", "ml_pipeline.train_ppo", *settings, folder, command=torchrun) as started:
        until(lambda: iterations_in(folder) > 20, started)
        first = members_of(folder)
        os.kill(first[1], signal.SIGKILL)
        output, _ = started.communicate(timeout=300)
    assert started.returncode == 0, output
    assert "resume the run that was left" in output
    assert not set(first) & set(members_of(folder))
    run([*TRAIN, *settings, tmp_path / "alone"])
    assert learned(folder) == learned(tmp_path / "alone")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_signal_to_torchrun_itself_stops_and_saves(tmp_path):
    folder = tmp_path / "run"
    module = ["-m", "ml_pipeline.train_ppo", *SMALL, "--checkpoint-dir", folder, "--iterations", 10**6]
    with training(*module, command=[*TORCHRUN, "--log-dir", tmp_path / "logs"]) as started:
        until(lambda: iterations_in(folder) > 2, started)
        ranks = members_of(folder)
        started.send_signal(signal.SIGTERM)
        output, _ = started.communicate(timeout=100)
    assert "Saved" in output
    state = read_state(folder)
    assert (state.status, state.reason) == ("stopped", "Stopped by SIGTERM.")
    assert not [pid for pid in ranks if psutil.pid_exists(pid)]


def kill_at_random(folder, process, *, kills, seed):
    """SIGKILL of one rank or another, so often, each within some iterations of a start."""
    chance = random.Random(seed)
    pause = threading.Event()
    for _ in range(kills):
        until((folder / "ranks.json").exists, process)
        pause.wait(chance.uniform(0.0, 3.0))  # also while it starts, saves or evaluates
        victim = chance.choice(members_of(folder))
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        until(lambda victim=victim: victim not in members_of(folder), process)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_whose_ranks_are_killed_at_random_moments_ends_with_the_same_bits(tmp_path):
    settings = [*SMALL, "--eval-interval", "40", "--checkpoint-interval", "7"]
    folder, n = tmp_path / "killed", 20
    ranks = ["--n-processes", 2, "--max-restarts", 2 * n]
    with training(*settings, *ranks, "--checkpoint-dir", folder, "--iterations", 10**6) as started:
        kill_at_random(folder, started, kills=n, seed=0)
        until((folder / "ranks.json").exists, started)
        n_iterations = iterations_in(folder)
        until(lambda: iterations_in(folder) > n_iterations + 3, started)
        started.send_signal(signal.SIGTERM)
        output, _ = started.communicate(timeout=100)
    assert started.returncode == 128 + signal.SIGTERM, output
    assert output.count("was killed by SIGKILL") == n
    assert not [pid for pid in members_of(folder) if psutil.pid_exists(pid)]
    n_iterations = str(-(-read_state(folder).global_step // 160) + 3)
    run([*TRAIN, "--resume", folder, *ranks, "--iterations", n_iterations])
    run([*TRAIN, *settings, "--checkpoint-dir", tmp_path / "whole", "--iterations", n_iterations])
    assert learned(folder) == learned(tmp_path / "whole")


KILLED_WHILE_SAVING = """
import os, signal
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("Whole-v0", CartPoleEnv, max_episode_steps=50)
replace, saved = os.replace, []

def killed_before(source, target):
    if os.path.basename(target) == "latest.pt":
        saved.append(target)
    if len(saved) == 3 and os.environ.get("RANK") == "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = killed_before
"""


@pytest.mark.long
def test_a_first_rank_that_is_killed_while_it_saves_leaves_the_checkpoint_before(tmp_path):
    (tmp_path / "saving.py").write_text(KILLED_WHILE_SAVING)
    settings = ["--env-id", "saving:Whole-v0", *SMALL[2:], "--checkpoint-interval", "1", "--iterations", "5"]
    folder = tmp_path / "killed"
    with training(*settings, "--n-processes", 2, "--checkpoint-dir", folder, cwd=tmp_path) as started:
        seen = [line for line in started.stdout if "was killed" in line or "Resuming after" in line]
        output, _ = started.communicate(timeout=100)
    assert started.returncode == 0, output
    assert "Rank 0 was killed by SIGKILL. Restarting all 2 ranks" in seen[0]
    assert seen[1:] == ["Resuming after iteration 1, step 160.\n"]  # the first checkpoint is of the beginning
    run([*TRAIN, *settings, "--checkpoint-dir", tmp_path / "whole"], cwd=tmp_path)
    assert learned(folder) == learned(tmp_path / "whole")
    assert not list(folder.glob("*.tmp"))


MODULE = """
import os, time
import gymnasium

class Faulty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        self.steps += 1
        if os.environ["RANK"] == "1" and self.steps > 40:
            FAULT
        return self.observation_space.sample() * 0, 0.0, False, self.steps % 10 == 0, {}

gymnasium.register("Faulty-v0", Faulty)
"""


FAULTY = ["--env-id", "faulty:Faulty-v0", "--n-envs", "2", *SMALL[4:], "--eval-interval", "99"]


def write_faulty(tmp_path, fault):
    (tmp_path / "faulty.py").write_text(MODULE.replace("FAULT", fault))


def training_faulty(tmp_path, fault, *arguments):
    write_faulty(tmp_path, fault)
    usual = [*FAULTY, "--n-processes", "2", "--checkpoint-dir", tmp_path / "run"]
    return training(*usual, *arguments, cwd=tmp_path)


def faulty(tmp_path, fault, *arguments):
    with training_faulty(tmp_path, fault, *arguments) as started:
        output, _ = started.communicate(timeout=110)
    return started.returncode, output


@pytest.mark.long
def test_a_second_signal_ends_the_command_after_its_ranks(tmp_path):
    with training_faulty(tmp_path, "time.sleep(2)") as started:
        until(lambda: iterations_in(tmp_path / "run") > 0, started)
        ranks = [psutil.Process(pid) for pid in members_of(tmp_path / "run")]
        started.send_signal(signal.SIGINT)
        for line in started.stdout:
            if "Stopping after this step" in line:
                break
        started.send_signal(signal.SIGINT)
        started.wait(100)
        assert not [rank for rank in ranks if rank.is_running()]
        output = started.stdout.read()
    assert started.returncode == 128 + signal.SIGINT, output
    assert "Stopped without saving" in output
    assert read_state(tmp_path / "run").status == "stopped"


@pytest.mark.long
def test_a_signal_that_ranks_get_from_their_cluster_as_well_is_no_second_one(tmp_path):
    with training_faulty(tmp_path, "time.sleep(2)") as started:
        until(lambda: iterations_in(tmp_path / "run") > 0, started)
        for pid in members_of(tmp_path / "run"):
            os.kill(pid, signal.SIGTERM)
        for line in started.stdout:
            if "Stopping after this step" in line:
                break
        started.send_signal(signal.SIGTERM)  # and so the ranks get it a second time
        output, _ = started.communicate(timeout=100)
    assert started.returncode == 128 + signal.SIGTERM, output
    assert "Saved" in output
    state = read_state(tmp_path / "run")
    assert (state.status, state.reason) == ("stopped", "Stopped by SIGTERM.")


@pytest.mark.long
def test_a_rank_that_raises_ends_the_others_and_is_named(tmp_path):
    code, output = faulty(tmp_path, "raise ValueError('the feed is gone')")
    assert code == 1, output
    assert "ValueError: the feed is gone" in output
    assert "is gone: its training failed" in output
    assert "start again" not in output.partition("Traceback")[0]
    assert read_state(tmp_path / "run").status == "failed"
    assert "rank 1" in read_state(tmp_path / "run").reason


@pytest.mark.long
def test_a_rank_that_hangs_is_named_by_the_timeout(tmp_path):
    # Of the seconds, most are for ranks that a busy machine starts one long after the other.
    code, output = faulty(tmp_path, "time.sleep(999)", "--rank-timeout-s", "30", "--max-restarts", "0")
    assert code == 1, output
    assert "rank 1 (" in output
    assert "did not come within 30 s" in output


@pytest.mark.long
def test_a_worker_of_any_rank_that_is_replaced_is_told_with_the_numbers_among_all(tmp_path):
    once = "os.path.exists('killed') or (open('killed', 'w').close(), os.kill(os.getpid(), 9))"
    code, output = faulty(tmp_path, once, "--n-workers", "1", "--on-worker-failure", "restart", "--iterations", "4")
    assert code == 0, output
    lost = "Rank 1: Worker 0 (environment 1) was killed by SIGKILL in step of environment 1"
    assert output.count(lost) == 1, output
    assert [row["rollout/n_worker_restarts"] for row in rows_in(tmp_path / "run")] == [0, 1, 1, 1]


@pytest.mark.long
def test_a_crash_at_the_end_of_another_rank_leaves_the_first_its_report(tmp_path, monkeypatch):
    crash_at_exit = "__import__('atexit').register(os.kill, os.getpid(), 9)"
    slow_report = """
        if os.environ["RANK"] == "0" and self.steps <= 10:
            time.sleep(0.1)"""
    write_faulty(tmp_path, crash_at_exit + slow_report)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    command = [*TRAIN, *FAULTY, "--iterations", "2", "--checkpoint-dir", str(tmp_path / "run")]
    with LocalLauncher(command, size=2, max_restarts=0, say=print, grace_s=0.2) as launcher:
        launcher.run()
    assert read_state(tmp_path / "run").status == "finished"
    assert (tmp_path / "run" / "evaluation.json").exists()


@pytest.mark.long
def test_refused_settings_are_told_once(tmp_path):
    done = run([*TRAIN, *SMALL, "--n-processes", "9", "--checkpoint-dir", tmp_path / "run"], expect=2)
    assert done.stderr.count("n_processes must be at most n_envs = 5") == 1
    assert not Path(tmp_path / "run").exists()
