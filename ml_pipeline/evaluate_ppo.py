"""Command: evaluate a checkpoint in a single environment, on its own data or other data, and write a report.

ml-pipeline evaluate checkpoints/RUN
ml-pipeline evaluate checkpoints/RUN/best.pt --data other.csv
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.configs import EvaluationStart, parse_evaluation

PROG = "evaluate"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Print the evaluation; return 0.

    Exits with one sentence: code 2 if the input is invalid, 1 if another backtesting engine computes other equity.
    """
    with entry(prog):
        print_evaluation(parse_evaluation(argv, prog=prog, description=COMMANDS["evaluate"].sentence))
    return 0


def print_evaluation(start: EvaluationStart) -> None:
    """Evaluate, and print the table and the folder of the report."""
    from ml_pipeline.runs.trained.evaluate import evaluate_checkpoint

    if start.notice is not None:
        print(start.notice, flush=True)
    report = evaluate_checkpoint(start)
    print(*report.notices, report.text, f"\nWritten to {report.folder}", sep="\n")
