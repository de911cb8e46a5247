"""The commands of `ml-pipeline`: the module that runs each, the settings that its flags fill, and a line of help."""

from typing import NamedTuple

PROG = "ml-pipeline"


class Command(NamedTuple):
    sentence: str
    module: str
    """Its `main(argv, prog=...)` runs the command; `python -m` with this name does the same."""
    settings: str | None
    """The settings class that its flags fill, as module:class; none where it takes no flag."""


COMMANDS = {
    "train": Command(
        "Train a policy by PPO, DQN or another algorithm, evaluate it, and save it.",
        "ml_pipeline.train_ppo",
        "ml_pipeline.runs.train_command_line:CommandLine",
    ),
    "evaluate": Command(
        "Evaluate a trained agent on a single environment.",
        "ml_pipeline.evaluate_ppo",
        "ml_pipeline.runs.trained.configs:EvaluationCommandLine",
    ),
    "backtest": Command(
        "Backtest what a settings file trained, on data that the training did not see.",
        "ml_pipeline.backtest",
        "ml_pipeline.runs.trained.configs:BacktestCommandLine",
    ),
    "enjoy": Command(
        "Let a trained policy play in its environment, and show or record it.",
        "ml_pipeline.enjoy",
        "ml_pipeline.runs.trained.configs:EnjoyCommandLine",
    ),
    "compare": Command(
        "Compare runs: their scores, their settings and their learning curves.",
        "ml_pipeline.compare",
        "ml_pipeline.experiments.compare_config:CommandLine",
    ),
    "export": Command(
        "Write a trained policy, with its normalization, into one file that runs without this package.",
        "ml_pipeline.export_policy",
        "ml_pipeline.runs.trained.configs:ExportCommandLine",
    ),
    "serve": Command(
        "Run several trainings at once from a queue, with a page in the browser.",
        "ml_pipeline.service.commands.serve",
        "ml_pipeline.service.commands.serve:CommandLine",
    ),
    "submit": Command(
        "Hand the service a run for each seed and symbol; takes the settings of train.",
        "ml_pipeline.service.commands.submit",
        "ml_pipeline.service.commands.submit:CommandLine",
    ),
    "status": Command(
        "Show runs in one table: their state, progress, speed, time left and scores.",
        "ml_pipeline.dashboard.commands.status",
        "ml_pipeline.dashboard.terminal.views:StatusCommandLine",
    ),
    "watch": Command(
        "Show the table of runs live, until Ctrl-C.",
        "ml_pipeline.dashboard.commands.watch",
        "ml_pipeline.dashboard.terminal.views:WatchCommandLine",
    ),
    "logs": Command(
        "Print what a run said.",
        "ml_pipeline.service.commands.logs",
        "ml_pipeline.service.commands.logs:CommandLine",
    ),
    "stop": Command(
        "Ask runs to save and end, or take them out of the queue.",
        "ml_pipeline.service.commands.stop",
        "ml_pipeline.service.commands.stop:CommandLine",
    ),
    "resume": Command(
        "Let a run that has ended go on, in the service's queue.",
        "ml_pipeline.service.commands.resume",
        "ml_pipeline.service.commands.resume:CommandLine",
    ),
    "scale": Command(
        "Change the number of workers or environments of a run that goes on.",
        "ml_pipeline.service.commands.scale",
        "ml_pipeline.service.commands.scale:CommandLine",
    ),
    "dashboard": Command(
        "Show runs, studies and trading sessions in the browser, with curves and reports; or studies in the terminal.",
        "ml_pipeline.dashboard.commands.dashboard",
        "ml_pipeline.dashboard.commands.dashboard:CommandLine",
    ),
    "tune": Command(
        "Search settings by trials of training, several at once; takes the settings of train.",
        "ml_pipeline.tuning.commands.tune",
        "ml_pipeline.tuning.config:CommandLine",
    ),
    "report": Command(
        "Write a study's page, and open the test split once for its winner.",
        "ml_pipeline.tuning.commands.report",
        "ml_pipeline.tuning.commands.report:CommandLine",
    ),
    "promote": Command(
        "Deploy the best trial of a study, if it deserves to be deployed.",
        "ml_pipeline.tuning.commands.promote",
        "ml_pipeline.tuning.commands.promote:CommandLine",
    ),
    "rollback": Command(
        "Return a deployed model to the version before it.",
        "ml_pipeline.tuning.commands.rollback",
        "ml_pipeline.tuning.commands.rollback:CommandLine",
    ),
    "models": Command(
        "List the deployed models, or the versions of one.",
        "ml_pipeline.tuning.commands.models",
        "ml_pipeline.tuning.commands.models:CommandLine",
    ),
    "paper-trade": Command(
        "Let a trained policy trade bar by bar, on recorded bars or in a paper account.",
        "ml_pipeline.live.commands.paper_trade",
        "ml_pipeline.live.config:CommandLine",
    ),
    "sanity": Command(
        "Check that training finds what is there and no more.",
        "ml_pipeline.experiments.sanity",
        "ml_pipeline.experiments.sanity:CommandLine",
    ),
    "walk-forward": Command(
        "Train anew on the past, trade what comes next.",
        "ml_pipeline.experiments.walk_forward",
        "ml_pipeline.experiments.walk_forward:CommandLine",
    ),
    "inspect-data": Command(
        "Say what market data hold, and what is odd.",
        "ml_pipeline.trading.inspect_data",
        "ml_pipeline.trading.inspect_data:CommandLine",
    ),
    "tune-workers": Command(
        "Measure how many workers pay for an environment; takes the settings of train.",
        "ml_pipeline.tune_workers",
        "ml_pipeline.runs.train_command_line:SettingsCommandLine",
    ),
    "compile": Command(
        "Compile what trainings on this machine would compile when they first run, on all cores.",
        "ml_pipeline.compile_kernels",
        "ml_pipeline.compile_kernels:CommandLine",
    ),
    "check": Command(
        "Check that parallel environments work on this machine, in under a minute.",
        "ml_pipeline.test_parallel_env",
        None,
    ),
    "completion": Command(
        "Print a script with which bash or zsh completes commands and flags.",
        "ml_pipeline.completion",
        "ml_pipeline.completion:CommandLine",
    ),
}
