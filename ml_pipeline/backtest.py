"""Entry: backtest what a settings file trained, on data that the training did not see, and report.

python -m ml_pipeline.backtest --config configs/fast_training_ppo.json
python -m ml_pipeline.backtest --config configs/fast_training_ppo.json --data other.csv
"""

import sys
from pathlib import Path

if not __package__:  # run as a file: the repository takes this folder's place on the path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ml_pipeline.runtime.interrupts import exit_at_once_on_signals

if __name__ == "__main__":
    exit_at_once_on_signals("backtest")

from ml_pipeline.commands import COMMANDS
from ml_pipeline.evaluate_ppo import print_evaluation
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.backtest_config import parse_backtest


def main(argv: list[str], *, prog: str = "backtest") -> int:
    """As `evaluate_ppo.main`."""
    with entry(prog):
        print_evaluation(parse_backtest(argv, prog=prog, description=COMMANDS["backtest"].sentence))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
