"""Command: backtest the run that a settings file trained, on data that the training did not see.

ml-pipeline backtest --config configs/fast_training_ppo.json
ml-pipeline backtest --config configs/fast_training_ppo.json --data other.csv
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.evaluate_ppo import print_evaluation
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.configs import parse_backtest


def main(argv: list[str], *, prog: str = "backtest") -> int:
    """Print the evaluation; exit codes as for `evaluate_ppo.main`."""
    with entry(prog):
        print_evaluation(parse_backtest(argv, prog=prog, description=COMMANDS["backtest"].sentence))
    return 0
