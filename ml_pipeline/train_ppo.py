"""Entry: train a PPO agent over parallel environments, evaluate it on data it has never seen, and save it.

python -m ml_pipeline.train_ppo --n-envs 8
python -m ml_pipeline.train_ppo --data prices.csv --n-envs 4 --num-episodes 200
python -m ml_pipeline.train_ppo --env-id CartPole-v1 --n-envs 8 --total-timesteps 100000
python -m ml_pipeline.train_ppo --env-id mine:MyEnv-v0 --check-env
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a file: the repository takes this folder's place on the path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ml_pipeline.commands import COMMANDS
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.train_config import parse_train_start

if TYPE_CHECKING:
    from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory

PROG = "train_ppo.py"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Run with these arguments; return the exit code: 0, 1 where the run broke down, 128 + the signal that stopped it.

    Exits with code 2, after one sentence, where something given cannot be used. Nothing heavy is imported before the
    arguments are known to be good.
    """
    with entry(prog):
        start = parse_train_start(argv, prog=prog, description=COMMANDS["train"].sentence)

        from ml_pipeline.runs.task_choice import make_task

        task = make_task(start.config)
        if start.check_env:
            return _check_env(task.name, task.train_env_fns(1)[0], start.config.run.step_timeout_s)

        from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
        from ml_pipeline.models.rl.update.ppo_update import TrainingFailed
        from ml_pipeline.runs.training import run_training

        try:
            return run_training(start, task)
        except (VectorEnvError, TrainingFailed) as error:
            print(f"{prog}: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"{prog}: stopped without saving; what earlier checkpoints hold is whole.", file=sys.stderr)
            return 130


def _check_env(name: str, env_fn: "EnvFactory", step_timeout_s: float | None) -> int:
    """Say what is wrong with an environment, a sentence each; 1 where anything is."""
    from ml_pipeline.models.rl.core.env_check import check_env_apart

    found = check_env_apart(env_fn, step_timeout_s=step_timeout_s)
    for sentence in found or ["nothing found: it keeps to its spaces, and its seed settles all that happens in it"]:
        print(f"{name}: {sentence}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
