"""Command: compare runs: a table, what differs in their settings, and a picture of their learning curves.

ml-pipeline compare checkpoints/A checkpoints/B
ml-pipeline compare checkpoints/NAME-seed* --by time --output curves.svg
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.experiments.compare_config import parse_compare
from ml_pipeline.monitoring.console import entry

PROG = "compare"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Print the table and write the picture; return 0.

    Exits with code 2, after one sentence, if something given cannot be used.
    """
    with entry(prog):
        config = parse_compare(argv, prog=prog, description=COMMANDS["compare"].sentence)

        from ml_pipeline.experiments.compare import read_comparison, write_figure

        comparison = read_comparison(config.runs)
        print(comparison.table(), flush=True)
        write_figure(comparison.figure(by=config.by, smooth=config.smooth), config.output)
        print(f"\nWritten to {config.output}")
    return 0
