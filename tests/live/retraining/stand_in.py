"""The process of a retraining in tests: it runs a piece of code, in which `folder` is that of the retraining."""

import os
import sys
import textwrap
from pathlib import Path

from ml_pipeline.jobs.child import serve

_VARIABLE = "STAND_IN"


def put(monkeypatch, code):
    """Let the processes of retrainings run this code in place of the training."""
    from ml_pipeline.live.retraining import retrainer

    monkeypatch.setattr(retrainer, "_MODULE", "tests.live.retraining.stand_in")
    monkeypatch.setenv(_VARIABLE, textwrap.dedent(code))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))


def main(parent):
    exec(os.environ[_VARIABLE], {"folder": parent.next_order()["folder"], "sys": sys})
    return 0


if __name__ == "__main__":
    serve(main)
