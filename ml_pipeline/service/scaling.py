"""Asks runs that go on for other numbers of workers or environments, and shares cores among those that let it."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.requests import write_request
from ml_pipeline.service.budget import need_of, share_of_cores
from ml_pipeline.service.store import QueuedRun, Store


class Scaling:
    """The requests of one service to its runs."""

    def __init__(self, root: Path, store: Store, *, cores: float) -> None:
        self._root, self._store, self._cores = root, store, cores
        self._shares: dict[str, int] = {}  # workers that a run was last asked for; absent: it chooses by itself

    def ask(self, run: QueuedRun, asked: Mapping[str, Any]) -> None:
        """Write a request that somebody made, and count with it from now on. Raises UserError."""
        write_request(self._root / run.id, **asked)
        self._store.change(run.id, settings={**run.settings, **asked})
        self._shares.pop(run.id, None)

    def share(self) -> None:
        """Give each run whose workers are "dynamic" its share of the cores, now that a run came or went.

        A run that is alone chooses by itself. The bits of a run do not depend on it.
        """
        running = [run for run in self._store.active() if run.status == "running"]
        dynamic = [run for run in running if run.settings.get("n_workers") == "dynamic"]
        self._shares = {run.id: self._shares[run.id] for run in dynamic if run.id in self._shares}
        fixed = sum(need_of(run.settings).cores for run in running if run not in dynamic)
        for run in dynamic:
            if len(running) == 1:
                if self._shares.pop(run.id, None) is not None:
                    self._request(run, "dynamic")
                continue
            cores = share_of_cores(self._cores, fixed, len(dynamic))
            workers = 0 if cores == 1 else min(cores, int(run.settings.get("n_envs") or 1))
            if self._shares.get(run.id) != workers:
                self._shares[run.id] = workers
                self._request(run, workers)

    def _request(self, run: QueuedRun, n_workers: int | str) -> None:
        with suppress(UserError):  # it goes on with what it has
            write_request(self._root / run.id, n_workers=n_workers)  # type: ignore[arg-type]
