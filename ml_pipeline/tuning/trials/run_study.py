"""One call of `tune`: opens the study, and runs its trials in worker processes. It prints nothing.

It also decides how many trials run at once, and how they share cores and environments.
"""

import math
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import optuna
from optuna.trial import FrozenTrial

from ml_pipeline import __version__
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.jobs.budget import Need, free_memory_bytes, need_of
from ml_pipeline.jobs.child import Child
from ml_pipeline.runs.env_pool import pool_for_runs
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runs.stop import ON_REQUEST, StopRequest, study_note
from ml_pipeline.runtime.cores import usable_cores
from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE
from ml_pipeline.runtime.files import only_regular
from ml_pipeline.runtime.rank_variables import variables_of_rank
from ml_pipeline.tuning.config import TuneOrder, flat_base
from ml_pipeline.tuning.progress import write_progress
from ml_pipeline.tuning.study import make_study, space_of, steps_per_trial
from ml_pipeline.tuning.study_files import N_TRIALS_ATTRIBUTE, feature_warnings, warnings_in_words
from ml_pipeline.tuning.trials.supervisor import WORKERS_LOG, Listener, Supervisor
from ml_pipeline.tuning.trials.worker import count_trials
from ml_pipeline.tuning.trials.worker_process import WorkerOrder
from ml_pipeline.tuning.winner_statistics import finished_trials, why_no_winner

_WORKER = "ml_pipeline.tuning.trials.worker_process"
_MB = 1e6


class StudyRun:
    """An open study; `run` trains its trials. study: Optuna's. n_jobs: trials at once."""

    def __init__(self, order: TuneOrder, *, listener: Listener | None = None, stop: StopRequest | None = None) -> None:
        """order: from `tune_config`. Raises UserError, before any training, if the order cannot be followed."""
        self._order, self._listener, self._stop = order, listener or _Silent(), stop or StopRequest()
        self.folder = root_of_runs(order.tune.root) / order.study_name
        self._note = study_note(self.folder)  # of an earlier request
        self.study: optuna.Study = make_study(
            order,
            self.folder,
            space_of(order),
            say=self._listener.say,
            stopped=lambda: self._stop.requested,
            version=__version__,
        )
        self._trials: list[FrozenTrial] = []
        self._n_trials = order.tune.n_trials
        if order.tune.continue_trial is not None:  # does not change the study's number of trials
            self._n_trials = self.study.user_attrs.get(N_TRIALS_ATTRIBUTE, self._n_trials)
        elif self.study.user_attrs.get(N_TRIALS_ATTRIBUTE) != self._n_trials:
            self.study.set_user_attr(N_TRIALS_ATTRIBUTE, self._n_trials)
        self._base = flat_base(order)
        self._cores = usable_cores()
        self.n_jobs = self._count_jobs()

    def _count_jobs(self) -> int:
        tune = self._order.tune
        if tune.continue_trial is not None:
            return 1
        left = max(1, tune.n_trials - count_trials(self.study).finished)
        has_choice = tune.n_jobs == "auto"
        room = Need(
            runs=math.inf if tune.n_jobs == "auto" else tune.n_jobs,
            cores=max(1.0, self._cores) if has_choice else math.inf,
            memory_mb=free_memory_bytes() / _MB if has_choice else math.inf,
            envs=tune.max_concurrent_envs or math.inf,
        )
        return jobs_that_fit(self._base, room, n_trials=left)

    def trials(self) -> list[FrozenTrial]:
        """The study's current trials; the last known ones if the storage is unavailable."""
        with suppress(UserError):
            self._trials = self.study.get_trials(deepcopy=False)
        return self._trials

    def remarks(self) -> tuple[str, ...]:
        """Notes on the study's figures: warnings about features, and why there is no winner."""
        with suppress(UserError):
            idle = why_no_winner(finished_trials(self.study, self.folder))
            return (*warnings_in_words(feature_warnings(self.study)), *filter(None, [idle]))
        return ()

    def run(self) -> bool:
        """Train the trials; return whether the study is finished. Raises as `Supervisor.run`."""
        continues = self._order.tune.continue_trial
        if continues is None and count_trials(self.study).finished >= self._order.tune.n_trials:
            self._write_progress(state="stopped")
            return True
        own = settings_of_workers(self._base, n_jobs=self.n_jobs, cores=self._cores)
        order = replace(self._order, base={**self._order.base, **own})
        with ExitStack() as stack:
            environment = {**self._environment(), **self._pool({**self._base, **own}, stack)}
            log = stack.enter_context(workers_log(self.folder))
            worker_order = WorkerOrder(order=order, study_folder=self.folder).as_json()
            supervisor = Supervisor(
                self.study,
                self.folder,
                partial(Child, _WORKER, worker_order, purpose="trials", environment=environment, log=log),
                listener=self._listener,
                stop=self._stop,
                on_tick=self._on_tick,
            )
            try:
                return supervisor.run(self.n_jobs)
            finally:
                self._write_progress(state="stopped")

    def _environment(self) -> dict[str, str]:
        """Environment variables of workers, each of which is the first rank of its trials. OMP_WAIT_POLICY: waiting
        threads sleep instead of spinning, in case there are more threads than cores."""
        n_ranks = self._base["n_processes"]
        gpu = self._order.tune.gpu
        shown = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        threads = threads_of_workers(n_processes=self.n_jobs * n_ranks, cores=self._cores)
        return {"OMP_WAIT_POLICY": "passive", **threads, **variables_of_rank(0, n_ranks), **shown}

    def _pool(self, settings: Mapping[str, Any], stack: ExitStack) -> dict[str, str]:
        """The variable that gives workers the limit on environments, if they use worker processes."""
        if settings["vec_env"] != "parallel" or settings["n_workers"] == 0:
            return {ENV_POOL_VARIABLE: ""}
        pool = pool_for_runs(self._order.tune.max_concurrent_envs, self._listener.say)
        return {ENV_POOL_VARIABLE: "" if pool is None else stack.enter_context(pool).address}

    def _on_tick(self) -> None:
        if study_note(self.folder) != self._note:
            self._stop.request(ON_REQUEST, signal=signal.SIGTERM)
        self._write_progress()

    def _write_progress(self, *, state: Any = "running") -> None:
        try:
            write_progress(
                self.study,
                self.folder,
                n_trials=self._n_trials,
                jobs=self.n_jobs,
                steps_per_trial=steps_per_trial(self._order),
                state=state,
            )
        except UserError:  # the storage is unavailable, which is reported elsewhere
            return


