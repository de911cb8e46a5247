"""One thread of torch's; what was set before is back afterwards, even after an error. Parts shared by threads."""

import contextlib
import os
import threading
import warnings

import pytest
import torch

from ml_pipeline.models.rl.policies.threads_and_device import begin_with_usual_threads, in_threads, one_thread


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_within_the_block_there_is_one_thread():
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_threads_are_restored_after_an_error():
    with contextlib.suppress(RuntimeError), one_thread():
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
        with one_thread():
            entered.set()
            leave.wait(30)
            counts.append(torch.get_num_threads())
        counts.append(torch.get_num_threads())

    learner = threading.Thread(target=learn)
    learner.start()
    assert entered.wait(30)
    assert in_new_thread(torch.get_num_threads) == 2
    with one_thread():
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
    with one_thread():
        beginner.join(30)
    assert found == [2]


@pytest.mark.parametrize("n_threads", [1, 2, 5, None])
def test_each_part_is_computed_once_in_one_thread_of_torch(n_threads):
    done = []
    with one_thread():
        in_threads(lambda part: done.append((part, torch.get_num_threads())), 9, n_threads=n_threads)
    assert sorted(done) == [(part, 1) for part in range(9)]
    assert torch.get_num_threads() == in_new_thread(torch.get_num_threads) == 2


def test_parts_are_computed_side_by_side():
    both = threading.Barrier(2)
    in_threads(lambda part: both.wait(30), 2, n_threads=2)


@pytest.mark.parametrize("failing", range(4))
def test_an_error_in_any_part_is_raised_and_leaves_the_threads_usable(failing):
    def work(part):
        if part == failing:
            raise ValueError(part)

    with pytest.raises(ValueError, match=str(failing)):
        in_threads(work, 4, n_threads=2)
    test_parts_are_computed_side_by_side()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own():
    test_parts_are_computed_side_by_side()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        child = os.fork()
    if child == 0:
        done = []
        in_threads(done.append, 3, n_threads=2)
        os._exit(0 if sorted(done) == [0, 1, 2] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
