"""All ranks hear the same messages in the same order, and of every rank that ends without a word."""

import socket
from concurrent.futures import ThreadPoolExecutor

from tests.models.rl.core.workers.probes import wait_until
from tests.models.rl.distributed.groups_of_threads import threads

SIZE = 3


def test_messages_of_all_arrive_everywhere_in_one_order():
    with threads(SIZE) as ranks:
        with ThreadPoolExecutor(SIZE) as pool:
            for rank in ranks:
                for number in range(50):
                    pool.submit(rank.channel.post, {"number": number, "of": rank.rank})
        wait_until(lambda: all(len(rank.heard) == 50 * SIZE for rank in ranks))
        first, *others = [rank.heard for rank in ranks]
        assert others == [first] * (SIZE - 1)
        for sender in range(SIZE):
            assert sorted(message["number"] for who, message in first if who == sender) == list(range(50))


def test_who_listens_late_hears_what_came_before_and_who_ignores_hears_no_more():
    late: list[int] = []

    def note(sender: int, _: object) -> None:
        late.append(sender)

    with threads(2) as ranks:
        ranks[1].channel.post({"number": 1})
        wait_until(lambda: len(ranks[0].heard) == 1)
        ranks[0].channel.listen(note)
        ranks[0].channel.post({"number": 2})
        ranks[0].channel.ignore(note)
        ranks[0].channel.post({"number": 3})
        assert late == [1, 0]


def test_a_rank_that_ends_without_a_word_is_told_to_all_others():
    for lost in (0, 1):
        with threads(SIZE) as ranks:
            for peer in ranks[lost].channel._peers.values():
                peer.socket.shutdown(socket.SHUT_RDWR)  # as the kernel does for a process that was killed
            others = [rank for rank in ranks if rank.rank != lost]
            told = (lost, {"lost": lost, "why": "its process ended"})
            wait_until(lambda others=others, told=told: all(told in rank.heard for rank in others))


def test_the_end_of_a_rank_can_be_waited_for():
    for why in (None, "it raised KeyError: 'x'"):
        with threads(2) as ranks, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ranks[1].channel.wait_for_end_of, 0)
            ranks[0].channel.post({"number": 1})
            wait_until(lambda ranks=ranks: len(ranks[1].heard) == 1)
            assert not waiting.done()
            ranks[0].channel.close(why)
            waiting.result()
            ranks[1].channel.wait_for_end_of(0)


def test_a_rank_that_leaves_is_not_lost_and_one_that_raised_says_why():
    with threads(SIZE) as ranks:
        ranks[2].channel.close()
        ranks[1].channel.close("it raised KeyError: 'x'")
        wait_until(lambda: len(ranks[0].heard) == 2)
        assert sorted(ranks[0].heard) == [(1, {"lost": 1, "why": "it raised KeyError: 'x'"}), (2, {"left": 2})]
