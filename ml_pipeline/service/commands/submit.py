"""Command: hand the service a run for each seed and symbol; prints their ids, one per line.

ml-pipeline submit --config settings.yaml --seeds 0 1 2 --symbols EURUSD GBPUSD --data-dir data/forex
ml-pipeline submit --env-id CartPole-v1 --n-envs 8 --total-timesteps 100000 --priority 1 --restarts 2
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.folder import root_of_runs
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.service.commands.submit_command_line import parse_submission
from ml_pipeline.service.commands.task_check import check_task
from ml_pipeline.service.control.channel import ask_service
from ml_pipeline.service.queue.submission import flat_settings, new_run_id, submitted_config

PROG = "submit"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Submit; exit with code 2, after one sentence, where something given cannot be used. Nothing is queued before all
    settings are known to be good."""
    with entry(prog):
        submission = parse_submission(argv, prog=prog, description=COMMANDS["submit"].sentence)
        submit = submission.submit
        root = root_of_runs(submit.root)
        configs = [submitted_config(config) for config in submission.configs]
        for config in {repr(_without_seed(config)): config for config in submission.configs}.values():
            check_task(config)
        for config, started in zip(configs, submission.started_with, strict=True):
            request = {
                "do": "submit",
                "settings": flat_settings(config),
                "run_id": new_run_id(config),
                "priority": submit.priority,
                "restarts": submit.restarts,
                "folder_of_work": str(Path.cwd()),
            }
            id = ask_service(root, request)
            print(id, flush=True)
            with suppress(UserError):  # the folder may have been deleted at once
                started.record(root / id)
    return 0


def _without_seed(config: TrainConfig) -> TrainConfig:
    return replace(config, run=replace(config.run, seed=0))
