"""Which run somebody means: by its id, by the beginning of one, or by its folder."""

from pathlib import Path

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.state import STATE_FILE

_MOST_NAMED = 5


def find_run(root: Path, name: str) -> Path:
    """The folder of the run that is meant. Raises UserError where it is none, or more than one."""
    known = run_ids(root)
    if name in known:
        return root / name
    folder = Path(name)
    if len(folder.parts) > 1 and _is_run(folder):
        return folder.absolute()
    meant = [each for each in known if each.startswith(name.rstrip("/"))] if name else []
    if len(meant) == 1:
        return root / meant[0]
    if meant:
        shown = ", ".join(meant[:_MOST_NAMED]) + (", ..." if len(meant) > _MOST_NAMED else "")
        raise UserError(
            f'"{name}" begins the names of {len(meant)} runs: {shown}; write more of the one that is meant.'
        )
    if not known:
        raise UserError(f'There is no run "{name}": {root} holds none.')
    remedy = nearest(name, known) if len(known) <= _MOST_NAMED else _close(name, known)
    raise UserError(f'There is no run "{name}" in {root}. {remedy}')


def run_ids(root: Path) -> list[str]:
    """The names of the run folders in a root, sorted."""
    try:
        return sorted(each.name for each in root.iterdir() if _is_run(each))
    except OSError:
        return []


def _is_run(folder: Path) -> bool:
    if folder.name.startswith("."):
        return False
    return (folder / STATE_FILE).is_file() or (folder / SETTINGS_FILE).is_file()


def _close(name: str, known: list[str]) -> str:
    found = nearest(name, known)
    return found if found.startswith("Did you mean") else "`ml-pipeline status` lists those that are there."
