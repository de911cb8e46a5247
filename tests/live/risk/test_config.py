"""Settings of guards: nothing is limited unless it is set, and a value that cannot be meant is refused."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.risk.config import GuardConfig
from ml_pipeline.runs.trained.configs import ChangesOfMarket


def test_no_limit_is_set_by_default():
    config = GuardConfig()
    limits = ("position", "position_money", "gross", "order", "order_money", "orders_per_minute", "price_jump")
    losses = ("daily_loss", "daily_loss_money", "drawdown")
    assert all(getattr(config, f"guard_{name}") is None for name in (*limits, *losses))
    assert config.guard_features == config.guard_half_day == "warn"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("guard_position", 0.0),
        ("guard_position", float("nan")),
        ("guard_gross", float("inf")),
        ("guard_order", True),
        ("guard_order_money", -1.0),
        ("guard_stale_s", 0.0),
        ("guard_price_jump", "much"),
        ("guard_price_jump_deviations", -3.0),
        ("guard_daily_loss", 1.0),
        ("guard_drawdown", 2.0),
        ("guard_daily_loss_money", 0.0),
        ("guard_orders_per_minute", 0),
        ("guard_orders_per_minute", 1.5),
        ("guard_halt_bars", 0),
        ("guard_features_beyond", -0.1),
        ("guard_features", "stop"),
        ("guard_half_day", "close"),
        ("guard_on_loss", "warn"),
        ("on_kill_file", "stop"),
        ("guard_reset", "yes"),
        ("guard_reset", "NaT"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(name, value):
    with pytest.raises(UserError, match=name):
        GuardConfig(**{name: value})


@pytest.mark.parametrize("time", ["2026-03-02T15:30", "2026-03-02 15:30:00", "2026-03-02T15:30:00Z"])
def test_a_reset_names_the_time_that_it_is_about(time):
    assert GuardConfig(guard_reset=time).guard_reset == time


def test_no_name_is_also_a_setting_of_the_market():
    assert not {each.name for each in fields(GuardConfig)} & {each.name for each in fields(ChangesOfMarket)}


def test_the_page_explains_every_setting():
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "paper-trading.md").read_text()
    section = page.partition("\n## Guards\n")[2].partition("\n## ")[0]
    rows = {name for line in section.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    names = {each.name for each in fields(GuardConfig)}
    assert names <= rows
    assert {name for name in rows if name.startswith("guard_")} <= names
