"""The process of one worker: it reads its order from stdin, and tells on stdout what it does, a JSON object per line.

{"began": K}  {"ended": {...}}  {"say": "..."}  {"done": true}  {"refused": "..."}

A further line on stdin asks it to stop: it saves, and ends. So does the end of stdin, which comes when `tune` is gone
however it ended. What libraries print goes to stderr, which is a log in the study's folder.

python -m ml_pipeline.tuning.workers.worker_process
"""

import dataclasses
import json
import os
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import exit_at_once_on_signals
from ml_pipeline.tuning.config import TuneOrder, order_from
from ml_pipeline.tuning.event_channel import EventChannel

if TYPE_CHECKING:
    import optuna

REFUSED = 2
"""Exit code of a worker that cannot use what it was given, or cannot save: another one would say the same."""
_GRACE_S = 60.0  # from the end of `tune` to that of a worker whose step does not end


@dataclass(frozen=True, kw_only=True)
class WorkerOrder:
    """What a worker is to do."""

    order: TuneOrder
    study_folder: Path

    def as_json(self) -> dict[str, Any]:
        return {"order": self.order.as_json(), "study_folder": str(self.study_folder)}


def work(worker_order: WorkerOrder, stop: StopRequest, channel: EventChannel) -> None:
    """Train trials until there are no more to train. Raises UserError where that cannot be."""
    from ml_pipeline.tuning.study import load_study, space_of

    order, folder = worker_order.order, worker_order.study_folder
    _require_gpu(order)

    def say(sentence: str) -> None:
        channel.tell(say=sentence)

    space = space_of(order)
    study = load_study(order, folder, space, say=say, stopped=lambda: stop.requested)
    if order.tune.continue_trial is not None:
        _continue(study, worker_order, stop, channel)
        return

    from ml_pipeline.tuning.trials.trial_run import TrialRuns
    from ml_pipeline.tuning.workers.worker import Worker, WorkerEvents

    with closing(TrialRuns(order.base, order.objective, folder)) as runs:
        worker = Worker(
            study,
            folder,
            n_trials=order.tune.n_trials,
            suggest=space.suggest,
            runs=runs,
            stop=stop,
            events=WorkerEvents(
                began=lambda number: channel.tell(began=number),
                ended=lambda end: channel.tell(ended=dataclasses.asdict(end)),
                say=say,
            ),
            is_shared=order.tune.storage is not None,
        )
        worker.work()


def _continue(study: "optuna.Study", worker_order: WorkerOrder, stop: StopRequest, channel: EventChannel) -> None:
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
        say=lambda sentence: channel.tell(say=sentence),
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
    channel.tell(ended=told)


def _require_gpu(order: TuneOrder) -> None:
    """Raise UserError unless the GPU that was named is there; CUDA_VISIBLE_DEVICES shows it alone."""
    if order.tune.gpu is None:
        return
    import torch

    if not torch.cuda.is_available():
        raise UserError(
            f"--gpu is {order.tune.gpu}, but this machine has no such GPU that torch can use; name another, or leave "
            "it out to train on the CPU."
        )


def _heed(stdin: BinaryIO, stop: StopRequest) -> None:
    """Request a stop when a line comes, or the end; after the end this process does not live long."""
    if stdin.readline():
        stop.request("Ctrl-C.")
        stdin.read()
    stop.request("The process of tune has ended.")
    time.sleep(_GRACE_S)
    os._exit(1)


def main() -> int:
    """Follow the order on stdin; return the exit code."""
    exit_at_once_on_signals("worker")
    channel = EventChannel()
    stdin = os.fdopen(os.dup(0), "rb")
    content = json.loads(stdin.readline() or b"null")
    if content is None:  # tune ended before it could say what to do
        return 0
    for path in reversed(content["sys_path"]):
        if path not in sys.path:
            sys.path.append(path)
    stop = StopRequest()
    threading.Thread(target=_heed, args=(stdin, stop), name="end-of-tune", daemon=True).start()
    from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals

    try:
        worker_order = WorkerOrder(order=order_from(content["order"]), study_folder=Path(content["study_folder"]))
        with stop_on_signals(lambda number: stop.request("The worker was asked to stop by a signal.")):
            work(worker_order, stop, channel)
    except UserError as error:
        channel.tell(refused=str(error))
        return REFUSED
    if not stop.requested:
        channel.tell(done=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries, and of ours that reads stdin, need not end first
