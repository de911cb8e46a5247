"""Command: turn a PPO model of Stable-Baselines3 into a run folder, without running the pickles in its files.

ml-pipeline import-sb3 model.zip --env-id CartPole-v1
ml-pipeline import-sb3 model.zip --vecnormalize vecnormalize.pkl --env-id HalfCheetah-v5
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.wording import shown_path
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.configs import parse_import

PROG = "import-sb3"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Write the run folder; return 0. Exits with one sentence and code 2 if the input is invalid."""
    with entry(prog):
        config = parse_import(argv, prog=prog, description=COMMANDS[PROG].sentence)

        from ml_pipeline.runs.trained.import_sb3_model import import_model

        imported = import_model(config)
        for notice in imported.notices:
            print(notice)
        print(f"{config.model} is now the run {shown_path(imported.folder)}.")
    return 0
