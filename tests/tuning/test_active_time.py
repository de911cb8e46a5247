import random
from itertools import pairwise

import pytest

from ml_pipeline.tuning.progress import active_seconds


def second_by_second(stretches, since):
    """The same by marking whole seconds; a gap of at most 60 s between marked ones is filled."""
    marked = sorted({second for begin, end in stretches for second in range(begin, end)})
    filled = set(marked)
    for before, after in pairwise(marked):
        if after - before - 1 <= 60:
            filled |= set(range(before, after))
    return sum(second >= since for second in filled)


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_number_of_seconds_in_which_anything_ran(seed):
    draw = random.Random(seed)
    begins = [draw.randrange(2000) for _ in range(draw.randrange(1, 12))]
    stretches = [(begin, begin + draw.randrange(1, 200)) for begin in begins]
    since = draw.choice([0, draw.randrange(2000)])
    assert active_seconds(stretches, since=since) == second_by_second(stretches, since)


def test_nothing_ran_in_no_stretch():
    assert active_seconds([]) == 0.0
