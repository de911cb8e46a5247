"""A study that is there already, by the name that a user gives."""

from collections.abc import Callable
from pathlib import Path

import optuna

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.wording import in_one_line, shown_path
from ml_pipeline.runs.folder import refuse_links
from ml_pipeline.runtime.regular_file import path_inside
from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.study_files import JOURNAL_FILE, STUDY_FILE


def open_study(name: str, root: Path, *, storage: str | None, say: Callable[[str], None]) -> tuple[optuna.Study, Path]:
    """The study and its folder below `root`; nothing is made. storage: as `open_storage` has it.

    Raises UserError if there is no study of this name, or a file of its folder is a link.
    """
    folder = root / name
    if path_inside(root, name) is None or name.startswith("."):
        raise UserError(f'"{in_one_line(name)}" is not the name of a study; name a folder in --root, and no path.')
    if storage is None and not (folder / JOURNAL_FILE).is_file():
        raise UserError(_no_study(name, _studies_in(root), f"in {shown_path(root)}", has_folder=folder.is_dir()))
    if folder.is_dir():
        refuse_links(folder)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    opened = open_storage(storage, folder, say)
    try:
        return optuna.load_study(study_name=name, storage=opened), folder
    except KeyError:
        raise UserError(_no_study(name, optuna.get_all_study_names(opened), "in this storage")) from None


def _studies_in(root: Path) -> list[str]:
    return [path.parent.name for pattern in (JOURNAL_FILE, STUDY_FILE) for path in root.glob(f"*/{pattern}")]


def _no_study(name: str, known: list[str], where: str, *, has_folder: bool = False) -> str:
    if has_folder and name in known:
        return f"The study {name} {where} has no {JOURNAL_FILE}; name its storage by --storage."
    meant = nearest(name, set(known)) if known else "Begin one by `ml-pipeline tune`, or name another folder by --root."
    return f"There is no study {name} {where}. {meant}"
