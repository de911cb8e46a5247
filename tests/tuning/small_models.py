"""Deployed models of a few bytes, made without a training, and what tests ask of them."""

import json
from pathlib import Path

from ml_pipeline.runs.trained.deployed import resolved
from ml_pipeline.tuning.promotion.model_store import ModelStore

FILES = ("best.pt", "config.yaml", "validation/evaluation.json")


def fill(text):
    """Writes files that all hold `text`."""

    def write(folder: Path):
        (folder / "validation").mkdir()
        for name in FILES:
            (folder / name).write_text(text)

    return write


def promote(store: ModelStore, text="first", **promotion):
    record = {"study": "toy", "trial": 3, "value": 0.25, **promotion}
    return store.promote(fill(text), record, instead_of=store.current, study="toy", trial=3)


def texts(store: ModelStore):
    """What the files of the deployed version hold, read one after another as a loader does."""
    folder = resolved(store.folder / "current")
    promotion = json.loads((folder / "promotion.json").read_text())
    return {promotion["version"]: {(folder / name).read_text() for name in FILES}}
