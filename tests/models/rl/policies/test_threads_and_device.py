"""One thread of torch's; what was set before is back afterwards, even after an error. Parts shared by threads."""

import contextlib
import os
import threading
import warnings

import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.policies.threads_and_device import (
    begin_with_usual_threads,
    choose_device,
    in_threads,
    learning_threads,
    one_thread,
)


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


def test_auto_is_the_cpu():
    assert (choose_device("auto"), choose_device("cpu"), choose_device("cpu:0")) == ("cpu", "cpu", "cpu:0")


def test_one_of_two_gpus_is_named_by_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert (choose_device("cuda"), choose_device("cuda:1")) == ("cuda", "cuda:1")
    with pytest.raises(UserError, match=r"This machine has no device cuda:2; it has cpu, cuda\."):
        choose_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "cpu:one", "cuda:-1", ""])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(UserError, match=f"This machine has no device {name}; it has cpu"):
        choose_device(name)


def test_ranks_of_a_machine_take_its_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for rank, expected in enumerate(["cuda:0", "cuda:1", "cuda:0"]):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert choose_device("cuda") == expected
    assert choose_device("cuda:1") == "cuda:1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda") == "cuda"


@pytest.mark.parametrize("text", ["", "two", "-1"])
def test_a_place_on_the_machine_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", text)
    with pytest.raises(UserError, match=f'^LOCAL_RANK must be a whole number in a process of .*, but is "{text}"'):
        choose_device("cuda")


@pytest.mark.parametrize(("n_weights", "minibatch_size", "expected"), [(9_000, 256, 1), (150_000, 4096, 2)])
def test_threads_follow_the_size_of_a_minibatch(n_weights, minibatch_size, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with learning_threads(n_weights, minibatch_size):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
