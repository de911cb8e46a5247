"""Draw the pictures of the guide to many trainings: train short runs, and open the dashboard on them and a study.

python -m tests.dashboard.pictures
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

import numpy as np

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.server import serve
from tests.dashboard.run_folders import make_run
from tests.dashboard.study_folders import study_values, trial, write_study
from tests.small_runs import PPO, config_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


def train_runs(root: Path) -> None:
    """Four CartPole runs, and a trader on the built-in market."""
    from dataclasses import replace

    from ml_pipeline.config.run import RunConfig
    from ml_pipeline.runs.run import Run
    from ml_pipeline.runs.tasks import make_task
    from ml_pipeline.runs.train_config import TrainConfig

    usual = {"iterations": None, "total_timesteps": 40_000, "n_envs": 8, "eval_interval": 10, "eval_episodes": 5}
    ppo = replace(PPO, n_steps=64, minibatch_size=128, n_epochs=6, hidden_sizes=(64, 64), learning_rate=1e-3)
    configs = [config_of(root / f"cartpole-seed{seed}", ppo=ppo, seed=seed, **usual) for seed in range(3)]
    slower = replace(ppo, learning_rate=2e-4, ent_coef=0.01)
    configs.append(config_of(root / "cartpole-small-steps", ppo=slower, seed=0, **usual))
    trader = RunConfig(
        n_envs=8, iterations=None, total_timesteps=20_000, vec_env="serial", checkpoint_dir=root / "trader-builtin"
    )
    configs.append(TrainConfig(run=trader, ppo=replace(ppo, n_epochs=4)))
    for config in configs:
        Run(config, make_task(config)).train()


def make_a_study(root: Path) -> None:
    """A study in the middle: a study.json of its trials, and a few of their runs."""
    draws = np.random.default_rng(3)
    n = 212
    rates, steps = 10 ** draws.uniform(-4.5, -2, n), draws.choice([64, 128, 256, 512], n)
    values = (1.3 - (np.log10(rates) + 3.4) ** 2 + draws.normal(0, 0.25, n)).tolist()
    settings = [
        {"learning_rate": float(rate), "n_steps": int(length), "gamma": float(gamma), "hidden_sizes": [64, 64]}
        for rate, length, gamma in zip(rates, steps, draws.choice([0.98, 0.99, 0.995], n), strict=True)
    ]
    pruned = draws.random(n) < 0.3
    trials = [
        trial(i, value=value, settings=settings[i], state="pruned" if pruned[i] else "complete")
        for i, value in enumerate(values)
    ]
    told = study_values(values=values, n_trials=500, running=(213, 214), seconds_left=18_031.0)
    which = told["best"]["number"]
    told["best"]["settings"] = settings[which]
    told |= {"trials": trials, "complete": int((~pruned).sum()), "pruned": int(pruned.sum()), "failed": 1}
    told["failures"] = [{"reason": "Worker 1 (environment 5 of 8, seed 47) was killed.", "times": 1, "numbers": [77]}]
    for each, value in zip(told["running"], (0.91, 0.4), strict=True):
        each["value"] = value
    folder = root / "eurusd_5m"
    write_study(folder, told)
    (folder / "report.html").write_text("<!doctype html><p>")
    for number, status, n_rows in ((which, "finished", 10), (213, "running", 6), (214, "running", 2)):
        make_run(folder, f"trial-{number:04}", status=status, n_rows=n_rows)


def draw(root: Path) -> None:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise UserError("Drawing the pictures needs Chromium, which is not installed; install it.")
    chosen = "&".join(
        f"run={name}" for name in ("cartpole-seed0", "cartpole-seed1", "cartpole-seed2", "cartpole-small-steps")
    )
    with serve(root, port=0) as server, contextlib.ExitStack() as stack:
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=program, args=["--no-sandbox"])
        stack.callback(browser.close)

        def picture(name: str, view: str, *, scheme: str = "light", width: int = 1440, height: int = 900) -> None:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(f"{server.url}#{'study=eurusd_5m' if view == 'study' else f'{chosen}&view={view}'}")
            page.wait_for_selector("html[data-ready]")
            if view == "curves":
                with page.expect_response(lambda response: "smoothing=0.7" in response.url):
                    page.locator("#smoothing").fill("0.7")
                page.locator("#smoothing").blur()
            page.wait_for_timeout(2500 if view == "study" else 500)
            page.screenshot(path=DOCS / name)
            context.close()

        picture("dashboard.png", "curves")
        picture("dashboard-time.png", "time", scheme="dark", height=620)
        picture("dashboard-settings.png", "settings", height=420)
        make_a_study(root)  # the other pictures show only runs
        picture("dashboard-study.png", "study", height=860)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # the page shows its path
        root = Path(folder) / "checkpoints"
        train_runs(root)
        draw(root)
