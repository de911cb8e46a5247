"""The commands of `ml-pipeline`: the module that runs each, the settings that its flags fill, and a line of help."""

from typing import NamedTuple

PROG = "ml-pipeline"


class Command(NamedTuple):
    sentence: str
    module: str
    """Its `main(argv, prog=...)` runs the command; `python -m` with this name does the same."""
    settings: str | None
    """The settings class that its flags fill, as module:class; none if it takes no flags."""


COMMANDS = {
    "train": Command(
        "Train a policy with PPO, DQN or another algorithm, evaluate it, and save it.",
        "ml_pipeline.train_ppo",
        "ml_pipeline.runs.train_command_line:CommandLine",
    ),
    "evaluate": Command(
        "Evaluate a trained policy on a single environment.",
        "ml_pipeline.evaluate_ppo",
        "ml_pipeline.runs.trained.configs:EvaluationCommandLine",
    ),
    "backtest": Command(
        "Backtest the run trained with a settings file, on data it was not trained on.",
        "ml_pipeline.backtest",
        "ml_pipeline.runs.trained.configs:BacktestCommandLine",
    ),
    "enjoy": Command(
        "Show or record a trained policy acting in its environment.",
        "ml_pipeline.enjoy",
        "ml_pipeline.runs.trained.configs:EnjoyCommandLine",
    ),
    "compare": Command(
        "Compare runs: scores, settings and learning curves.",
        "ml_pipeline.compare",
        "ml_pipeline.experiments.compare_config:CommandLine",
    ),
    "export": Command(
        "Export a trained policy with its normalization to one file that runs without this package.",
        "ml_pipeline.export_policy",
        "ml_pipeline.runs.trained.configs:ExportCommandLine",
    ),
    "import-sb3": Command(
        "Turn a PPO model of Stable-Baselines3 into a run, without running the pickles in its files.",
        "ml_pipeline.import_sb3",
        "ml_pipeline.runs.trained.configs:ImportCommandLine",
    ),
    "serve": Command(
        "Start the training service, which runs queued trainings several at a time, with a web page.",
        "ml_pipeline.service.commands.serve",
        "ml_pipeline.service.commands.serve:CommandLine",
    ),
    "submit": Command(
        "Queue one run per seed and symbol at the service; takes the settings of train.",
        "ml_pipeline.service.commands.submit",
        "ml_pipeline.service.commands.submit:CommandLine",
    ),
    "status": Command(
        "List runs with their state, progress, speed, time left and scores.",
        "ml_pipeline.dashboard.commands.status",
        "ml_pipeline.dashboard.terminal.views:StatusCommandLine",
    ),
    "watch": Command(
        "List runs and keep the list up to date until Ctrl-C.",
        "ml_pipeline.dashboard.commands.watch",
        "ml_pipeline.dashboard.terminal.views:WatchCommandLine",
    ),
    "logs": Command(
        "Print the output of a run.",
        "ml_pipeline.service.commands.logs",
        "ml_pipeline.service.commands.logs:CommandLine",
    ),
    "stop": Command(
        "Stop runs after they have saved a checkpoint, or remove them from the queue.",
        "ml_pipeline.service.commands.stop",
        "ml_pipeline.service.commands.stop:CommandLine",
    ),
    "resume": Command(
        "Resume ended runs through the service's queue.",
        "ml_pipeline.service.commands.resume",
        "ml_pipeline.service.commands.resume:CommandLine",
    ),
    "scale": Command(
        "Change the number of workers or environments of a training while it runs.",
        "ml_pipeline.service.commands.scale",
        "ml_pipeline.service.commands.scale:CommandLine",
    ),
    "dashboard": Command(
        "Show runs, studies and trading sessions with curves and reports in the browser, or studies in the terminal.",
        "ml_pipeline.dashboard.commands.dashboard",
        "ml_pipeline.dashboard.commands.dashboard:CommandLine",
    ),
    "tune": Command(
        "Search for good settings by training many trials, several at a time; takes the settings of train.",
        "ml_pipeline.tuning.commands.tune",
        "ml_pipeline.tuning.config:CommandLine",
    ),
    "report": Command(
        "Write the report of a study, and evaluate its winner once on the test split.",
        "ml_pipeline.tuning.commands.report",
        "ml_pipeline.tuning.commands.report:CommandLine",
    ),
    "promote": Command(
        "Deploy the best trial of a study if it passes every check.",
        "ml_pipeline.tuning.commands.promote",
        "ml_pipeline.tuning.commands.promote:CommandLine",
    ),
    "rollback": Command(
        "Return a deployed model to its previous version.",
        "ml_pipeline.tuning.commands.rollback",
        "ml_pipeline.tuning.commands.rollback:CommandLine",
    ),
    "models": Command(
        "List deployed models, or the versions of one.",
        "ml_pipeline.tuning.commands.models",
        "ml_pipeline.tuning.commands.models:CommandLine",
    ),
    "paper-trade": Command(
        "Trade a trained policy bar by bar, on recorded bars or in a paper account.",
        "ml_pipeline.live.commands.paper_trade",
        "ml_pipeline.live.config:CommandLine",
    ),
    "sanity": Command(
        "Check that training finds a planted pattern, and finds nothing in noise.",
        "ml_pipeline.experiments.sanity",
        "ml_pipeline.experiments.sanity:CommandLine",
    ),
    "walk-forward": Command(
        "Retrain on a moving window of the past, and trade the bars after each window.",
        "ml_pipeline.experiments.walk_forward",
        "ml_pipeline.experiments.walk_forward:CommandLine",
    ),
    "inspect-data": Command(
        "Describe market data, and list their problems with a remedy for each.",
        "ml_pipeline.trading.inspect_data",
        "ml_pipeline.trading.inspect_data:CommandLine",
    ),
    "tune-workers": Command(
        "Measure the best number of workers for an environment; takes the settings of train.",
        "ml_pipeline.tune_workers",
        "ml_pipeline.runs.train_command_line:SettingsCommandLine",
    ),
    "compile": Command(
        "Compile the kernels that trainings on this machine need, on all cores, before the first training.",
        "ml_pipeline.compile_kernels",
        "ml_pipeline.compile_kernels:CommandLine",
    ),
    "check": Command(
        "Check in under a minute that parallel environments work on this machine.",
        "ml_pipeline.test_parallel_env",
        None,
    ),
    "completion": Command(
        "Print the completion script for bash or zsh.",
        "ml_pipeline.completion",
        "ml_pipeline.completion:CommandLine",
    ),
}
