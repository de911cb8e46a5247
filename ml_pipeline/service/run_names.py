"""Which run somebody means: by its name, by the beginning of one, or by its folder."""

from pathlib import Path

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.runs.folders import is_run_folder, run_folders, run_name

_MOST_NAMED = 5


def find_run(root: Path, name: str) -> Path:
    """The folder of the run that is meant, named as `ml-pipeline status` names it.

    Raises UserError where it is none, or more than one, and where the root cannot be listed.
    """
    known = {run_name(root, folder): folder for folder in run_folders(root)}
    if name in known:
        return known[name]
    folder = Path(name)
    if len(folder.parts) > 1 and is_run_folder(folder):
        return folder.absolute()
    meant = [each for each in known if each.startswith(name.rstrip("/"))] if name else []
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


def _close(name: str, known: list[str]) -> str:
    found = nearest(name, known)
    return found if found.startswith("Did you mean") else "`ml-pipeline status` lists those that are there."
