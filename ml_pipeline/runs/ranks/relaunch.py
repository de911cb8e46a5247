"""ranks.json: which ranks of which launch write a run folder, so that restarted ranks find their run."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.folder import LATEST_CHECKPOINT, runs_folder
from ml_pipeline.runs.folder_claim import record_end_of_lost
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.ranks.rank_info import RankInfo
from ml_pipeline.runs.state import STATE_FILE, read_state
from ml_pipeline.runtime.files import open_regular, written_whole

RANKS_FILE = "ranks.json"
_MOST_BYTES = 1 << 20
_NOT_SENT = frozenset({RANKS_FILE, STATE_FILE})
_LARGEST_SENT = 1 << 31


class LeftRun(NamedTuple):
    """An unfinished run of this launch. iterations: of its checkpoint; -1 if it has none."""

    folder: Path
    iterations: int

    @property
    def checkpoint(self) -> Path | None:
        return self.folder / LATEST_CHECKPOINT if self.iterations >= 0 else None


def note_ranks(ranks: RankContext, folder: Path) -> None:
    """Write ranks.json after all ranks have accepted the run; not for a single process without a launcher.

    Raises UserError on all if the folder cannot be written.
    """
    if ranks.size > 1 or ranks.launches:
        ranks.first(RANKS_FILE, lambda: _record_ranks(folder, ranks))


def _record_ranks(folder: Path, ranks: RankContext) -> None:
    content = {
        "size": ranks.size,
        "members": [list(member) for member in ranks.group.members],
        "launches": list(ranks.launches),
    }
    path = folder / RANKS_FILE
    try:
        with written_whole(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def ranks_of(folder: Path) -> dict[str, Any] | None:
    """The content of ranks.json in a run folder; None if it is missing or invalid."""
    try:
        with open_regular(folder / RANKS_FILE) as file:
            content = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("size"), int) else None


def left_run(ranks: RankContext, place: RankInfo, given: Path | None) -> LeftRun | None:
    """The run that these ranks left when one of them was lost, on every rank; None for a new run.

    given: the run folder in the settings. If the first rank cannot see the newest checkpoint, for example on another
    machine without a shared folder, a rank that can sends it.
    Raises UserError if a checkpoint is unusable.
    """
    own = ranks.each("the run that was left", lambda: _found_here(ranks, place, given))
    seen = ranks.gather("the run that was left", None if own is None else (str(own.folder), own.iterations))
    found = {rank: LeftRun(Path(folder), iterations) for rank, (folder, iterations) in _present(seen)}
    if not found:
        return None
    source = max(found, key=lambda rank: (found[rank].iterations, -rank))
    run = found[source]
    if source != 0 and (0 not in found or run.iterations > found[0].iterations):
        run = _brought(ranks, run, source, found.get(0))
    ranks.first("the run folder", lambda: record_end_of_lost(run.folder, "Its ranks were lost and restart."))
    return run


def _found_here(ranks: RankContext, place: RankInfo, given: Path | None) -> LeftRun | None:
    """The newest run of this launch that this rank can see.

    A finished one counts only if these ranks were restarted, since a launch may have the id of an earlier one: a rank
    that crashes at its end, for example in the destructors of a simulator, must not start the training over.
    """
    candidates = [given] if given is not None else [path.parent for path in runs_folder().glob(f"*/{RANKS_FILE}")]
    for folder in sorted(candidates, key=_time_of, reverse=True):
        content = ranks_of(folder)
        if content is None:
            continue
        of_this_launch = bool({*ranks.launches} & {*map(str, content.get("launches", ()))})
        named = given is not None and not place.started_by_us
        if (of_this_launch and place.restart > 0) if _has_finished(folder) else (of_this_launch or named):
            return LeftRun(folder, _iterations_in(folder / LATEST_CHECKPOINT))
    return None


def _brought(ranks: RankContext, run: LeftRun, source: int, first: LeftRun | None) -> LeftRun:
    """The run in a folder of the first rank, with the files of rank `source`."""
    folder = Path(ranks.first("its run folder", lambda: str(run.folder if first is None else first.folder)))
    paths = sorted(run.folder.iterdir()) if ranks.rank == source else []
    names = [
        path.name
        for path in paths
        if path.is_file() and path.name not in _NOT_SENT and path.stat().st_size < _LARGEST_SENT
    ]
    for name in ranks.gather("the files of the run", names)[source]:
        content = (run.folder / name).read_bytes() if ranks.rank == source else None
        content = ranks.group.share(content, name, source)
        ranks.first(f"the writing of {name}", lambda: _write(folder / name, content))  # noqa: B023 - called at once
    return LeftRun(folder, run.iterations)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            file.write(content)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def _has_finished(folder: Path) -> bool:
    with suppress(UserError):
        state = read_state(folder)
        return state is not None and state.status == "finished"
    return False


def _iterations_in(checkpoint: Path) -> int:
    from ml_pipeline.runs.checkpoint import load_checkpoint, reading

    if not checkpoint.is_file():
        return -1
    with reading(checkpoint):
        return int(load_checkpoint(checkpoint)["trainer"]["iteration"])


def _time_of(folder: Path) -> float:
    try:
        return (folder / RANKS_FILE).stat().st_mtime
    except OSError:
        return 0.0


def _present(seen: Sequence[Any]) -> list[tuple[int, Any]]:
    return [(rank, each) for rank, each in enumerate(seen) if each is not None]
