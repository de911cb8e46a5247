"""Entry: write a trained policy into one file that runs without this package, once it is proven to act the same.

python -m ml_pipeline.export_policy checkpoints/RUN/best.pt
python -m ml_pipeline.export_policy checkpoints/RUN/best.pt --format torch
"""

import sys
from pathlib import Path

if not __package__:  # run as a file: the repository takes this folder's place on the path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ml_pipeline.config.errors import user_errors_exit
from ml_pipeline.export_config import parse_export
from ml_pipeline.monitoring.console import print_anything

PROG = "export_policy.py"


def main(argv: list[str]) -> int:
    """Run with these arguments; return 0, or 1 where the file would act otherwise than the policy.

    Exits with code 2 after one sentence where something cannot be used.
    """
    print_anything()
    with user_errors_exit(PROG):
        config = parse_export(argv, prog=PROG)

        from ml_pipeline.exporting import ParityFailed, run_export

        try:
            run_export(config)
        except ParityFailed as error:
            print(f"{PROG}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
