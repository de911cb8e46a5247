"""Which run somebody means: by its name, by the beginning of one, or by its folder."""

from collections.abc import Collection
from pathlib import Path

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.runs.folders import is_run_folder, run_folders, run_name
from ml_pipeline.runs.state import RunState, read_state

_MOST_NAMED = 5


def find_run(root: Path, name: str, *, status: Collection[str] = (), newest: bool = False) -> Path:
    """The folder of the run that is meant, named as `ml-pipeline status` names it.

    Where several begin by the name, the only one with such a status is meant; with `newest`, the one that began last.
    Raises UserError where it is none, or more than one, and where the root cannot be listed.
    """
    known = {run_name(root, folder): folder for folder in run_folders(root)}
    if name in known:
        return known[name]
    folder = Path(name)
    if len(folder.parts) > 1 and is_run_folder(folder):
        return folder.absolute()
    meant = [each for each in known if each.startswith(name.rstrip("/"))] if name else []
    if len(meant) > 1 and newest:
        return max((known[each] for each in meant), key=_began)
    if len(meant) > 1 and status:
        meant = [each for each in meant if _status(known[each]) in status] or meant
    if len(meant) == 1:
        return known[meant[0]]
    if meant:
        shown = ", ".join(meant[:_MOST_NAMED]) + (", ..." if len(meant) > _MOST_NAMED else "")
        raise UserError(
            f'"{name}" begins the names of {len(meant)} runs: {shown}; write more of the one that is meant.'
        )
    if not known:
        raise UserError(f'There is no run "{name}": {root} holds none.')
    remedy = nearest(name, known) if len(known) <= _MOST_NAMED else _close(name, list(known))
    raise UserError(f'There is no run "{name}" in {root}. {remedy}')


def _state(folder: Path) -> RunState | None:
    try:
        return read_state(folder)
    except UserError:
        return None


def _status(folder: Path) -> str | None:
    return None if (state := _state(folder)) is None else state.status


def _began(folder: Path) -> str:
    return "" if (state := _state(folder)) is None else state.began


def _close(name: str, known: list[str]) -> str:
    found = nearest(name, known)
    return found if found.startswith("Did you mean") else "`ml-pipeline status` lists those that are there."
