"""Run folders as runs leave them, without training."""

import json

import yaml

from ml_pipeline.runtime.process_identity import this_process

BEGAN = "2026-01-05T10:00:00+00:00"


def row(i, **more):
    """The metrics of iteration i, which takes 2 s."""
    return {
        "time/iteration": i,
        "time/global_step": i * 100,
        "time/steps_per_second": 50.0,
        "time/acting_s": 0.5,
        "time/stepping_s": 1.0,
        "time/waiting_s": 0.0,
        "time/learning_s": 0.5,
        "rollout/mean_return_100": float(i),
        "train/policy_loss": -0.01 * i,
        **more,
    }


def lines_of(rows):
    return "".join(f"{json.dumps(each)}\n" for each in rows)


def append(folder, rows):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(lines_of(rows))


def make_run(root, name, *, n_rows=5, rows=None, status="finished", reason=None, began=BEGAN, **settings):
    """A run folder below root; returns it. This process writes it, so that a running run is one."""
    folder = root / name
    folder.mkdir(parents=True)
    rows = [row(i) for i in range(1, n_rows + 1)] if rows is None else rows
    (folder / "metrics.jsonl").write_text(lines_of(rows))
    usual = {"env_id": "CartPole-v1", "n_envs": 2, "n_steps": 50, "total_timesteps": 1000, "seed": 0}
    (folder / "config.yaml").write_text(yaml.safe_dump({**usual, **settings}, sort_keys=False))
    state = {"status": status, "reason": reason, "began": began, **this_process()._asdict()}
    if status not in ("running", "queued"):
        state |= {"ended": BEGAN, "global_step": 100 * len(rows), "iterations": len(rows), "best_score": 1.5}
    (folder / "state.json").write_text(json.dumps(state))
    return folder
