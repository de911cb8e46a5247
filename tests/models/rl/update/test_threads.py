"""One thread for small minibatches; what was set before is back afterwards, even after an error."""

import contextlib
import threading

import pytest
import torch

from ml_pipeline.models.rl.update.threads import begin_with_usual_threads, learning_threads


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("n_weights", "minibatch_size", "expected"), [(9_000, 256, 1), (150_000, 4096, 2)])
def test_threads_follow_the_size_of_a_minibatch(n_weights, minibatch_size, expected):
    with learning_threads(n_weights, minibatch_size):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2


def test_threads_are_restored_after_an_error():
    with contextlib.suppress(RuntimeError), learning_threads(1, 1):
        raise RuntimeError
    assert torch.get_num_threads() == 2


def in_new_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(30)
    return found[0]


def test_threads_of_others_are_as_many_as_before_within_the_block_and_after_it():
    entered, leave, counts = threading.Event(), threading.Event(), []

    def learn():
        with learning_threads(1, 1):
            entered.set()
            leave.wait(30)
            counts.append(torch.get_num_threads())
        counts.append(torch.get_num_threads())

    learner = threading.Thread(target=learn)
    learner.start()
    assert entered.wait(30)
    assert in_new_thread(torch.get_num_threads) == 2
    with learning_threads(1, 1):
        leave.set()
        learner.join(30)
    assert counts == [1, 2]
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == 2


def test_a_thread_that_begins_while_another_sets_its_count_gets_the_usual_one(monkeypatch):
    set_num_threads, found = torch.set_num_threads, []

    def count_of_new():
        begin_with_usual_threads()
        found.append(torch.get_num_threads())

    beginner = threading.Thread(target=count_of_new)

    def set_slowly(count):
        set_num_threads(count)
        if count == 1:
            beginner.start()
            beginner.join(0.2)  # it waits, or it has the wrong count by now

    monkeypatch.setattr(torch, "set_num_threads", set_slowly)
    with learning_threads(1, 1):
        beginner.join(30)
    assert found == [2]
