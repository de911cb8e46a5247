"""Draw the report of the run that `make train` does, for the guide on markets.

python -m tests.trading.pictures
"""

import contextlib
import json
import tempfile
from pathlib import Path

from ml_pipeline import cli
from ml_pipeline.config.errors import UserError
from tests.tuning.pictures import DOCS, draw


def train() -> Path:
    """The folder of a run on the built-in market, with the figures that the README shows.

    Raises UserError if this processor rounds differently: the README's table and its pictures are of one run.
    """
    folder = Path("checkpoints/trading")
    if code := cli.main(["train", "--n-envs", "8", "--iterations", "100", "--checkpoint-dir", str(folder)]):
        raise UserError(f"The training ended with {code}.")
    figures = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    total = f"{100 * figures['agent']['total_return']:+,.1f} %"
    if f"Total return           {total}" not in (DOCS.parent / "README.md").read_text(encoding="utf-8"):
        raise UserError(f"The agent returned {total} here, but not in README.md; update its table, too.")
    return folder


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        run = train()
        draw(run / "report.html", DOCS / "report.png", width=1250, height=1500)
