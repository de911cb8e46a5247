"""Find, stop and scale a run by the name that a user typed, with or without a service."""

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
    """The folder of a run, by its name in `ml-pipeline status`, the beginning of that name, or its path.

    If several names match, return the only run with one of these statuses or, with `newest`, the one that began last.
    Raises UserError if no run or several runs match, or if the root cannot be listed.
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
        raise UserError(f'"{name}" matches the names of {len(meant)} runs: {shown}; type more of the name.')
    if not known:
        raise UserError(f'There is no run "{name}": {root} has no runs.')
    remedy = nearest(name, known) if len(known) <= _MOST_NAMED else _close(name, list(known))
    raise UserError(f'There is no run "{name}" in {root}. {remedy}')


def status_of(folder: Path) -> str | None:
    """The status of a run; None if it cannot be read."""
    return None if (state := readable_state(folder)) is None else state.status


def _began(folder: Path) -> str:
    return "" if (state := readable_state(folder)) is None else state.began


def _close(name: str, known: list[str]) -> str:
    found = nearest(name, known)
    return found if found.startswith("Did you mean") else "`ml-pipeline status` lists the runs."


def stop_run(root: Path, folder: Path) -> str:
    """Ask a run to save and end, or remove it from the queue; return a sentence about what was done.

    Raises UserError if the run is not active, or is on another machine.
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
    return f"{name} is removed from the queue." if state.status == "queued" else f"{name} saves and stops."


def scale_run(root: Path, folder: Path, *, n_workers: int | str | None, n_envs: int | None) -> None:
    """Change the number of workers or environments of a run. Raises UserError if the run is not in progress."""
    state = read_state(folder)
    if state is None or state.status != "running":
        raise UserError(f"{folder.name} is not running: {_standing(state)}. Only a run in progress can be scaled.")
    if service_of(root) is not None and _is_known(root, folder):
        ask_service(root, {"do": "scale", "run": folder.name, "n_workers": n_workers, "n_envs": n_envs})
    else:
        write_request(folder, n_workers=n_workers, n_envs=n_envs)  # type: ignore[arg-type]


def _standing(state: RunState | None) -> str:
    return "it has no state.json" if state is None else in_words(state.status)


def _is_known(root: Path, folder: Path) -> bool:
    """True if the service of the root started the run, False if the command line did."""
    return folder.parent == root and bool(ask_service(root, {"do": "knows", "run": folder.name}))


def _take_out(root: Path, folder: Path) -> None:
    """Remove a run from the queue of a root without a service; this process briefly acts as the service."""
    if folder.parent == root and (root / SERVICE_FOLDER / QUEUE_FILE).exists():
        with closing(Store(root, since=datetime.now(UTC).isoformat(timespec="seconds"))) as store:
            if store.get(folder.name) is not None:
                store.change(folder.name, status="stopped", reason=STOPPED_EARLY, changes={})
    record_end_for(folder, "stopped", STOPPED_EARLY)
