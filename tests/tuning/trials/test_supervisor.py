"""Workers are started, heard, replaced where they are killed, and ended."""

import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest
from optuna.trial import TrialState

from ml_pipeline.config.errors import CheckFailed, UserError
from ml_pipeline.jobs.child import Child, Event
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import Interrupted
from ml_pipeline.tuning.config import ObjectiveConfig, TuneConfig, TuneOrder
from ml_pipeline.tuning.study import load_study, space_of
from ml_pipeline.tuning.trials.run_study import workers_log
from ml_pipeline.tuning.trials.supervisor import MOST_FAILED, MOST_IMPOSSIBLE, WORKERS_LOG, FailureLimits, Supervisor
from ml_pipeline.tuning.trials.worker import count_trials
from ml_pipeline.tuning.trials.worker_process import WorkerOrder
from tests.tuning.stand_in_runs import open_study

ROOT = Path(__file__).resolve().parents[3]
STAND_IN = "tests.tuning.trials.stand_in_worker"


class Listener:
    def __init__(self, on_end=lambda end: None):
        self.ended, self.said = [], []
        self._on_end = on_end

    def trial_ended(self, end):
        self.ended.append(end)
        self._on_end(end)

    def say(self, sentence):
        self.said.append(sentence)


class Scripted:
    """Starts stand-ins for workers: each tells what its script says, and ends where that is a number."""

    def __init__(self, *scripts):
        self._scripts = list(scripts)
        self.started = self.stops = self.kills = 0

    def __call__(self, *, into):
        script = self._scripts[min(self.started, len(self._scripts) - 1)]
        self.started += 1
        has_ended = any(isinstance(told, int) for told in script)
        worker = ScriptedWorker(self, self.started, None if has_ended else into)
        for told in script:
            ended = isinstance(told, int)
            into.put(Event(worker, {} if ended else told, told if ended else None))
        return worker


class ScriptedWorker:
    def __init__(self, scripted, pid, into):
        self.pid, self._scripted, self._into = pid, scripted, into

    def stop(self):
        self._scripted.stops += 1
        if self._into is not None:
            self._into.put(Event(self, {}, 0))

    def kill(self):
        self._scripted.kills += 1

    def close(self):
        pass


def _supervisor(tmp_path, start, *, listener=None, stop=None):
    return Supervisor(
        open_study(tmp_path),
        tmp_path,
        start,
        listener=listener or Listener(),
        stop=stop or StopRequest(),
        on_tick=lambda: None,
    )


def _end(state, number=0):
    told = {"number": number, "state": state, "value": 1.0, "reason": "It broke.", "global_step": 1, "seconds": 1.0}
    return {"ended": told}


DONE = ({"done": True}, 0)


def test_the_study_ends_once_all_workers_are_done(tmp_path):
    listener, processes = Listener(), Scripted([{"began": 0}, _end("complete"), *DONE], [*DONE])
    assert _supervisor(tmp_path, processes, listener=listener).run(2)
    assert (len(listener.ended), processes.started) == (1, 2)


@pytest.mark.parametrize("code", [-signal.SIGKILL, 1, 0])
def test_a_worker_that_ends_too_early_is_replaced(tmp_path, code):
    listener, processes = Listener(), Scripted([{"began": 7}, code], [*DONE])
    assert _supervisor(tmp_path, processes, listener=listener).run(1)
    assert processes.started == 2
    assert "in trial 7. Another one replaces it." in listener.said[0]


def test_what_one_worker_refuses_ends_all_with_its_sentence(tmp_path):
    processes = Scripted([{"refused": "The disk is full."}, 2], [])
    with pytest.raises(UserError, match="The disk is full"):
        _supervisor(tmp_path, processes).run(2)
    assert (processes.stops, processes.started) == (2, 2)


