"""Entry: train a PPO agent over parallel environments, evaluate it on data it has never seen, and save it.

python -m ml_pipeline.train_ppo --n-envs 8
python -m ml_pipeline.train_ppo --data prices.csv --n-envs 4 --num-episodes 200
python -m ml_pipeline.train_ppo --env-id CartPole-v1 --n-envs 8 --total-timesteps 100000
python -m ml_pipeline.train_ppo --env-id CartPole-v1 --n-envs 8 --seeds 1 2 3
python -m ml_pipeline.train_ppo --env-id mine:MyEnv-v0 --check-env
"""

import os
import sys

if not __package__:  # run as a file: the repository takes this folder's place on the path
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from ml_pipeline.runtime.interrupts import Interrupted, exit_at_once_on_signals, exiting_at_once

if __name__ == "__main__":
    exit_at_once_on_signals("train_ppo.py")

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
from ml_pipeline.monitoring.console import entry, outlive_readers
from ml_pipeline.monitoring.listener import RunStart
from ml_pipeline.monitoring.run_console import RunConsole
from ml_pipeline.runs.folder import LATEST_CHECKPOINT
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.train_command_line import TrainStart, parse_train_start

if TYPE_CHECKING:
    from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
    from ml_pipeline.runs.tasks import Task

PROG = "train_ppo.py"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Run with these arguments; return the exit code: 0, 1 where the run broke down, 128 + the signal that stopped it.

    Exits with code 2, after one sentence, where something given cannot be used. Nothing heavy is imported before the
    arguments are known to be good. Once they are, the run goes on whether or not anybody reads what it prints.
    """
    with entry(prog):
        with exiting_at_once():
            start = parse_train_start(argv, prog=prog, description=COMMANDS["train"].sentence)

            from ml_pipeline.runs.tasks import make_task

        if start.check_env:
            task = make_task(start.config)
            return _check_env(task.name, task.train_env_fns(1)[0], start.config.run.step_timeout_s)
        outlive_readers()
        command = _Command(prog, _typed(argv, prog))
        if start.seeds:
            return _train_seeds(start, command)
        task = make_task(start.config)
        if start.notice is not None:
            print(start.notice, flush=True)
        return _train(start, task, command)


class _Command(NamedTuple):
    prog: str
    typed: list[str]
    """What starts it again, with other arguments after it."""

    def resume(self, folder: Path) -> str:
        """What a user types to continue the run in a folder."""
        shown = str(shown_path(folder))
        words = [*self.typed, "--resume", f"./{shown}" if shown.startswith("-") else shown]
        return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def _typed(argv: Sequence[str], prog: str) -> list[str]:
    """The words before `argv` on this process's command line, or those that mean `prog` where it runs others."""
    script = Path(sys.argv[0])
    is_installed = script.stem == "ml-pipeline"
    before = len(sys.orig_argv) - len(argv)
    if sys.orig_argv[before:] != list(argv) or not (is_installed or script.absolute().parent == Path(__file__).parent):
        return prog.split() if prog != PROG else ["python", "-m", "ml_pipeline.train_ppo"]
    words = sys.orig_argv[:before]
    if not is_installed or words[1] != sys.argv[0]:
        return words
    found = shutil.which(script.name)  # typed by its name where that finds it
    return [script.name if found and os.path.samefile(found, script) else str(script), *words[2:]]


class _Terminal(RunConsole):
    """The run on the terminal; while it trains, Ctrl-C, SIGTERM and SIGHUP request a stop."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = StopRequest()
        self.stopped_by: int | None = None  # the number of the first signal
        self._listening = ExitStack()

    def started(self, start: RunStart) -> None:
        self._listening.enter_context(stop_on_signals(self._request_stop))
        super().started(start)

    def trained(self) -> None:
        self.close()

    def close(self) -> None:
        self._listening.close()
        super().close()

    def _request_stop(self, number: int) -> None:
        if self.stopped_by is None:
            self.stopped_by = number
        self.stop.request(str(Interrupted(self.stopped_by)))
        with suppress(RuntimeError):  # the signal met the main thread while it was writing to the terminal
            self.say("Stopping after this step, then saving; once more to stop without saving.")


def _train(start: TrainStart, task: "Task", command: _Command) -> int:
    with exiting_at_once():  # torch, which takes seconds
        from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
        from ml_pipeline.models.rl.update.ppo_update import TrainingFailed
        from ml_pipeline.runs.run import Run

    print(*task.notices, sep="\n", end="\n" if task.notices else "")
    terminal = _Terminal()
    run = Run(
        start.config,
        task,
        checkpoint=start.checkpoint,
        trust_checkpoint=start.trust_checkpoint,
        sinks=[terminal],
        listener=terminal,
        stop=terminal.stop,
    )
    try:
        with closing(terminal):
            result = run.train()
    except (VectorEnvError, TrainingFailed) as error:
        hint = [f"  {command.resume(run.result.folder)}"] if run.result else []
        print(f"{command.prog}: {error}", *getattr(error, "__notes__", ()), *hint, sep="\n", file=sys.stderr)
        return 1
    except Interrupted as stop:
        if run.result is None:
            raise
        print(f"{command.prog}: {run.result.reason or f'{stop} The run had finished.'}", file=sys.stderr)
        if (run.result.folder / LATEST_CHECKPOINT).exists():
            print(f"Go on with:\n  {command.resume(run.result.folder)}", file=sys.stderr)
        return stop.exit_code
    if result.status == "stopped":
        print(
            f"Saved {shown_path(result.folder / LATEST_CHECKPOINT)} at step {result.global_step:,}; go on with:\n"
            f"  {command.resume(result.folder)}"
        )
        assert terminal.stopped_by is not None  # nothing else requests a stop
        return 128 + terminal.stopped_by
    print(f"{result.report}\n\nWritten to {shown_path(result.folder)}", flush=True)
    return 0


def _train_seeds(start: TrainStart, command: _Command) -> int:
    """Train a run for each seed, then compare them; the first that does not finish is the last."""
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
                code = _train(replace(start, config=config), task.with_seed(config.run.seed), command)
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
    """Say what is wrong with an environment, a sentence each; 1 where anything is."""
    from ml_pipeline.models.rl.core.env_check import check_env_in_process

    found = check_env_in_process(env_fn, step_timeout_s=step_timeout_s)
    for sentence in found or ["nothing found: it keeps to its spaces, and its seed settles all that happens in it"]:
        print(f"{name}: {sentence}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
