"""Entry: evaluate a checkpoint on a single environment, on data of its own or others, and report.

ml-pipeline evaluate checkpoints/RUN
ml-pipeline evaluate checkpoints/RUN/best.pt --data other.csv
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.configs import EvaluationStart, parse_evaluation

PROG = "evaluate"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Run with these arguments; return 0.

    Exits after one sentence: with code 2 where something cannot be used, with 1 where another engine finds another
    equity.
    """
    with entry(prog):
        print_evaluation(parse_evaluation(argv, prog=prog, description=COMMANDS["evaluate"].sentence))
    return 0


def print_evaluation(start: EvaluationStart) -> None:
    """Evaluate, and print the table and where the report is."""
    from ml_pipeline.runs.trained.evaluate import evaluate_checkpoint

    if start.notice is not None:
        print(start.notice, flush=True)
    report = evaluate_checkpoint(start)
    print(*report.notices, report.text, f"\nWritten to {report.folder}", sep="\n")
