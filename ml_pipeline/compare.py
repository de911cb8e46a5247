"""Command: compare runs in a table with the settings that differ, and in a chart of their learning curves.

ml-pipeline compare checkpoints/A checkpoints/B
ml-pipeline compare checkpoints/NAME-seed* --by time --output curves.svg
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.experiments.compare_config import parse_compare
from ml_pipeline.monitoring.console import entry

PROG = "compare"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Print the table and write the chart; return 0. Exits with code 2 and one sentence if the input is invalid."""
    with entry(prog):
        config = parse_compare(argv, prog=prog, description=COMMANDS["compare"].sentence)

        from ml_pipeline.experiments.compare import read_comparison, write_figure

        comparison = read_comparison(config.runs)
        print(comparison.table(), flush=True)
        write_figure(comparison.figure(by=config.by, smooth=config.smooth), config.output)
        print(f"\nWritten to {config.output}")
    return 0
