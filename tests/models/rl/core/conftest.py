"""What tests of workers have in common."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ml_pipeline.models.rl.core.workers.process import ProcessWorker


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A note for `get_stuck`. The process that wrote it is overdue at once, and nobody else is, however slow."""
    note = tmp_path / "stuck"

    def is_overdue(worker: ProcessWorker) -> bool:
        return note.exists() and int(note.read_text()) == worker.process.pid

    monkeypatch.setattr(ProcessWorker, "is_overdue", is_overdue)
    return note


@pytest.fixture
def ctrl_c_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
