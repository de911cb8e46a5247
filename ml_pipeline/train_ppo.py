"""Command: train a PPO agent in parallel environments, evaluate it on unseen data, and save it.

python -m ml_pipeline.train_ppo --n-envs 8
python -m ml_pipeline.train_ppo --data prices.csv --n-envs 4 --iterations 200
python -m ml_pipeline.train_ppo --env-id CartPole-v1 --n-envs 8 --total-timesteps 100000
python -m ml_pipeline.train_ppo --env-id CartPole-v1 --n-envs 8 --seeds 1 2 3
python -m ml_pipeline.train_ppo --env-id mine:MyEnv-v0 --check-env
"""

import os
import sys

if not __package__:  # run as a file: put the repository on the path instead of this folder
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from ml_pipeline.runtime.interrupts import exit_at_once_on_signals, exiting_at_once

if __name__ == "__main__":
    exit_at_once_on_signals("train_ppo.py")

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.wording import shown_path
from ml_pipeline.monitoring.console import entry, outlive_readers
from ml_pipeline.runs.commands.ranks import launch_ranks, train_as_rank
from ml_pipeline.runs.commands.train_run import PROG, TypedCommand, train_run, usual_words
from ml_pipeline.runs.ranks.rank_info import rank_info
from ml_pipeline.runs.train_command_line import TrainFlags, TrainStart, read_train_flags, train_start

if TYPE_CHECKING:
    from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Train; return the exit code: 0, 1 if the run failed, or 128 + the number of the signal that stopped it.

    Exits with code 2 and one sentence if the input is invalid. Slow imports happen only after the arguments are
    checked. From then on the run continues even if the reader of its output exits.
    """
    with entry(prog), exiting_at_once():
        place = rank_info(os.environ)
    told_by = prog if place is None or place.rank == 0 else f"{prog} (rank {place.rank})"
    with entry(told_by):
        with exiting_at_once():
            flags = read_train_flags(argv, prog=prog, description=COMMANDS["train"].sentence)
            starts_ranks = place is None and _takes_ranks(flags) and not flags.check_env
            if place is not None or starts_ranks:
                _refuse_with_ranks(flags)
        if place is not None:
            return train_as_rank(place, flags, prog=prog, told_by=told_by)
        if starts_ranks:
            return launch_ranks(flags, argv, prog=prog)
        with exiting_at_once():
            start = train_start(flags)

            from ml_pipeline.runs.tasks import make_task

        if start.check_env:
            task = make_task(start.config)
            return _check_env(task.name, task.train_env_fns(1)[0], start.config.run.step_timeout_s)
        outlive_readers()
        command = TypedCommand(prog, _typed(argv, prog))
        if start.seeds:
            return _train_seeds(start, command)
        task = make_task(start.config)
        return train_run(start, task, command)


def _typed(argv: Sequence[str], prog: str) -> list[str]:
    """How the user started this command, for the hint on resuming; the usual words for `prog` if that is unknown."""
    script = Path(sys.argv[0])
    is_installed = script.stem == "ml-pipeline"
    before = len(sys.orig_argv) - len(argv)
    if sys.orig_argv[before:] != list(argv) or not (is_installed or script.absolute().parent == Path(__file__).parent):
        return usual_words(prog)
    words = sys.orig_argv[:before]
    if not is_installed or words[1] != sys.argv[0]:
        return words
    found = shutil.which(script.name)  # the name alone, if PATH finds the same script
    return [script.name if found and os.path.samefile(found, script) else str(script), *words[2:]]


def _takes_ranks(flags: TrainFlags) -> bool:
    return (
        flags.given.get("n_processes", 1) > 1 or flags.given.get("launcher", RunConfig.launcher) != RunConfig.launcher
    )


def _refuse_with_ranks(flags: TrainFlags) -> None:
    for name, is_given in (("seeds", flags.seeds), ("check_env", flags.check_env)):
        if is_given:
            raise UserError(f"{flag_of(name)} works in one process only; leave it out, or do not start several.")


def _train_seeds(start: TrainStart, command: TypedCommand) -> int:
    """Train one run per seed, then compare them; stop after the first run that does not finish."""
    from ml_pipeline.experiments.compare import read_comparison, write_figure
    from ml_pipeline.experiments.seeds import name_seed_runs, seed_configs
    from ml_pipeline.runs.tasks import make_task

    task = make_task(start.config)
    base = name_seed_runs(start.config, task.name)
    configs = seed_configs(start.config, start.seeds, base)
    left = list(start.seeds)
    try:
        for i, config in enumerate(configs):
            print(f"Seed {config.run.seed} ({i + 1} of {len(configs)})", flush=True)
            del left[0]
            try:
                seed = config.run.seed
                one = replace(start, config=config, started_with=start.started_with.with_flags(seed=seed))
                code = train_run(one, task.with_seed(seed), command)
            except UserError as error:
                print(f"{command.prog}: {error}", file=sys.stderr)
                code = 2
            if code:
                return code
    finally:
        if left:
            print(f"Not trained: --seeds {' '.join(map(str, left))}", file=sys.stderr)
    comparison = read_comparison([config.run.checkpoint_dir for config in configs if config.run.checkpoint_dir])
    picture = base.with_name(f"{base.name}-comparison.png")
    write_figure(comparison.figure(), picture)
    print(f"\n{comparison.table()}\n\nWritten to {shown_path(picture)}", flush=True)
    return 0


def _check_env(name: str, env_fn: "EnvFactory", step_timeout_s: float | None) -> int:
    """Print one sentence per problem of an environment; return 1 if there is any, else 0."""
    from ml_pipeline.models.rl.core.env_check import check_env_in_process
    from ml_pipeline.models.rl.preprocessing.observations import observation_layout

    found = check_env_in_process(env_fn, step_timeout_s=step_timeout_s, read=observation_layout)
    for sentence in found or ["no problem found: it stays within its spaces, and its seed determines its behaviour"]:
        print(f"{name}: {sentence}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
