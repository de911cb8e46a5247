"""How a user types the command `train`, which its last line repeats to continue a run."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_pipeline.config.wording import shown_path
from ml_pipeline.runs.ranks.rank_info import RankInfo

PROG = "train_ppo.py"
MODULE = "ml_pipeline.train_ppo"


class TypedCommand(NamedTuple):
    """prog: what its errors begin with. words: what starts it again, with other arguments after them."""

    prog: str
    words: list[str]

    def resume(self, folder: Path) -> str:
        """What a user types to continue the run in a folder."""
        shown = str(shown_path(folder))
        words = [*self.words, "--resume", f"./{shown}" if shown.startswith("-") else shown]
        return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def usual_words(prog: str) -> list[str]:
    """What starts the command that calls itself `prog`.

    >>> usual_words("ml-pipeline train"), usual_words(PROG)
    (['ml-pipeline', 'train'], ['python', '-m', 'ml_pipeline.train_ppo'])
    """
    return prog.split() if prog != PROG else ["python", "-m", MODULE]


def words_of_ranks(place: RankInfo, prog: str, settings: Mapping[str, Any]) -> list[str]:
    """What starts ranks such as this one again: those of torchrun on one machine."""
    if place.started_by_us:
        launcher = [] if settings["launcher"] == "local" else ["--launcher", settings["launcher"]]
        return [*usual_words(prog), *launcher, "--n-processes", str(settings["n_processes"])]
    return ["torchrun", "--nproc-per-node", str(place.local_size), "-m", MODULE]
