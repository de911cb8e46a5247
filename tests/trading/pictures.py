"""Draw the pictures of the README and of the guide on markets, from the run of `make train` and its report.

python -m tests.trading.pictures
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

from ml_pipeline import cli
from ml_pipeline.config.errors import UserError
from tests.tuning.pictures import DOCS, draw


def train() -> Path:
    """The folder of a run on the built-in market, with the figures that the README shows.

    Raises UserError if this processor rounds to other figures: table and pictures of the README show the same run.
    """
    folder = Path("checkpoints/trading")
    if code := cli.main(["train", "--n-envs", "8", "--checkpoint-dir", str(folder)]):
        raise UserError(f"The training ended with {code}.")
    figures = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    total = f"{100 * figures['agent']['total_return']:+,.1f} %"
    if f"Total return               {total}" not in (DOCS.parent / "README.md").read_text(encoding="utf-8"):
        raise UserError(f"The agent returned {total} here, but README.md has another return; update its table too.")
    return folder


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        run = train()
        shutil.copyfile(run / "equity.png", DOCS / "equity.png")
        draw(run / "report.html", DOCS / "report.png", width=1250, height=1500)
