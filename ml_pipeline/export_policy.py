"""Entry: write a trained policy into one file that runs without this package, once it is proven to act the same.

ml-pipeline export checkpoints/RUN
ml-pipeline export checkpoints/RUN/best.pt --format torch
"""

from ml_pipeline.commands import COMMANDS
from ml_pipeline.monitoring.console import entry
from ml_pipeline.runs.trained.configs import parse_export

PROG = "export"


def main(argv: list[str], *, prog: str = PROG) -> int:
    """Run with these arguments; return 0.

    Exits after one sentence: with code 2 where something cannot be used, with 1 where the file would act otherwise than
    the policy.
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
