"""Who gets room for environments, in which order, and how they are counted."""

import os
import threading
from collections.abc import Iterator

import pytest

from ml_pipeline.runtime.env_limit import EnvLeases, Lease, LeaseRefused, end_limit, limit_state, new_limit
from tests.models.rl.core.workers.probes import wait_until

ME = f"process {os.getpid()}"


@pytest.fixture
def address() -> Iterator[str]:
    address = new_limit(4)
    yield address
    end_limit(address)


def take(address: str, n_envs: int, *, wait_s: float = 0.0) -> Lease:
    lease = EnvLeases(address, wait_s=wait_s, is_required=True).take(n_envs, in_processes=True)
    assert lease is not None
    return lease


def test_what_can_never_be_leased_is_refused_at_once(address):
    with pytest.raises(LeaseRefused, match=r"5 environments do not fit .* max_concurrent_envs=4; use fewer"):
        take(address, 5, wait_s=100)


def test_a_refusal_says_who_holds_what(address):
    take(address, 3)
    with pytest.raises(LeaseRefused) as refusal:
        take(address, 2)
    assert str(refusal.value) == (
        f"The wait for 2 environments timed out: of max_concurrent_envs=4, 3 are in use; {ME} holds 3."
    )
    assert limit_state(address).n_waiting == 0


def test_nobody_is_overtaken(address):
    got: list[int] = []
    first = take(address, 1)

    def ask(n_envs: int) -> threading.Thread:
        def wait() -> None:
            lease = take(address, n_envs, wait_s=60)
            got.append(n_envs)
            lease.give_back()

        n_waiting = limit_state(address).n_waiting
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: limit_state(address).n_waiting > n_waiting)
        return thread

    threads = [ask(4), ask(1)]  # the second one would fit
    assert got == []
    first.give_back()
    for thread in threads:
        thread.join()
    assert got == [4, 1]


def test_environments_that_move_count_once(address):
    batch = EnvLeases(address, is_required=True, wait_s=0.0)
    before, after = batch.take(3, in_processes=True), batch.take(4, in_processes=True)
    assert before is not None
    assert after is not None
    assert limit_state(address).held == {ME: 4}
    after.give_back()
    assert limit_state(address).n_envs == 3
    before.give_back()
    before.give_back()
    assert limit_state(address) == type(limit_state(address))(n_envs=0, n_waiting=0, held={})


def test_who_moves_to_other_workers_does_not_wait_behind_others(address):
    batch = EnvLeases(address, is_required=True, wait_s=0.0)
    held = batch.take(3, in_processes=True)
    assert held is not None
    waiting = threading.Thread(target=lambda: take(address, 2, wait_s=60))
    waiting.start()
    wait_until(lambda: limit_state(address).n_waiting)
    moved = batch.take(3, in_processes=True)
    assert moved is not None
    for lease in (held, moved):
        lease.give_back()
    waiting.join()


def test_a_fork_gives_nothing_back(address):
    lease = take(address, 2)
    if (child := os.fork()) == 0:
        lease.give_back()
        os._exit(0)
    os.waitpid(child, 0)
    assert limit_state(address).n_envs == 2


def test_environments_of_this_process_count_only_if_a_lease_is_required(address):
    assert EnvLeases(address).take(2, in_processes=False) is None
    assert EnvLeases(address, is_required=True).take(2, in_processes=False) is not None
    assert limit_state(address).n_envs == 2


def test_who_may_go_on_without_a_lease_is_warned(address):
    leases = EnvLeases(address, wait_s=0.0)
    with pytest.warns(RuntimeWarning, match=r"do not fit .* Workers are started as usual\."):
        assert leases.take(5, in_processes=True) is None
    assert len(leases.refusals) == 1
    end_limit(address)
    with pytest.warns(RuntimeWarning, match="no longer exists"):
        assert leases.take(1, in_processes=True) is None
