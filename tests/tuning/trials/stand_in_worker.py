"""A worker process whose runs are stand-ins: it imports no torch, and a trial takes a tenth of a second."""

import sys
import time
import types
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    state: str
    value: float | None = None
    reason: str | None = None
    folders: tuple[str, ...] = ()
    global_step: int = 0
    n_evaluations: int = 0
    validation_sharpe: float | None = None
    feature_warnings: tuple = ()


class TrialRuns:
    def __init__(self, base, objective, study_folder):
        self._folder = study_folder

    def close(self):
        pass

    def folders(self, number, settings):
        return (f"trial-{number:04}",)

    def train(self, trial, settings, *, folders=None, stop, say):
        name = (folders or self.folders(trial.number, settings))[0]
        with open(self._folder / name / "attempts", "a") as attempts:
            attempts.write(f"{trial.number} {settings['gamma']}\n")
        end = time.monotonic() + 0.1
        while time.monotonic() < end or (self._folder / "hold").exists():
            if stop.requested:
                return TrialOutcome(state="stopped", reason=stop.reason)
            time.sleep(0.005)
        return TrialOutcome(state="complete", value=settings["gamma"], global_step=10)


if __name__ == "__main__":
    module = types.ModuleType("ml_pipeline.tuning.trials.trial_run")
    module.TrialOutcome, module.TrialRuns, module.report_interval = TrialOutcome, TrialRuns, lambda base: 1
    sys.modules[module.__name__] = module

    from ml_pipeline.jobs.child import serve
    from ml_pipeline.tuning.trials.worker_process import main

    serve(main, grace_s=60.0)
