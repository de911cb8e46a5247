"""Whoever is asked and whenever: all ranks stop before the same step."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml_pipeline.models.rl.distributed.stop_agreement import StopAgreement
from ml_pipeline.models.rl.ranks import OwnStop, RankLost
from tests.examples import COSTLY
from tests.models.rl.core.workers.probes import wait_until
from tests.models.rl.distributed.groups_of_threads import threads

N_STEPS = 200


def steps_until_due(stop: Any, asked_at: int | None) -> int:
    """As a trainer: how many of N_STEPS steps were taken; before step `asked_at` this rank is asked to stop."""
    stop.begin()
    for step in range(N_STEPS):
        if step == asked_at:
            stop.request()
        if stop.is_due():
            break
    else:
        step = N_STEPS
    stop.end()
    return step


@settings(max_examples=COSTLY)
@given(asked=st.lists(st.tuples(*[st.none() | st.integers(0, N_STEPS - 1)] * 3), min_size=1, max_size=3))
def test_all_stop_before_the_same_step(asked):
    """asked: for each call of `train`, when each of three ranks is asked, if it is."""
    with threads(3) as ranks, ThreadPoolExecutor(3) as pool:
        stops = [StopAgreement(rank) for rank in ranks]
        calls = [
            pool.submit(lambda stop, when: [steps_until_due(stop, each) for each in when], stop, when)
            for stop, when in zip(stops, zip(*asked, strict=True), strict=True)
        ]
        taken = [call.result() for call in calls]
    for of_call, when in zip(zip(*taken, strict=True), asked, strict=True):
        requests = [each for each in when if each is not None]
        if not requests:
            assert of_call == (N_STEPS,) * 3
        else:
            assert len(set(of_call)) == 1
            assert of_call[0] >= min(requests)


def test_a_request_on_all_before_the_same_step_is_followed_at_once():
    with threads(3) as ranks, ThreadPoolExecutor(3) as pool:
        stops = [StopAgreement(rank) for rank in ranks]
        assert list(pool.map(steps_until_due, stops, [7] * 3)) == [7] * 3


def test_a_second_trainer_of_the_group_does_not_follow_requests_to_the_first():
    """The first goes on to listen until it is closed, which it is not on every rank at once."""
    with threads(3) as ranks, ThreadPoolExecutor(3) as pool:
        first = [StopAgreement(rank) for rank in ranks]
        assert list(pool.map(steps_until_due, first, [5] * 3)) == [5] * 3
        for stop in first[:2]:
            stop.close()
            stop.close()
        second = [StopAgreement(rank) for rank in ranks]
        assert list(pool.map(steps_until_due, second, [None] * 3)) == [N_STEPS] * 3
        assert list(pool.map(steps_until_due, second, [9] * 3)) == [9] * 3


def test_trainers_of_one_group_that_train_in_turns_stop_apart():
    with threads(2) as ranks, ThreadPoolExecutor(2) as pool:
        one, other = ([StopAgreement(rank) for rank in ranks] for _ in range(2))
        for stops, asked in ((one, 3), (other, None), (one, None), (other, 7), (one, 8)):
            assert list(pool.map(steps_until_due, stops, [asked] * 2)) == [N_STEPS if asked is None else asked] * 2


def test_a_closed_agreement_hears_nothing_more():
    with threads(2) as ranks:
        stop = StopAgreement(ranks[0])
        stop.close()
        ranks[1].channel.post({"trainer": 0, "taken": 3, "call": 1})
        wait_until(lambda: any("taken" in message for _, message in ranks[0].heard))
        assert not stop._counts


def test_a_request_before_training_is_kept_for_it():
    own = OwnStop()
    with threads(2) as ranks, ThreadPoolExecutor(2) as pool:
        stops = [StopAgreement(rank) for rank in ranks]
        for stop in (own, stops[0]):
            stop.request()
        first = pool.submit(steps_until_due, stops[0], None)
        wait_until(lambda: any("taken" in message for _, message in ranks[1].heard))
        assert steps_until_due(stops[1], None) == first.result() == 0
    assert steps_until_due(own, None) == 0
    assert steps_until_due(own, None) == N_STEPS


def test_whoever_is_lost_ends_the_wait_for_its_answer():
    with threads(2) as ranks, ThreadPoolExecutor(1) as pool:
        stop = StopAgreement(ranks[0])
        waiting = pool.submit(steps_until_due, stop, 0)  # rank 1 never begins to train, and so does not answer
        wait_until(lambda: any("taken" in message for _, message in ranks[1].heard))
        ranks[1].channel.close("it raised KeyError: 'x'")
        with pytest.raises(RankLost):
            waiting.result()
