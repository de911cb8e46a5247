"""What launchers set is read as numbers, and anything else is named in a sentence."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.rank_variables import (
    is_rank,
    local_rank,
    local_size,
    processes_here,
    rank_number,
    restart_count,
)


def test_a_number_is_read():
    assert rank_number("RANK", {"RANK": "12", "LOCAL_RANK": "2"}) == 12


@pytest.mark.parametrize("text", ["", "two", "-1", "1.0", "²"])
def test_what_is_no_number_is_named(text):
    with pytest.raises(UserError, match=f'^RANK must be a whole number .*, but is "{text}"; start it with torchrun'):
        rank_number("RANK", {"RANK": text})


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(UserError, match=r"LOCAL_RANK must be a whole number in a process of .*, but is not set;"):
        rank_number("LOCAL_RANK", {"RANK": "1"})


@pytest.mark.parametrize("variables", [{"RANK": "0"}, {"WORLD_SIZE": ""}])
def test_a_rank_is_told_by_its_number_or_the_number_of_all(variables):
    assert is_rank(variables)
    assert not is_rank({"LOCAL_RANK": "1"})


def test_what_nobody_says_of_this_machine_is_none():
    assert (local_rank({"RANK": "1"}), local_size({"RANK": "1"})) == (None, None)
    assert (local_rank({"LOCAL_RANK": "2"}), local_size({"LOCAL_WORLD_SIZE": "3"})) == (2, 3)
    with pytest.raises(UserError, match=r"^LOCAL_WORLD_SIZE must be a whole number"):
        local_size({"LOCAL_WORLD_SIZE": "two"})


@pytest.mark.parametrize(("text", "processes", "restarts"), [("3", 3, 3), ("0", 1, 0), ("two", 1, 0), ("", 1, 0)])
def test_counts_that_are_no_numbers_are_not_counted(text, processes, restarts):
    assert processes_here({"RANK": "0", "LOCAL_WORLD_SIZE": text}) == processes
    assert restart_count({"TORCHELASTIC_RESTART_COUNT": text}) == restarts
