"""The link between trainer and worker: notes, messages, and who is still there."""

import multiprocessing
import os
from collections.abc import Iterator

import pytest

from ml_pipeline.models.rl.core.workers.pipes import WorkerLink

Ends = tuple[WorkerLink, WorkerLink]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The trainer's end and the worker's."""
    worker_inbox, trainer_outbox = multiprocessing.Pipe(duplex=False)
    trainer_inbox, worker_outbox = multiprocessing.Pipe(duplex=False)
    trainer = WorkerLink(trainer_inbox, trainer_outbox, in_trainer=True)
    worker = WorkerLink(worker_inbox, worker_outbox, in_trainer=False)
    yield trainer, worker
    trainer.close()
    worker.close()


def test_notes_and_messages_arrive_in_order(ends: Ends) -> None:
    trainer, worker = ends
    assert not worker.wait(0.0)
    trainer.note(2**40, 129)
    trainer.send(b"all of this")
    trainer.note(7, 1)
    assert worker.wait(0.0)
    assert worker.read_note() == (2**40, 129)
    assert worker.receive() == b"all of this"
    assert worker.read_note() == (7, 1)


def test_a_closed_end_is_noticed(ends: Ends) -> None:
    trainer, worker = ends
    worker.close()
    worker.close()
    assert trainer.wait(0.0)
    with pytest.raises(EOFError):
        trainer.read_note()
    with pytest.raises(BrokenPipeError):
        trainer.note(1, 1)


@pytest.mark.skipif(os.name != "posix", reason="file descriptors elsewhere are no numbers")
def test_a_closed_end_writes_to_nobody_else(ends: Ends) -> None:
    trainer, _ = ends
    trainer.close()
    descriptors = [os.open(os.devnull, os.O_RDWR) for _ in range(4)]  # they take the numbers that are free now
    with pytest.raises(OSError, match="Bad file descriptor"):
        trainer.note(1, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        trainer.read_note()
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
def test_a_forked_process_does_not_stand_in_for_the_trainer(ends: Ends) -> None:
    trainer, worker = ends
    context = multiprocessing.get_context("fork")
    done = context.Event()
    bystander = context.Process(target=done.wait)
    bystander.start()
    try:
        trainer.close()
        assert worker.wait(5.0)
        with pytest.raises(EOFError):
            worker.read_note()
    finally:
        done.set()
        bystander.join()
        bystander.close()
