from dataclasses import fields

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import hints_of
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.trading.accounts.rules import CostsAndLimits
from ml_pipeline.tuning.search.space import REFUSED, SEARCHABLE, searchable


@pytest.mark.parametrize("name", hints_of(TrainConfig))
def test_every_setting_is_searchable_or_refused_with_a_reason(name):
    assert (name in SEARCHABLE) != (name in REFUSED)


def test_nothing_that_a_trial_pays_is_searchable():
    bps = {field.name for field in fields(CostsAndLimits) if "fee" in field.name or "bps" in field.name}
    assert len(bps) >= 7
    assert not bps & SEARCHABLE


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fee_bps", "costs are not searched"),
        ("slippage-bps", "costs are not searched"),
        ("fill_at", "costs are not searched"),
        ("size_at", "costs are not searched"),
        ("max_gross", "the largest risk"),
        ("initial_cash", "the largest risk"),
        ("train_fraction", "which bars are scored"),
        ("symbols", "which bars are scored"),
        ("timeframe", "which bars are scored"),
        ("session", "which bars are scored"),
        ("periods_per_year", "which bars are scored"),
        ("env_kwargs", "the easiest one"),
        ("eval_episodes", "more looks give a higher one"),
        ("eval_interval", "more looks give a higher one"),
        ("seed", "--seeds-per-trial"),
        ("total_timesteps", "the same budget"),
        ("n_envs", "fit on the machine"),
    ],
)
def test_what_would_let_a_trial_cheat_is_refused_with_the_reason(name, reason):
    with pytest.raises(UserError, match=f"{name.replace('-', '_')} cannot be searched: .*{reason}"):
        searchable(name, source="space.yaml")


@pytest.mark.parametrize(
    ("name", "meant"), [("learning_rat", "learning_rate"), ("lr", "learning_rate"), ("net_arch", "hidden_sizes")]
)
def test_an_unknown_setting_is_answered_with_the_nearest(name, meant):
    with pytest.raises(UserError, match=f'space.yaml: unknown setting "{name}". Did you mean "{meant}"?'):
        searchable(name, source="space.yaml")


def test_dashes_are_underscores():
    assert searchable("learning-rate", source="space.yaml") == "learning_rate"