def test_trials_that_all_fail_end_the_study_with_the_reason(tmp_path):
    processes = Scripted([_end("failed", number) for number in range(MOST_FAILED)])
    with pytest.raises(CheckFailed, match=r"10 trials in a row failed, so the study ends here. It broke."):
        _supervisor(tmp_path, processes).run(1)
    assert processes.stops == 1


def test_workers_that_always_crash_end_the_study(tmp_path):
    processes = Scripted([-signal.SIGSEGV])
    with pytest.raises(CheckFailed, match="SIGSEGV"):
        _supervisor(tmp_path, processes).run(2)


def test_a_stop_request_asks_all_workers_once(tmp_path):
    stop = StopRequest()
    processes = Scripted([_end("complete")], [])
    assert not _supervisor(tmp_path, processes, listener=Listener(lambda end: stop.request()), stop=stop).run(2)
    assert (processes.stops, processes.started) == (2, 2)


def test_a_second_interrupt_kills_the_workers(tmp_path):
    def interrupt(end):
        raise Interrupted(signal.SIGINT)

    processes = Scripted([_end("complete")], [])
    with pytest.raises(Interrupted):
        _supervisor(tmp_path, processes, listener=Listener(interrupt)).run(2)
    assert processes.kills == 2


def test_what_several_workers_say_at_once_is_said_once(tmp_path):
    listener = Listener()
    sentence = {"say": "The database is away."}
    _supervisor(tmp_path, Scripted([sentence, *DONE], [sentence, *DONE]), listener=listener).run(2)
    assert listener.said == ["The database is away."]


# Processes


def _order(folder, n_trials):
    tune = TuneConfig(study_name="s", n_trials=n_trials, sampler="random", pruner="none")
    base = {"env_id": "CartPole-v1", "total_timesteps": 100}
    return TuneOrder(tune=tune, objective=ObjectiveConfig(), base=base)


def _study(order, folder):
    folder.mkdir(exist_ok=True)
    return load_study(order, folder, space_of(order), say=pytest.fail, stopped=lambda: False)


def _run(folder, *, n_trials, n_jobs, stop=None, on_start=lambda supervisor: None, on_end=lambda end: None):
    order = _order(folder, n_trials)
    study = _study(order, folder)
    listener = Listener(on_end)
    worker_order = WorkerOrder(order=order, study_folder=folder).as_json()
    with workers_log(folder) as log:
        environment = {"PYTHONPATH": str(ROOT)}
        start = partial(Child, STAND_IN, worker_order, purpose="trials", environment=environment, log=log)
        stop = stop or StopRequest()
        supervisor = Supervisor(study, folder, start, listener=listener, stop=stop, on_tick=lambda: None)
        on_start(supervisor)
        return supervisor.run(n_jobs), study, listener


def test_a_study_that_is_stored_elsewhere_gets_its_folder(tmp_path):
    folder = tmp_path / "root" / "s"
    workers_log(folder).close()
    assert (folder / WORKERS_LOG).is_file()


def _attempts(folder):
    return [path.read_text().splitlines() for path in sorted(folder.glob("trial-*/attempts"))]


@pytest.mark.slow
def test_a_study_whose_workers_are_killed_has_exactly_its_trials(tmp_path):
    folder, chance, over = tmp_path / "s", random.Random(3), threading.Event()
    killed = []

    def kill_now_and_then(supervisor):
        def go_on():
            while len(killed) < 6 and not over.wait(chance.uniform(0.3, 1.2)):
                if (pids := supervisor.pids) and any(folder.glob("trial-*/attempts")):
                    killed.append(chance.choice(pids))
                    os.kill(killed[-1], signal.SIGKILL)

        threading.Thread(target=go_on).start()

    try:
        ended, study, _ = _run(folder, n_trials=12, n_jobs=3, on_start=kill_now_and_then)
    finally:
        over.set()
    assert ended
    assert killed
    assert count_trials(study) == (12, 0)
    assert not [trial for trial in study.trials if trial.state == TrialState.RUNNING]
    for attempts in _attempts(folder):  # of one trial, by one or several processes: with the same settings
        assert len({line.split()[1] for line in attempts}) == 1


