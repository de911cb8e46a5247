import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.splits import chronological_split, whole


@given(
    first=st.integers(0, 50),
    n=st.integers(1, 500),
    embargo=st.integers(0, 10),
    train=st.floats(0.05, 0.9),
    validation=st.floats(0.05, 0.9),
)
def test_splits_follow_each_other_apart_by_the_embargo_and_end_with_the_data(first, n, embargo, train, validation):
    if train + validation >= 1:
        return
    try:
        splits = chronological_split(
            first, n, train_fraction=train, validation_fraction=validation, embargo_bars=embargo
        )
    except UserError:
        return
    train_split, validation_split, test_split = splits.values()
    assert first == train_split.start < train_split.stop
    assert train_split.stop + embargo == validation_split.start
    assert validation_split.stop + embargo == test_split.start
    assert test_split.stop == n
    assert all(split.n_bars >= 2 for split in splits.values())


@pytest.mark.parametrize(("first", "n", "name"), [(0, 1, "train"), (26, 20, "train"), (90, 100, "validation")])
def test_too_few_bars_for_a_step(first, n, name):
    with pytest.raises(UserError, match=f"The split {name} has .* bars of a.csv .*, but a step needs 2; use more bars"):
        chronological_split(first, n, source="a.csv")


def test_whole_is_everything_after_the_warm_up():
    assert (whole(5, 7).start, whole(5, 7).stop) == (5, 7)
    with pytest.raises(UserError, match="The split all has 1 of"):
        whole(6, 7)
