"""Command: write a trained policy into one file that runs without this package, and check that it acts the same.

ml-pipeline export checkpoints/RUN
ml-pipeline export checkpoints/RUN/best.pt --format torch
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.configs import parse_export

PROG = "export"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Write the file; return 0.

    Exits with one sentence: code 2 if the input is invalid, 1 if the file would act differently from the policy.
    """
    with entry(prog):
        config = parse_export(argv, prog=prog, description=COMMANDS["export"].sentence)

        from ml_pipeline.runs.trained.export import export_checkpoint

        result = export_checkpoint(config)
        print(
            f"{result.path} acts as {result.checkpoint} does, on {result.n_random} random and {result.n_recorded} "
            f"recorded observations.\n  in:  {', '.join(result.input_names)}\n  out: {', '.join(result.output_names)}"
        )
    return 0