class _Silent:
    """A listener that ignores everything."""

    def trial_ended(self, end: Mapping[str, Any]) -> None: ...

    def say(self, sentence: str) -> None: ...


_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def workers_log(folder: Path) -> TextIO:
    """The open log of workers in a study's folder. Raises UserError if it cannot be written."""
    path = folder / WORKERS_LOG
    try:
        folder.mkdir(parents=True, exist_ok=True)  # the storage may lie elsewhere
        return open(path, "a", encoding="utf-8", opener=only_regular)
    except OSError as error:
        raise UserError(f"{shown_path(path)} cannot be written: {error.strerror}.") from error


def jobs_that_fit(settings: Mapping[str, Any], room: Need, *, n_trials: int) -> int:
    """How many trials with these flat settings fit into the room at once, from 1 to n_trials.

    >>> room = Need(runs=math.inf, cores=8.0, memory_mb=2600.0, envs=math.inf)
    >>> jobs_that_fit({"n_envs": 4, "n_workers": 0, "vec_env": "parallel"}, room, n_trials=100)
    5
    >>> jobs_that_fit({"n_envs": 4, "n_workers": 4, "vec_env": "parallel"}, room, n_trials=100)
    2
    >>> jobs_that_fit({"n_envs": 4, "n_processes": 4, "vec_env": "serial"}, room, n_trials=100)
    1
    """
    need = need_of(settings)
    fitting = min(there / each for there, each in zip(room, need, strict=True) if math.isfinite(there))
    return max(1, min(n_trials, math.floor(fitting)))


def settings_of_workers(settings: Mapping[str, Any], *, n_jobs: int, cores: float) -> dict[str, Any]:
    """Settings that are added to all trials because they share the cores; they change no result.

    If each process of a trial has only one core, worker processes gain nothing, and measuring the best number of them
    takes half a second of every trial.

    >>> settings_of_workers({"n_workers": "auto", "vec_env": "parallel"}, n_jobs=2, cores=2.0)
    {'n_workers': 0}
    >>> settings_of_workers({"n_workers": "auto", "vec_env": "parallel"}, n_jobs=2, cores=8.0)
    {}
    >>> settings_of_workers({"n_workers": "auto", "vec_env": "parallel", "n_processes": 4}, n_jobs=2, cores=8.0)
    {'n_workers': 0}
    """
    has_choice = settings.get("n_workers", "auto") == "auto" and settings.get("vec_env", "parallel") == "parallel"
    n_processes = n_jobs * settings.get("n_processes", 1)
    return {"n_workers": 0} if has_choice and cores / n_processes < 2 else {}


def threads_of_workers(*, n_processes: int, cores: float) -> dict[str, str]:
    """Environment variables that give each process its share of the cores, at least one.

    >>> threads_of_workers(n_processes=2, cores=8.0)["OMP_NUM_THREADS"]
    '4'
    """
    return {name: str(max(1, math.floor(cores / n_processes))) for name in _THREADS}
