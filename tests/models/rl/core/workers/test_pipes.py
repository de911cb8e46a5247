"""The link between trainer and worker: notes, messages, and who is still there."""

import multiprocessing
import os
import threading
from collections.abc import Iterator

import pytest

from ml_pipeline.models.rl.core.workers.pipes import WorkerLink
from tests.models.rl.core.workers.probes import in_the_background

Ends = tuple[WorkerLink, WorkerLink]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The trainer's end and the worker's."""
    worker_inbox, trainer_outbox = multiprocessing.Pipe(duplex=False)
    trainer_inbox, worker_outbox = multiprocessing.Pipe(duplex=False)
    trainer = WorkerLink(trainer_inbox, trainer_outbox, worker_runs=lambda: True)
    worker = WorkerLink(worker_inbox, worker_outbox)
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


def test_a_message_of_any_length_arrives(ends: Ends) -> None:
    messages = [b"", b"short", bytes(1 << 16), os.urandom((1 << 20) + 1)]
    for sender, receiver in (ends, ends[::-1]):
        with in_the_background(lambda sender=sender: [sender.send(message) for message in messages]):
            assert [receiver.receive() for _ in messages] == messages


@pytest.mark.skipif(os.name != "posix", reason="other systems let nobody inherit pipes")
@pytest.mark.timeout(60)
def test_a_stalled_transfer_ends_with_the_worker_though_others_hold_its_pipes() -> None:
    is_running = threading.Event()
    is_running.set()
    (worker_inbox, trainer_outbox), (trainer_inbox, worker_outbox) = (multiprocessing.Pipe(False) for _ in range(2))
    trainer = WorkerLink(trainer_inbox, trainer_outbox, worker_runs=is_running.is_set)
    os.write(worker_outbox.fileno(), (100).to_bytes(8, "little") + b"half of it")
    with in_the_background(is_running.clear), pytest.raises(EOFError):
        trainer.receive()
    with pytest.raises(EOFError):
        trainer.read_note()
    with pytest.raises(BrokenPipeError):
        trainer.send(bytes(1 << 20))
    for end in (trainer, worker_inbox, worker_outbox):
        end.close()


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
