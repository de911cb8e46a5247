"""What trials are compared by, and which runs that takes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.train_config import train_config
from ml_pipeline.trading.market.splits import chronological_split
from ml_pipeline.tuning.config import ObjectiveConfig, fold_units


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"objective": "sharp"}, 'objective must be one of score, sharpe, but got "sharp". Did you mean "sharpe"?'),
        ({"seeds_per_trial": 0}, "seeds_per_trial must be a whole number of at least 1, but got 0."),
        ({"folds": 1}, "folds must be a whole number of at least 2, but got 1."),
        ({"folds": 2, "seeds_per_trial": 3}, "got seeds_per_trial 3 and folds 2; use one of them."),
    ],
)
def test_an_objective_that_cannot_be_is_refused(given, sentence):
    with pytest.raises(UserError) as refused:
        ObjectiveConfig(**given)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("given", [{"objective": "sharpe"}, {"folds": 2}])
def test_what_only_a_market_has_is_refused_elsewhere(given):
    with pytest.raises(UserError, match="but env_id is CartPole-v1"):
        ObjectiveConfig(**given).check({"env_id": "CartPole-v1"})
    ObjectiveConfig(**given).check({})


def test_seeds_follow_that_of_the_settings():
    units = ObjectiveConfig(seeds_per_trial=3).units(train_config({"seed": 5}))
    assert [(unit.name, unit.settings) for unit in units] == [(f"seed-{k}", {"seed": k}) for k in (5, 6, 7)]


@given(
    n=st.integers(2, 6),
    train=st.floats(0.2, 0.8),
    share=st.floats(0.1, 0.9),
    n_bars=st.integers(400, 20_000),
    embargo=st.integers(0, 5),
)
def test_folds_follow_one_another_and_leave_the_test_split_alone(n, train, share, n_bars, embargo):
    validation = (0.95 - train) * share

    def split(**fractions):
        return chronological_split(10, n_bars, embargo_bars=embargo, **fractions)

    test = split(train_fraction=train, validation_fraction=validation)["test"]
    folds = [split(**unit.settings) for unit in fold_units(n, train=train, validation=validation)]
    for earlier, later in pairwise(folds):
        assert later["train"].start == earlier["train"].start == 10
        assert abs(later["train"].stop - earlier["validation"].stop) <= 1  # each fraction is rounded to a bar
    assert folds[-1]["validation"].stop == test.start - embargo
    lengths = [fold["validation"].n_bars for fold in folds]
    assert max(lengths) - min(lengths) <= 2
