"""The sessions in a folder: which there are, and which one is meant."""

from pathlib import Path

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import shown_path
from ml_pipeline.live.session_files import is_session, last_sign_of_life, root_of_sessions
from ml_pipeline.runs.state import read_state


def find_sessions(root: Path | None, name: str | None) -> list[Path]:
    """The folders of all sessions: those that run first, then the one that gave its last sign of life last.

    name: of the only one that is meant; None: all. Raises UserError where there is none.
    """
    folder = root_of_sessions(root)
    found = {path.name: path for path in sorted(folder.glob("*/")) if is_session(path)}
    if name is None:
        if not found:
            raise UserError(
                f"{shown_path(folder)} holds no session; begin one by `ml-pipeline paper-trade --model MODEL`, or name "
                "another folder by --root."
            )
        return sorted(found.values(), key=lambda path: (_runs(path), last_sign_of_life(path)), reverse=True)
    if name not in found:
        known = nearest(name, found) if found else "It holds none at all; --root names another folder."
        raise UserError(f'{shown_path(folder)} holds no session "{name}". {known}')
    return [found[name]]


def find_session(root: Path | None, name: str | None) -> Path:
    """The folder of the session with this name; None: of the one that runs, or of the last one that did.

    Raises UserError where there is none, and without a name where several run.
    """
    first, *others = find_sessions(root, name)
    running = [each.name for each in (first, *others) if _runs(each)]
    if name is None and len(running) > 1:
        raise UserError(f"Several sessions run: {', '.join(sorted(running))}; name the one that is meant.")
    return first


def _runs(folder: Path) -> bool:
    """False also where state.json is broken."""
    try:
        state = read_state(folder)
    except UserError:
        return False
    return state is not None and state.status == "running"
