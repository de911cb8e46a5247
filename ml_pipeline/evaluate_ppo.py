"""Entry: evaluate a checkpoint on a single environment, on data of its own or others, and report.

python -m ml_pipeline.evaluate_ppo checkpoints/RUN/best.pt
python -m ml_pipeline.evaluate_ppo checkpoints/RUN/best.pt --data other.csv
"""

import sys
from pathlib import Path

if not __package__:  # run as a file: the repository takes this folder's place on the path
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ml_pipeline.config.errors import user_errors_exit
from ml_pipeline.evaluate_config import parse_evaluation
from ml_pipeline.monitoring.console import print_anything

PROG = "evaluate_ppo.py"


def main(argv: list[str]) -> int:
    """Run with these arguments; return 0, or 1 where another engine finds another equity.

    Exits with code 2 after one sentence where something cannot be used.
    """
    print_anything()
    with user_errors_exit(PROG):
        start = parse_evaluation(argv, prog=PROG)

        from ml_pipeline.evaluating import run_evaluation
        from ml_pipeline.trading.certify import CertificationFailed

        try:
            run_evaluation(start)
        except CertificationFailed as error:
            print(f"{PROG}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
