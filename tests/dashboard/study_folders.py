"""Study folders as studies leave them: a study.json, and a tiny run per trial; without Optuna."""

import json
from datetime import UTC, datetime, timedelta

from ml_pipeline.runtime.process_identity import this_process
from tests.dashboard.run_folders import make_run

GONE = {**this_process()._asdict(), "pid": 2**22 + 1}
"""A process of this machine that is not there."""


def trial(number, *, state="complete", value=None, **more):
    return {
        "number": number,
        "state": state,
        "value": value,
        "folder": f"trial-{number:04}",
        "seconds": 12.5,
        "settings": {"learning_rate": 0.001 * (number + 1), "n_steps": 128},
        **more,
    }


def study_values(*, values=(1.0, 3.0, 2.0), n_trials=10, running=(3,), ago_s=0.0, **more):
    """What study.json holds of a study whose trials ended with these values."""
    best, history = None, []
    for i, value in enumerate(values):
        best = value if best is None else max(best, value)
        history.append([i, 60.0 * (i + 1), value, best])
    now = datetime.now(UTC) - timedelta(seconds=ago_s)
    which = max(range(len(values)), key=values.__getitem__, default=None)
    return {
        "name": "s",
        "direction": "maximize",
        "state": "running",
        "n_trials": n_trials,
        "finished": len(values),
        "complete": len(values),
        "pruned": 0,
        "failed": 0,
        "impossible": 0,
        "jobs": 2,
        "steps_per_trial": None,
        "running": [
            {
                "number": number,
                "folder": f"trial-{number:04}",
                "folders": [f"trial-{number:04}"],
                "began": (now - timedelta(seconds=65)).isoformat(),
                "host": "box",
                "progress": 0.25,
                "value": 1.5,
            }
            for number in running
        ],
        "trials_per_hour": 60.0,
        "trials_per_hour_last_hour": 57.5,
        "seconds_left": 3723.0,
        "best": None
        if which is None
        else {
            "number": which,
            "value": values[which],
            "settings": trial(which)["settings"],
            "folder": f"trial-{which:04}",
        },
        "failures": [],
        "began": (now - timedelta(hours=1)).isoformat(),
        "updated": now.isoformat(),
        "writer": this_process()._asdict(),
        "history": history,
        "trials": [trial(i, value=value) for i, value in enumerate(values)],
        **more,
    }


def write_study(folder, values):
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "study.json.tmp"
    temporary.write_text(json.dumps(values))
    temporary.replace(folder / "study.json")


def make_study(root, name, *, n_runs=0, **more):
    """A study below root, with runs of its first trials; returns its folder."""
    write_study(root / name, study_values(**more))
    running = study_values(**more)["running"]
    under_way = {each["number"] for each in running}
    for number in range(n_runs):
        status = "running" if number in under_way else "finished"
        make_run(root / name, f"trial-{number:04}", n_rows=3, status=status)
    return root / name
