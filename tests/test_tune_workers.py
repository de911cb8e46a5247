"""The entry that measures how many workers pay: as users run it, and its parts."""

import re
import subprocess
import sys
from functools import partial

import pytest

from ml_pipeline import tune_workers
from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core import arguments
from ml_pipeline.models.rl.core.probe_envs import FaultyEnv, TimedEnv
from ml_pipeline.models.rl.core.workers.choice import HERE, Division, StepCost
from ml_pipeline.models.rl.core.workers.open import split
from ml_pipeline.models.rl.preprocessing.action_mask import ActionMaskInObservation
from ml_pipeline.runs import tasks
from tests.contracts.envs import MaskedEnv


def workers(n):
    return Division(n, steps_here=False)


@pytest.mark.long
def test_it_says_what_to_pass_within_20_s():
    command = [sys.executable, "-m", "ml_pipeline", "tune-workers", "--env-id", "CartPole-v1", "--n-envs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    said = [line for line in done.stdout.splitlines() if not line.startswith("the machine ")]  # where it is busy
    first, *others, sentence = said
    rate = r"--n-workers (\d|auto \(this process and \d workers?\)): [\d,]+ steps/s"
    assert re.fullmatch(f"{rate}, which auto chooses", first)
    for line in others:  # a busy machine may be too slow for all of them
        assert re.fullmatch(f"{rate}|--n-workers \\d: not measured, for want of time; no more than [\\d,]+", line)
    assert "stepping " in sentence  # a busy machine makes every step wait
    assert sentence.split("; ")[-1].startswith("--n-workers ")
    assert done.stderr == ""


def test_it_measures_an_environment_of_the_working_directory_from_the_installed_command(tmp_path):
    (tmp_path / "my_mod.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('MyEnv-v0', CartPoleEnv, max_episode_steps=9)\n"
    )
    code = (
        "import sys; sys.path[:] = [path for path in sys.path if path]\n"  # as where a script is run
        "from ml_pipeline import tune_workers; tune_workers._RATES_S = tune_workers._COSTS_S = 0.1\n"
        "from ml_pipeline.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "tune-workers", "--env-id", "my_mod:MyEnv-v0", "--n-envs", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert "steps/s, which auto chooses" in done.stdout


def test_what_fails_while_it_measures_is_one_sentence(monkeypatch, capsys):
    def fail(env_fns):
        raise UserError("It cannot be measured.")

    monkeypatch.setattr(tune_workers, "measure_costs", fail)
    with pytest.raises(SystemExit) as stop:
        tune_workers.main(["--env-id", "CartPole-v1"])
    assert (stop.value.code, capsys.readouterr().err) == (2, "tune-workers: It cannot be measured.\n")


class Modelled:
    """Two free cores and a clock on which environments that only wait take exactly the time that they say.

    Starting a worker takes 10 ms, and "auto" chooses one each.
    """

    START_S = 0.01

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def measure_step(self, env, *, budget_s):
        self.now_s += budget_s
        return StepCost(cpu_s=0.0, wait_s=env.unwrapped._wait_s)

    def measure_rate(self, env_fns, n_workers):
        n_workers = len(env_fns) if n_workers == "auto" else n_workers
        waits_s = [env_fn().unwrapped._wait_s for env_fn in env_fns]
        step_s = max(sum(waits_s[index] for index in block) for block in split(range(len(env_fns)), max(1, n_workers)))
        self.now_s += n_workers * self.START_S + tune_workers._TURNS * max(step_s, tune_workers._TURN_S)
        return (workers(n_workers) if n_workers else HERE), len(env_fns) / step_s


class Quiet:
    """Others, who leave the machine alone."""

    def measure(self):
        pass

    def warning_before(self):
        return None

    warning_during = warning_before


class Busy(Quiet):
    def __init__(self):
        self.n_measured = 0

    def measure(self):
        self.n_measured += 1

    def warning_before(self):
        return "busy before"

    def warning_during(self):
        return f"busy in {self.n_measured} measurements"


@pytest.fixture
def measured(monkeypatch, capsys):
    """What the command prints of environments that wait so long a step, in lines."""

    def run(*waits_s, others=Quiet, flags=()):
        class Task:
            def train_env_fns(self, n):
                return [partial(TimedEnv, wait_s=wait_s) for wait_s in waits_s]

        modelled = Modelled()
        monkeypatch.setattr(tasks, "make_task", lambda config: Task())
        monkeypatch.setattr(tune_workers, "usable_cores", lambda: 2.0)
        monkeypatch.setattr(tune_workers, "time", modelled)
        monkeypatch.setattr(tune_workers, "BackgroundLoad", others)
        monkeypatch.setattr(tune_workers, "measure_step", modelled.measure_step)
        monkeypatch.setattr(tune_workers, "measure_rate", modelled.measure_rate)
        monkeypatch.setattr(tune_workers, "measure_wake", lambda: 6e-5)
        assert tune_workers.main(["--env-id", "CartPole-v1", "--n-envs", str(len(waits_s)), *flags]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_the_sentence_names_the_slow_one_and_the_workers_that_help(measured):
    # A step takes as long as its longest block: 35 ms here, 5 + 20 ms with two workers, 20 ms with four.
    assert measured(5e-3, 5e-3, 5e-3, 20e-3) == [
        "--n-workers 4: 200 steps/s, which auto chooses",
        "--n-workers 0: 114 steps/s",
        "--n-workers 2: 160 steps/s",
        "--n-workers 1: 114 steps/s",
        "environment 3 is 4x slower than the others; stepping waits 100 % of the time, 8.8 ms a step; --n-workers 4",
    ]


def test_a_busy_machine_is_told_before_and_after_the_figures(measured):
    first, *rates, during, sentence = measured(5e-3, 5e-3, others=Busy)
    assert first == "busy before"
    assert len(rates) == 3  # and others are measured after each of them
    assert during == "busy in 3 measurements"
    assert sentence.endswith("--n-workers 2")


@pytest.mark.parametrize("flag", [["--seeds", "1", "2"], ["--check-env"], ["--resume", "auto"]])
def test_flags_that_would_be_ignored_are_not_taken(flag, capsys):
    with pytest.raises(SystemExit) as stopped:
        tune_workers.main(["--env-id", "CartPole-v1", *flag])
    assert stopped.value.code == 2
    assert f"Unknown flag {flag[0]}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "n_envs"), [([], 8), (["--n-envs", "3"], 3), (["--env-id", "Pendulum-v1", "--preset", "zoo"], 4)]
)
def test_eight_environments_are_measured_where_nothing_says_otherwise(flags, n_envs, monkeypatch):
    asked = []
    monkeypatch.setattr(tasks, "make_task", lambda config: asked.append(config.run.n_envs) or sys.exit(7))
    with pytest.raises(SystemExit, match="7"):
        tune_workers.main(["--env-id", "CartPole-v1", *flags])
    assert asked == [n_envs]


def test_an_environment_that_fails_is_told_with_its_index(monkeypatch, capsys):
    class Task:
        def train_env_fns(self, n):
            return [lambda: FaultyEnv("raise", at=3)] * n

    monkeypatch.setattr(tasks, "make_task", lambda config: Task())
    monkeypatch.setattr(tune_workers, "BackgroundLoad", Quiet)
    assert tune_workers.main(["--env-id", "CartPole-v1", "--n-envs", "1"]) == 1
    assert "nvironment 0 of 1, seed 0) raised ValueError in step 3" in capsys.readouterr().err.replace(
        " (seed", ", seed"
    )


def test_slow_environments_are_measured_where_it_matters_and_in_time(measured, monkeypatch):
    monkeypatch.setattr(tune_workers, "_RATES_S", 9.0)
    # Three turns of 0.5, 1, 2 and 4 s: 1.5 s + 3 s + 6 s are more than 9 s.
    assert measured(*[0.5] * 8) == [
        "--n-workers 8: 16 steps/s, which auto chooses",
        "--n-workers 4: 8 steps/s",
        "--n-workers 2: not measured, for want of time; no more than 4",
        "--n-workers 0: not measured, for want of time; no more than 2",
        "--n-workers 1: not measured, for want of time; no more than 2",
        "stepping waits 100 % of the time, 500.0 ms a step; --n-workers 8",
    ]


def test_bad_input_is_one_sentence(capsys):
    with pytest.raises(SystemExit) as stopped:
        tune_workers.main(["--env-id", "CartPoll-v1"])
    assert stopped.value.code == 2
    assert "CartPole-v1" in capsys.readouterr().err


def test_a_slow_environment_is_found_and_waiting_told_from_computing():
    env_fns = [partial(TimedEnv, wait_s=2e-3)] * 3 + [partial(TimedEnv, wait_s=20e-3)]
    costs = tune_workers.measure_costs(env_fns, budget_s=0.8)
    sentence = tune_workers.verdict(costs, {HERE: 100.0, workers(2): 190.0, workers(4): 360.0})
    assert sentence.startswith("environment 3 is ")
    assert re.search(r"stepping waits (9\d|100) %", sentence)
    assert sentence.endswith("--n-workers 4")


def test_fewer_workers_win_where_more_gain_nothing():
    assert tune_workers.verdict({}, {HERE: 96.0, workers(2): 100.0}).endswith("not timed; --n-workers 0")
    assert tune_workers.verdict({}, {HERE: 94.0, workers(2): 100.0}).endswith("--n-workers 2")


def test_auto_is_said_where_this_process_should_step_a_share():
    shared = Division(1, steps_here=True)
    flag = "--n-workers auto (this process and 1 worker)"
    assert tune_workers.verdict({}, {shared: 100.0, HERE: 60.0, workers(2): 104.0}).endswith(flag)
    assert tune_workers.verdict({}, {shared: 100.0, HERE: 60.0, workers(2): 106.0}).endswith("--n-workers 2")


def test_a_share_of_this_process_is_measured(monkeypatch, capsys):
    shared = Division(1, steps_here=True)
    monkeypatch.setattr(arguments, "_fastest", lambda example, num_envs: shared)
    monkeypatch.setattr(tune_workers, "_RATES_S", 0.0)
    rates = tune_workers.measure_rates([partial(TimedEnv, busy_s=1e-4)] * 4, StepCost(1e-4, 0.0))
    assert list(rates) == [shared]
    first, *others = capsys.readouterr().out.splitlines()
    assert re.match(r"--n-workers auto \(this process and 1 worker\): [\d,]+ steps/s, which auto chooses$", first)
    assert all("not measured" in line for line in others)


def test_rates_are_measured_with_workers():
    division, rate = tune_workers.measure_rate([partial(TimedEnv, wait_s=5e-3)] * 2, 2)
    assert division == workers(2)
    assert 0 < rate <= 2 / 5e-3


def test_masks_are_kept_to():
    env_fns = [lambda: ActionMaskInObservation(MaskedEnv())] * 2
    assert 0 in tune_workers.measure_costs(env_fns, budget_s=0.1)
    assert tune_workers.measure_rate(env_fns, 0)[1] > 0
