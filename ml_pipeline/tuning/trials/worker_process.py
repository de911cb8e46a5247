"""The process of one worker: it trains trials by its order, and reports to `tune`:

{"began": K}  {"ended": {...}}  {"say": "..."}  {"done": true}  {"refused": "..."}

If it is asked to stop, or if `tune` has ended in any way, it saves and ends. The output of libraries goes to a log in
the study's folder.
"""

import dataclasses
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.jobs.child import Parent, serve
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import exit_at_once_on_signals
from ml_pipeline.tuning.config import TuneOrder, order_from

if TYPE_CHECKING:
    import optuna


REFUSED = 2
"""Exit code of a worker that cannot use its order or cannot save: another worker would fail too."""
_GRACE_S = 60.0  # from the end of `tune` until a worker that is stuck in a step is killed


@dataclass(frozen=True, kw_only=True)
class WorkerOrder:
    """The order of a worker."""

    order: TuneOrder
    study_folder: Path

    def as_json(self) -> dict[str, Any]:
        return {"order": self.order.as_json(), "study_folder": str(self.study_folder)}


def work(worker_order: WorkerOrder, stop: StopRequest, tune: Parent) -> None:
    """Train trials until none are left. Raises UserError if that is impossible."""
    from ml_pipeline.tuning.study import load_study, space_of

    order, folder = worker_order.order, worker_order.study_folder
    _require_gpu(order)

    def say(sentence: str) -> None:
        tune.tell(say=sentence)

    space = space_of(order)
    study = load_study(order, folder, space, say=say, stopped=lambda: stop.requested)
    if order.tune.continue_trial is not None:
        _continue(study, worker_order, stop, tune)
        return

    from ml_pipeline.tuning.trials.trial_run import TrialRuns
    from ml_pipeline.tuning.trials.worker import Worker, WorkerEvents

    with closing(TrialRuns(order.base, order.objective, folder)) as runs:
        worker = Worker(
            study,
            folder,
            n_trials=order.tune.n_trials,
            suggest=space.suggest,
            runs=runs,
            stop=stop,
            events=WorkerEvents(
                began=lambda number: tune.tell(began=number),
                ended=lambda end: tune.tell(ended=dataclasses.asdict(end)),
                say=say,
            ),
            is_shared=order.tune.storage is not None,
        )
        worker.work()


def _continue(study: "optuna.Study", worker_order: WorkerOrder, stop: StopRequest, tune: Parent) -> None:
    from ml_pipeline.tuning.study import with_length_of_study
    from ml_pipeline.tuning.trials.continue_trial import continue_trial

    order = worker_order.order
    number = order.tune.continue_trial
    assert number is not None
    base, total_timesteps = with_length_of_study(study, order.base)
    began = time.monotonic()
    outcome = continue_trial(
        study,
        worker_order.study_folder,
        number,
        base=base,
        objective=order.objective,
        total_timesteps=total_timesteps,
        stop=stop,
        say=lambda sentence: tune.tell(say=sentence),
    )
    if outcome.state in {"failed", "lost"}:
        raise UserError(f"Trial {number} was not continued to its end: {outcome.reason}")
    told = {
        "number": number,
        "state": outcome.state,
        "value": outcome.value,
        "reason": outcome.reason,
        "global_step": outcome.global_step,
        "seconds": time.monotonic() - began,
    }
    tune.tell(ended=told)


def _require_gpu(order: TuneOrder) -> None:
    """Raise UserError unless the given GPU exists; CUDA_VISIBLE_DEVICES shows only that one."""
    if order.tune.gpu is None:
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"--gpu is {order.tune.gpu}, but torch finds no such GPU on this machine; name another, or leave it out "
            "to train on the CPU."
        )


def main(tune: Parent) -> int:
    """Follow the order of `tune`; return the exit code."""
    exit_at_once_on_signals("worker")
    stop = StopRequest()
    tune.on_stop(lambda is_gone: stop.request("The process of tune has ended." if is_gone else "Ctrl-C."))
    content = tune.next_order()
    from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals

    try:
        worker_order = WorkerOrder(order=order_from(content["order"]), study_folder=Path(content["study_folder"]))
        with stop_on_signals(lambda number: stop.request("The worker was asked to stop by a signal.")):
            work(worker_order, stop, tune)
    except UserError as error:
        tune.tell(refused=str(error))
        return REFUSED
    if not stop.requested:
        tune.tell(done=True)
    return 0


if __name__ == "__main__":
    serve(main, grace_s=_GRACE_S)
