"""Entry: train a PPO agent over parallel environments, evaluate it on data it has never seen, and save it.

python -m ml_pipeline.train_ppo --n-envs 8
python -m ml_pipeline.train_ppo --data prices.csv --n-envs 4 --num-episodes 200
python -m ml_pipeline.train_ppo --env-id CartPole-v1 --n-envs 8 --total-timesteps 100000
python -m ml_pipeline.train_ppo --env-id CartPole-v1 --n-envs 8 --seeds 1 2 3
python -m ml_pipeline.train_ppo --env-id mine:MyEnv-v0 --check-env
"""

import signal
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository takes this folder's place on the path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ml_pipeline.commands import COMMANDS
from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
from ml_pipeline.monitoring.console import entry, shown_path
from ml_pipeline.monitoring.listener import RunStart
from ml_pipeline.monitoring.run_console import RunConsole
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, resume_command
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.train_config import TrainStart, parse_train_start

if TYPE_CHECKING:
    from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
    from ml_pipeline.runs.tasks import Task

PROG = "train_ppo.py"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Run with these arguments; return the exit code: 0, 1 where the run broke down, 128 + the signal that stopped it.

    Exits with code 2, after one sentence, where something given cannot be used. Nothing heavy is imported before the
    arguments are known to be good.
    """
    with entry(prog):
        start = parse_train_start(argv, prog=prog, description=COMMANDS["train"].sentence)

        from ml_pipeline.runs.tasks import make_task

        if start.seeds:
            return _train_seeds(start, prog)
        task = make_task(start.config)
        if start.check_env:
            return _check_env(task.name, task.train_env_fns(1)[0], start.config.run.step_timeout_s)
        if start.notice is not None:
            print(start.notice, flush=True)
        return _train(start, task, prog)


class _Terminal(RunConsole):
    """The run on the terminal; while it trains, Ctrl-C and SIGTERM request a stop."""

    def __init__(self) -> None:
        super().__init__()
        self.stop = StopRequest()
        self.signals: list[int] = []
        self._listening = ExitStack()

    def started(self, start: RunStart) -> None:
        super().started(start)
        self.signals = self._listening.enter_context(stop_on_signals(self._request_stop))

    def trained(self) -> None:
        self.close()

    def close(self) -> None:
        self._listening.close()
        super().close()

    def _request_stop(self) -> None:
        self.stop.request(" ".join(["Stopped by", *(signal.Signals(number).name for number in self.signals)]) + ".")
        with suppress(RuntimeError):  # the signal met the main thread while it was writing to the terminal
            self.say("Stopping after this step, then saving; once more to stop without saving.")


def _train(start: TrainStart, task: "Task", prog: str) -> int:
    from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
    from ml_pipeline.models.rl.update.ppo_update import TrainingFailed
    from ml_pipeline.runs.run import Run

    print(*task.notices, sep="\n", end="\n" if task.notices else "")
    terminal = _Terminal()
    options: dict[str, Any] = {"sinks": [terminal], "listener": terminal, "stop": terminal.stop}
    trusted = start.trust_checkpoint
    run = Run(start.config, task, checkpoint=start.checkpoint, trust_checkpoint=trusted, **options)
    try:
        with closing(terminal):
            result = run.train()
    except (VectorEnvError, TrainingFailed) as error:
        print(f"{prog}: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        reason = run.result.reason if run.result else "Ctrl-C before training began."
        print(f"{prog}: {reason}", file=sys.stderr)
        return 130
    if result.status == "stopped":
        print(
            f"Saved {shown_path(result.folder / LATEST_CHECKPOINT)} at step {result.global_step:,}; go on with:\n"
            f"  {resume_command(result.folder)}"
        )
        return 128 + terminal.signals[0]
    print(f"{result.report}\n\nWritten to {shown_path(result.folder)}", flush=True)
    return 0


def _train_seeds(start: TrainStart, prog: str) -> int:
    """Train a run for each seed, then compare them; the first that does not finish is the last."""
    from ml_pipeline.experiments.compare import read_comparison, write_figure
    from ml_pipeline.experiments.seeds import name_seed_runs, seed_configs
    from ml_pipeline.runs.tasks import make_task

    task = make_task(start.config)
    base = name_seed_runs(start.config, task.name)
    configs = seed_configs(start.config, start.seeds, base)
    for i, config in enumerate(configs):
        print(f"Seed {config.run.seed} ({i + 1} of {len(configs)})", flush=True)
        try:
            code = _train(replace(start, config=config), make_task(config), prog)
        except KeyboardInterrupt:  # before the run began
            code = 130
        if code:
            if left := start.seeds[i + 1 :]:
                print(f"Not trained: --seeds {' '.join(map(str, left))}", file=sys.stderr)
            return code
    comparison = read_comparison([config.run.checkpoint_dir for config in configs if config.run.checkpoint_dir])
    picture = base.with_name(f"{base.name}-comparison.png")
    write_figure(comparison.figure(), picture)
    print(f"\n{comparison.table()}\n\nWritten to {shown_path(picture)}", flush=True)
    return 0


def _check_env(name: str, env_fn: "EnvFactory", step_timeout_s: float | None) -> int:
    """Say what is wrong with an environment, a sentence each; 1 where anything is."""
    from ml_pipeline.models.rl.core.env_check import check_env_apart

    found = check_env_apart(env_fn, step_timeout_s=step_timeout_s)
    for sentence in found or ["nothing found: it keeps to its spaces, and its seed settles all that happens in it"]:
        print(f"{name}: {sentence}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
