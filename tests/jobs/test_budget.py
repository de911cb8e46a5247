"""Runs start in their order, within the budget, and none waits for ever."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.jobs.budget import (
    NOTHING,
    Need,
    Waiting,
    _left_in_group,
    decide,
    free_memory_bytes,
    need_of,
    share_of_cores,
    to_start,
)

ROOM = Need(math.inf, 4, 1000, 8)


def run(id, cores=1, *, priority=0, envs=1, memory=100):
    return Waiting(id, (-priority, int(id)), Need(1, cores, memory, envs))


needs = st.builds(
    Need, runs=st.just(1), cores=st.integers(1, 6), memory_mb=st.integers(1, 1500), envs=st.integers(1, 10)
)
orders = st.tuples(st.integers(-2, 2), st.integers(0, 10**6))


def test_runs_start_in_their_order_as_far_as_there_is_room():
    assert to_start([run("1"), run("0"), run("2", 3)], [], ROOM) == ["0", "1"]


def test_a_higher_priority_goes_first():
    assert to_start([run("0", 3), run("1", 3, priority=1)], [], ROOM) == ["1"]


@pytest.mark.parametrize("tight", [run("1", 4), run("1", envs=8), run("1", memory=901)])
def test_each_part_of_the_budget_holds_a_run_back(tight):
    assert to_start([tight], [run("0")], ROOM) == []


def test_a_run_that_asks_for_more_than_there_is_starts_alone():
    assert to_start([run("0", 9, memory=5000)], [], ROOM) == ["0"]
    assert to_start([run("0", 9, memory=5000)], [run("1")], ROOM) == []


def test_a_small_run_overtakes_into_what_the_larger_one_leaves_over():
    """3 of 4 cores are taken; the next wants 3, so that one core is left over whenever it starts."""
    assert to_start([run("1", 3), run("2"), run("3")], [run("0", 3)], ROOM) == ["2"]
    assert to_start([run("1", 4), run("2")], [run("0", 3)], ROOM) == []  # it would delay the larger one
    assert to_start([run("1", 3), run("3")], [run("0", 2), run("2")], ROOM) == []  # one has overtaken already


@given(st.lists(st.tuples(orders, needs), max_size=12), st.integers(1, 5))
def test_the_budget_holds_whatever_is_asked_for(asked, max_runs):
    total = Need(max_runs, 4, 1000, 8)
    queued = [Waiting(str(i), order, need) for i, (order, need) in enumerate(asked)]
    started = to_start(queued, [], total)
    used = NOTHING
    for each in queued:
        if each.id in started:
            used = used.plus(each.need.at_most(total))
    assert used.fits(total)
    assert len({*started}) == len(started)
    assert bool(started) == bool(queued)  # an empty machine never waits


@given(st.lists(needs, min_size=1, max_size=4), st.lists(needs, min_size=30, max_size=30), st.randoms())
def test_a_stream_of_later_runs_never_keeps_an_earlier_one_waiting(first, later, chance):
    """Later runs of any size go on arriving; each run that has started ends at some time."""
    queue = [Waiting(f"first{i}", (0, i), need) for i, need in enumerate(first)]
    running, done = [], set()
    for i, need in enumerate(later):
        queue.append(Waiting(f"later{i}", (0, 100 + i), need))
        for id in to_start(queue, running, ROOM):
            running += [each for each in queue if each.id == id]
            queue = [each for each in queue if each.id != id]
        if running:
            ended = chance.choice(running)
            running.remove(ended)
            done.add(ended.id)
        head = min(queue, key=lambda each: each.order, default=None)
        if head is not None:  # those before it end; those that overtook it leave it its room
            overtook = [each for each in running if each.order > head.order]
            used = head.need.at_most(ROOM)
            for each in overtook:
                used = used.plus(each.need.at_most(ROOM))
            assert used.fits(ROOM) or any(each.order < head.order for each in running) or _shrinks(running, queue)


def _shrinks(running, queue):
    """Whether nothing more may start, so that what runs can only end."""
    return to_start(queue, running, ROOM) == []


def test_a_run_that_waits_is_told_what_it_lacks_and_who_has_it():
    decided = decide([run("2"), run("1", 4), run("3")], [run("0", 9)], ROOM)
    assert decided == {
        "1": "Waits for 4 of 4 cores; 0 uses 4.",
        "2": "Waits for 1 of 4 cores; 0 uses 4.",
        "3": "Waits for 1 of 4 cores; 0 uses 4.",
    }
    assert decide([run("1", 4), run("2")], [run("0", 3)], ROOM)["2"] == "Waits behind 1, which needs the room."
    tight = Need(1, 4, 1000, 8)
    assert decide([run("1")], [run("0")], tight) == {"1": "Waits for its turn; 0 uses all 1 places."}


def test_batched_environments_count_as_one_and_workers_as_a_core_each():
    assert need_of({"n_envs": 4096, "vec_env": "batched", "n_workers": "auto"}).envs == 1
    assert need_of({"n_envs": 8, "vec_env": "parallel", "n_workers": 3}).cores == 3
    assert need_of({"n_envs": 8, "vec_env": "parallel", "n_workers": "dynamic"}).cores == 1
    assert need_of({"n_envs": 8, "vec_env": "serial", "n_workers": 0})[:2] == (1, 1)


def test_a_schedule_counts_with_its_largest_number():
    assert need_of({"n_envs": 4, "n_envs_schedule": {"1000": 16, "2000": 8}}).envs == 16
    assert need_of({"n_envs": 4, "n_envs_schedule": {"1000": 2}}).envs == 4


def test_cores_are_shared_among_runs_that_let_it():
    assert share_of_cores(8, 2, 3) == 2
    assert share_of_cores(2, 0, 4) == 1
    assert share_of_cores(8, 0, 0) == 0


def test_free_memory_is_the_least_of_the_machine_and_the_group(tmp_path):
    assert 0 < free_memory_bytes() < 10**15
    assert _left_in_group(tmp_path) == []
    (tmp_path / "memory.max").write_text("max\n")
    assert _left_in_group(tmp_path) == []
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\nactive_file 50\n")
    assert _left_in_group(tmp_path) == [500]
