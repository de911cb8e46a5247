"""Draw the pictures of docs/dashboard.md: trains a few short runs, and opens the page over them.

python -m tests.dashboard.pictures
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.dashboard.server import serve
from tests.small_runs import PPO, config_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


def train_runs(root: Path) -> None:
    """Four CartPole runs, and a trader on the built-in market."""
    from dataclasses import replace

    from ml_pipeline.config.run import RunConfig
    from ml_pipeline.runs.run import Run
    from ml_pipeline.runs.tasks import make_task
    from ml_pipeline.runs.train_config import TrainConfig

    usual = {"num_episodes": None, "total_timesteps": 40_000, "n_envs": 8, "eval_interval": 10, "eval_episodes": 5}
    ppo = replace(PPO, n_steps=64, minibatch_size=128, n_epochs=6, hidden_sizes=(64, 64), learning_rate=1e-3)
    configs = [config_of(root / f"cartpole-seed{seed}", ppo=ppo, seed=seed, **usual) for seed in range(3)]
    slower = replace(ppo, learning_rate=2e-4, ent_coef=0.01)
    configs.append(config_of(root / "cartpole-small-steps", ppo=slower, seed=0, **usual))
    trader = RunConfig(
        n_envs=8, num_episodes=None, total_timesteps=20_000, vec_env="serial", checkpoint_dir=root / "trader-builtin"
    )
    configs.append(TrainConfig(run=trader, ppo=replace(ppo, n_epochs=4)))
    for config in configs:
        Run(config, make_task(config)).train()


def draw(root: Path) -> None:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        raise UserError("Chromium is not installed; the pictures are drawn in it.")
    chosen = "&".join(
        f"run={name}" for name in ("cartpole-seed0", "cartpole-seed1", "cartpole-seed2", "cartpole-small-steps")
    )
    with serve(root, port=0) as server, contextlib.ExitStack() as stack:
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=program, args=["--no-sandbox"])
        stack.callback(browser.close)

        def picture(name: str, view: str, *, scheme: str = "light", width: int = 1440, height: int = 900) -> None:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            page = context.new_page()
            page.goto(f"{server.url}#{chosen}&view={view}")
            page.wait_for_selector("html[data-ready]")
            if view == "curves":
                with page.expect_response(lambda response: "smoothing=0.7" in response.url):
                    page.locator("#smoothing").fill("0.7")
                page.locator("#smoothing").blur()
            page.wait_for_timeout(500)
            page.screenshot(path=DOCS / name)
            context.close()

        picture("dashboard.png", "curves")
        picture("dashboard-time.png", "time", scheme="dark", height=620)
        picture("dashboard-settings.png", "settings", height=420)
        picture("dashboard-narrow.png", "curves", width=390, height=844)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # the page shows where it is
        root = Path(folder) / "checkpoints"
        train_runs(root)
        draw(root)
