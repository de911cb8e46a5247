"""The soak in small: nothing grows and nothing is lost. `make soak` does the same by the thousand."""

import random
from typing import Any

import pytest

from tests import soak

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:start_method='fork'")]


def test_resets_leave_nothing_behind() -> None:
    soak.reset_often(100)


@pytest.mark.parametrize(
    ("start_method", "n_cycles"),
    [("forkserver", 4), *(pytest.param(*each, marks=pytest.mark.long) for each in (("fork", 4), ("spawn", 1)))],
)
def test_opening_and_closing_leaves_nothing_behind(start_method: Any, n_cycles: int) -> None:
    soak.open_and_close(n_cycles, start_method)


@pytest.mark.long
def test_every_step_is_accounted_for_while_workers_are_killed() -> None:
    soak.step_through_kills(20, random.Random(0))


def test_every_step_is_accounted_for_while_workers_with_processes_of_their_own_are_killed() -> None:
    soak.step_through_kills(5, random.Random(0), soak.ParentEnv)


@pytest.mark.long
def test_nothing_is_left_of_killed_trainers() -> None:
    soak.kill_trainers(3, random.Random(0))


@pytest.mark.long
def test_suspended_trainers_go_on() -> None:
    soak.suspend_trainers(2, random.Random(0), step_timeout_s=0.0)  # a loaded machine may take any time for a step


@pytest.mark.long
def test_training_counts_every_step_while_workers_are_killed() -> None:
    soak.train_through_kills(1.0, random.Random(1))
