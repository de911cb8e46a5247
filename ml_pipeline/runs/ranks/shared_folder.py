"""The run folder of several ranks: the first claims it, and all are told its path."""

from collections.abc import Callable
from pathlib import Path

from ml_pipeline.runs.folder_claim import FolderClaim
from ml_pipeline.runs.ranks.relaunch import RANKS_FILE, record_ranks
from ml_pipeline.runs.ranks.together import Together

_WHAT = "the run folder"


def claimed_by_first(ranks: Together, claim_folder: Callable[[], FolderClaim]) -> FolderClaim:
    """On the first rank: the folder that it claims. Raises UserError on all where it cannot."""
    claimed: FolderClaim = ranks.first(_WHAT, claim_folder, send=lambda claimed: str(claimed.folder))
    return claimed


def folder_of_first(ranks: Together) -> Path:
    """On the others: the path of that folder, which they need not see."""
    return Path(ranks.first(_WHAT, _nothing))


def note_ranks(ranks: Together, folder: Path) -> None:
    """Once all ranks have accepted the run: let those that start again find it. Raises UserError on all where the
    folder cannot be written."""
    ranks.first(RANKS_FILE, lambda: record_ranks(folder, ranks))


def _nothing() -> None:
    """What ranks but the first do: none calls it."""