@pytest.mark.slow
def test_one_worker_draws_the_same_settings_also_where_it_is_stopped_and_goes_on(tmp_path):
    _run(tmp_path / "whole", n_trials=5, n_jobs=1)
    stop = StopRequest()
    _run(tmp_path / "parts", n_trials=5, n_jobs=1, stop=stop, on_end=lambda end: stop.request())
    _, study, _ = _run(tmp_path / "parts", n_trials=5, n_jobs=1)
    assert count_trials(study) == (5, 0)
    drawn, in_parts = ([lines[0].split()[1] for lines in _attempts(tmp_path / part)] for part in ("whole", "parts"))
    assert in_parts == drawn


_TUNE = """
import sys, time
from pathlib import Path
from tests.tuning.trials.test_supervisor import _run
_run(Path(sys.argv[1]), n_trials=4, n_jobs=2)
"""


@pytest.mark.long
def test_workers_end_when_tune_is_killed_and_leave_their_trials_to_the_next_one(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "hold").touch()  # so that no trial ends by itself
    tune = subprocess.Popen([sys.executable, "-c", _TUNE, str(folder)], cwd=Path(__file__).parents[3])
    try:
        while len(_attempts(folder)) < 2 and tune.poll() is None:
            tune_workers = psutil.Process(tune.pid).children()
        assert len(tune_workers) == 2
    finally:
        tune.kill()
        tune.wait()
    _, alive = psutil.wait_procs(tune_workers, timeout=60)
    assert alive == []
    (folder / "hold").unlink()
    study = _study(_order(folder, 4), folder)
    assert {trial.state for trial in study.trials} == {TrialState.FAIL, TrialState.WAITING}
    ended, study, _ = _run(folder, n_trials=4, n_jobs=2)
    assert ended
    assert count_trials(study) == (4, 0)


def _told(state, reason="It broke."):
    return {"state": state, "reason": reason}


@pytest.mark.parametrize(
    ("state", "most"), [("failed", MOST_FAILED), ("lost", MOST_FAILED), ("impossible", MOST_IMPOSSIBLE)]
)
def test_so_many_in_a_row_are_enough(state, most):
    limits = FailureLimits()
    for _ in range(most - 1):
        limits.note_trial(_told(state))
    assert limits.sentence is None
    limits.note_trial(_told(state))
    assert limits.sentence is not None
    assert str(most) in limits.sentence
    assert "It broke." in limits.sentence


def test_the_sentence_has_what_was_raised_and_no_traceback():
    limits = FailureLimits()
    for _ in range(MOST_FAILED):
        limits.note_trial(
            _told("failed", "In step 3:\n\nTraceback (most recent call last):\n  File x\nValueError: no\n")
        )
    assert str(limits.sentence).endswith("In step 3: ValueError: no")


@pytest.mark.parametrize("state", ["complete", "pruned"])
def test_a_trial_that_finishes_begins_the_count_anew(state):
    limits = FailureLimits()
    for _ in range(5):
        for _ in range(MOST_FAILED - 1):
            limits.note_trial(_told("failed"))
        limits.note_trial(_told(state))
    assert limits.sentence is None


def test_stopped_trials_are_no_setback():
    limits = FailureLimits()
    for _ in range(1000):
        limits.note_trial(_told("stopped"))
    assert limits.sentence is None


def test_workers_that_crash_are_not_started_for_ever():
    limits = FailureLimits()
    for _ in range(1000):
        limits.note_worker(-signal.SIGSEGV, log="s/workers.log")
        if limits.sentence:
            break
    assert "killed by SIGSEGV; see s/workers.log" in str(limits.sentence)


def test_thirty_kills_in_a_row_are_survived():
    limits = FailureLimits()
    for _ in range(30):
        limits.note_worker(-signal.SIGKILL, log="s/workers.log")
    assert limits.sentence is None
