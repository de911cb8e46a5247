"""Finds, stops and scales a run by the name that a user gives, with or without a service."""

from collections.abc import Collection
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.runs.folder_claim import record_end_for
from ml_pipeline.runs.folders import is_run_folder, run_folders, run_name
from ml_pipeline.runs.requests import write_request
from ml_pipeline.runs.state import RunState, in_words, read_state, readable_state
from ml_pipeline.service.channel import ask_service, service_of
from ml_pipeline.service.processes import ask_to_stop
from ml_pipeline.service.run_supervisor import STOPPED_EARLY
from ml_pipeline.service.store import QUEUE_FILE, SERVICE_FOLDER, Store

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
        meant = [each for each in meant if status_of(known[each]) in status] or meant
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


def status_of(folder: Path) -> str | None:
    """None where it cannot be read."""
    return None if (state := readable_state(folder)) is None else state.status


def _began(folder: Path) -> str:
    return "" if (state := readable_state(folder)) is None else state.began


def _close(name: str, known: list[str]) -> str:
    found = nearest(name, known)
    return found if found.startswith("Did you mean") else "`ml-pipeline status` lists those that are there."


def stop_run(root: Path, folder: Path) -> str:
    """Ask a run to save and end, or take it out of the queue; returns what was done, in a sentence.

    Raises UserError where it does not go on, or on another machine.
    """
    name, state = folder.name, read_state(folder)
    if state is None or state.status not in {"queued", "running"}:
        raise UserError(f"{name} is not running: {_standing(state)}.")
    if service_of(root) is not None and _is_known(root, folder):
        ask_service(root, {"do": "stop", "run": name})
    elif state.status == "queued":
        _take_out(root, folder)
    elif not ask_to_stop(folder, state.writer):
        raise UserError(f"{name} runs on {state.writer.host}, as process {state.writer.pid}; stop it there.")
    return f"{name} is taken out of the queue." if state.status == "queued" else f"{name} saves, and stops."


def scale_run(root: Path, folder: Path, *, n_workers: int | str | None, n_envs: int | None) -> None:
    """Ask a run that goes on for other numbers of workers or environments. Raises UserError where it does not go on."""
    state = read_state(folder)
    if state is None or state.status != "running":
        raise UserError(f"{folder.name} is not running: {_standing(state)}. Only a run that goes on can be scaled.")
    if service_of(root) is not None and _is_known(root, folder):
        ask_service(root, {"do": "scale", "run": folder.name, "n_workers": n_workers, "n_envs": n_envs})
    else:
        write_request(folder, n_workers=n_workers, n_envs=n_envs)  # type: ignore[arg-type]


def _standing(state: RunState | None) -> str:
    return "it has no state.json" if state is None else in_words(state.status)


def _is_known(root: Path, folder: Path) -> bool:
    """Whether the service of the root started the run, rather than the command line."""
    return folder.parent == root and bool(ask_service(root, {"do": "knows", "run": folder.name}))


def _take_out(root: Path, folder: Path) -> None:
    """Take a run out of the queue while no service works on it: this process is the one that does, for a moment."""
    if folder.parent == root and (root / SERVICE_FOLDER / QUEUE_FILE).exists():
        with closing(Store(root, since=datetime.now(UTC).isoformat(timespec="seconds"))) as store:
            if store.get(folder.name) is not None:
                store.change(folder.name, status="stopped", reason=STOPPED_EARLY, changes={})
    record_end_for(folder, "stopped", STOPPED_EARLY)
