"""What is said of a rank that is gone, or has not come: who it is, and what is true of it."""

import pytest

from ml_pipeline.models.rl.distributed import losses
from ml_pipeline.models.rl.distributed.losses import FOLLOWED, Losses
from ml_pipeline.models.rl.distributed.ranks import Member, RankLost

MEMBERS = [Member("a", 10), Member("b", 11), Member("c", 12)]
TIMEOUT_S = 30.0


class Store(dict):
    """What is asked of torch's store."""

    set = dict.__setitem__

    def check(self, keys):
        return all(key in self for key in keys)


class GoneStore(Store):
    def check(self, keys):
        raise RuntimeError("Connection reset by peer")


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(losses, "_NOTICE_S", 0.0)  # the channel tells nothing in these tests
    return Store()


def known_by_first(store):
    return Losses(store, 0, MEMBERS)


def told(of_first, waited_s):
    broken = RuntimeError("Broken pipe\nmore of it")
    return str(of_first.error("the rollouts of all", broken, waited_s=waited_s, timeout_s=TIMEOUT_S))


def test_a_rank_that_has_not_come_when_the_time_is_over_was_too_late(store):
    of_first, of_second = (Losses(store, rank, MEMBERS) for rank in (0, 1))
    of_first.arrive()
    of_second.arrive()
    assert told(of_first, TIMEOUT_S).startswith(
        "Rank 0 of 3 waited for the rollouts of all, but rank 2 (c, process 12) did not come within 30 s (Broken pipe);"
    )


def test_a_rank_that_has_not_come_when_a_connection_breaks_is_not_called_too_late(store):
    of_first = known_by_first(store)
    of_first.arrive()
    assert "but a connection broke before rank 1 (b, process 11) and rank 2 (c, process 12) came (" in told(of_first, 1)


def test_a_connection_that_breaks_when_all_have_come_is_told_as_that(store):
    for rank in range(3):
        Losses(store, rank, MEMBERS).arrive()
    of_first = known_by_first(store)
    of_first._n_exchanges = 1
    assert "but the connection to a rank broke (Broken pipe)" in told(of_first, 1)
    others = "one of rank 1 (b, process 11) and rank 2 (c, process 12)"
    assert f"but {others} did not answer within 30 s (Broken pipe)" in told(of_first, TIMEOUT_S)


def test_the_end_of_the_stores_process_is_told_as_that(monkeypatch):
    monkeypatch.setattr(losses, "_NOTICE_S", 0.0)
    assert "but the process that holds the group's store is gone (" in told(known_by_first(GoneStore()), 1)


def test_the_first_to_be_lost_is_named_and_not_those_that_followed(store):
    of_first = known_by_first(store)
    assert not of_first
    of_first.note(1, {"lost": 1, "why": FOLLOWED})
    of_first.note(2, {"lost": 2, "why": "its process ended"})
    of_first.note(0, {"lost": 0, "why": "its own end"})
    of_first.note(1, {"taken": 3})
    assert of_first
    with pytest.raises(RankLost, match=r"^rank 2 \(c, process 12\) is gone: its process ended; start all ranks again"):
        of_first.check()
    assert "rank 2 (c, process 12) is gone: its process ended (Broken pipe)" in told(of_first, 0)


def test_neither_the_place_in_torchs_source_nor_gloos_advice_is_told(store):
    of_first = known_by_first(store)
    gloo = (
        "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1453: "
        "Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application. "
        "Check the logs of the remote worker before reporting an error."
    )
    error = of_first.error("the rollouts of all", RuntimeError(gloo), waited_s=1.0, timeout_s=TIMEOUT_S)
    assert "(Read error [127.0.0.1]:1453: Connection reset by peer); start all ranks again" in str(error)
