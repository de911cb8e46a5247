"""Workers on one study that are killed at random moments and started anew.

A process of its own, since it forks: a worker begins in milliseconds, in place of the second that imports take.
"""

import argparse
import json
import mmap
import os
import random
import signal
import sys
import time
from functools import partial
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.trials.lost_trials import Heartbeat, LostTrials, folders_of, record_process

TAKES_A_PLACE = (TrialState.RUNNING, TrialState.WAITING, TrialState.COMPLETE, TrialState.PRUNED)
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
STEPS = 5
LOST_AFTER_S = 2.0


class Kills:
    """How many there were, in memory that forks share; and where in a study a worker waits for one.

    Otherwise a busy machine, on which kills come late, would finish the study before the last of them.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._shared = mmap.mmap(-1, 1)

    @property
    def done(self) -> int:
        return self._shared[0]

    def count(self) -> None:
        self._shared[0] += 1

    def wait_in_trial(self, study: optuna.Study, n_trials: int) -> None:
        """Return once the kills are as far as the trials; at the last trial, once all kills are done."""
        while self.done < self.wanted * min(1.0, sum(map(takes_a_place, study.get_trials(deepcopy=False))) / n_trials):
            time.sleep(0.005)


def takes_a_place(trial: FrozenTrial) -> bool:
    return trial.state in TAKES_A_PLACE and "void" not in trial.user_attrs


def work(named: str | None, folder: Path, n_trials: int, kills: Kills) -> None:
    """Run trials until the study has n of them; each counts its steps in a file, as a run does in its checkpoint."""
    say = partial(print, file=sys.stderr, flush=True)
    study = optuna.load_study(storage=open_storage(named, folder, say, wait=True), study_name="s")
    # Between two looks pass at most 15 s of silence: looking often makes the test short.
    watch = LostTrials(study, folder, say, max_retries=1000, silence_s=LOST_AFTER_S)
    pause = random.Random(os.getpid())
    while True:
        watch.fail()
        trials = [trial for trial in study.get_trials(deepcopy=False) if "void" not in trial.user_attrs]
        if sum(trial.state in ENDED for trial in trials) >= n_trials:
            return
        if sum(trial.state in ENDED or trial.state is TrialState.RUNNING for trial in trials) >= n_trials:
            time.sleep(0.05)
            continue
        trial = study.ask()
        try:
            record_process(trial, trial.number)
        except UpdateFinishedTrialError:
            continue  # this process did not run for so long that the trial was taken for lost
        if sum(map(takes_a_place, study.get_trials(deepcopy=False)[: trial.number])) >= n_trials:
            trial.set_user_attr("void", True)
            study.tell(trial, state=TrialState.FAIL)
            continue
        run_folder = folders_of(study.trials[trial.number], folder)[0]
        with Heartbeat(run_folder, trial.number, stored=trial if named else None):
            value = trial.suggest_float("x", 0, 1)
            steps = run_folder / "steps"
            done = int(steps.read_text() or 0) if steps.is_file() else 0
            reported = study.trials[trial.number].intermediate_values
            waits_after = pause.randint(done, STEPS)
            for step in range(done, STEPS + 1):
                if step > done:
                    time.sleep(pause.uniform(0.001, 0.02))
                    if step not in reported:
                        trial.report(value, step)
                    steps.write_text(str(step))
                if step == waits_after:
                    kills.wait_in_trial(study, n_trials)
        study.tell(trial, value)


def _fork(named: str | None, folder: Path, n_trials: int, kills: Kills) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work(named, folder, n_trials, kills)
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            os._exit(1)
    return pid


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--storage")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawn = random.Random(args.seed)
    kills = Kills(args.kills)
    begin = partial(_fork, args.storage, args.folder, args.trials, kills)
    workers = {begin() for _ in range(args.workers)}
    statuses = []
    while workers:
        if kills.done < kills.wanted:
            time.sleep(drawn.uniform(0.0, 0.25))
            pid = drawn.choice(sorted(workers))
            os.kill(pid, signal.SIGKILL)
            kills.count()
        else:
            pid = 0
        ended, status = os.waitpid(pid or -1, 0)
        workers.discard(ended)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            workers.add(begin())
        else:
            statuses.append(os.waitstatus_to_exitcode(status))
    print(json.dumps({"killed": kills.done, "statuses": statuses}))


if __name__ == "__main__":
    main()
