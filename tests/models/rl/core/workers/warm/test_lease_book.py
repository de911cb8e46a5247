"""Who gets workers, in which order, and how environments are counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.models.rl.core.workers.warm.lease_book import Lease, LeaseBook, LeaseRefused


def wish(
    n_envs: int, n_workers: int = 1, *, batch: str = "a", holder: str = "me", deadline: float = 10.0, division: int = 0
) -> Lease:
    size = n_envs // n_workers
    blocks = [(index * size, (index + 1) * size) for index in range(n_workers)]
    return Lease(holder, batch, blocks, deadline, division=division)


def test_nobody_is_overtaken():
    book = LeaseBook(4, 4)
    first, large, small = wish(2, batch="a"), wish(4, batch="b"), wish(1, batch="c")
    book.ask(first)
    assert book.first_that_fits() is first
    book.grant(first, [1])
    book.ask(large)
    book.ask(small)
    assert book.first_that_fits() is None
    book.take_back(1)
    assert book.first_that_fits() is large
    book.withdraw(large)
    assert book.first_that_fits() is small


def test_an_environment_that_moves_between_two_workers_counts_once():
    book = LeaseBook(4, 4)
    for n_workers, numbers in ((1, [1]), (2, [2, 3])):
        lease = wish(4, n_workers)
        book.ask(lease)
        assert book.first_that_fits() is lease
        book.grant(lease, numbers)
    assert (book.n_envs, book.n_lent) == (4, 3)
    book.take_back(1)
    assert (book.n_envs, book.n_lent) == (4, 2)
    book.take_back(2)
    assert book.n_envs == 2


def test_of_workers_that_take_environments_over_from_others_the_larger_number_counts():
    book = LeaseBook(8, 4)
    for division, (n_workers, numbers) in enumerate([(4, [1, 2, 3, 4]), (3, [5, 6, 7])]):
        lease = wish(4, n_workers, division=division)
        book.ask(lease)
        assert book.first_that_fits() is lease
        assert book.n_taking_over(lease) == (3 if division else 0)
        book.grant(lease, numbers)
    assert (book.n_lent, book.n_taking_over()) == (7, 3)
    other = wish(1, batch="b")
    book.ask(other)
    assert book.first_that_fits() is None
    for worker in (1, 2):
        book.take_back(worker)
    assert book.first_that_fits() is other  # 3 of the batch that moves, and this one


def test_a_successor_of_a_failed_worker_counts_beside_the_others():
    book = LeaseBook(8, 4)
    for n_workers, numbers in ((4, [1, 2, 3, 4]), (1, [5])):
        book.ask(lease := wish(n_workers, n_workers))
        if n_workers == 1:
            assert book.first_that_fits() is None
            book.take_back(4)
        assert book.first_that_fits() is lease
        book.grant(lease, numbers)
    assert (book.n_lent, book.n_taking_over()) == (4, 0)


def test_what_can_never_be_lent_is_refused_at_once():
    book = LeaseBook(4, 2)
    with pytest.raises(LeaseRefused, match=r"5 environments do not fit .* max_concurrent_envs=4"):
        book.ask(wish(5))
    with pytest.raises(LeaseRefused, match=r"3 workers do not fit .* max_workers=2"):
        book.ask(wish(3, 3))


def test_a_refusal_says_who_holds_what():
    book = LeaseBook(4, 4)
    held, late = wish(3, 3, holder="process 7"), wish(2, batch="b", deadline=1.0)
    book.ask(held)
    book.grant(held, [1, 2, 3])
    book.ask(late)
    assert book.overdue(0.5) == []
    assert book.overdue(1.0) == [late]
    assert book.refusal(late) == (
        "There is no room for 2 environments in 1 workers within the time: of max_concurrent_envs=4, 3 are lent, and "
        "of max_workers=4, 3; process 7 holds 3."
    )


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans()), max_size=30))
def test_never_more_than_the_limits_are_out(steps):
    book = LeaseBook(7, 4)
    number = 0
    for index, (n_workers, size, returns) in enumerate(steps):
        if n_workers * size <= 7:
            book.ask(wish(n_workers * size, n_workers, batch=str(index)))
        while (lease := book.first_that_fits()) is not None:
            book.grant(lease, range(number, number + len(lease.blocks)))
            number += len(lease.blocks)
        assert book.n_envs <= 7
        assert book.n_lent <= 4
        if returns and book.held:
            for worker in list(book.held[0].out):
                book.take_back(worker)
