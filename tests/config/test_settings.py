"""Groups of settings are flat to flags and files."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import LostFunction, build, flatten, function_shown, groups_of, hints_of, spelled_out


@dataclass(frozen=True)
class Shape:
    sides: int = 3
    colours: tuple[str, ...] = ("red",)


@dataclass(frozen=True)
class Place:
    folder: Path | None = None


@dataclass(frozen=True)
class Drawing:
    shape: Shape = field(default_factory=Shape)
    place: Place = field(default_factory=Place)


def test_settings_of_all_groups_are_named_flat_and_in_order():
    assert groups_of(Drawing) == {"shape": Shape, "place": Place}
    assert hints_of(Drawing) == {"sides": int, "colours": tuple[str, ...], "folder": Path | None}


def test_building_keeps_defaults_where_no_value_is_given():
    assert build(Drawing, {"sides": 4}) == Drawing(Shape(4), Place())


def test_flattening_leaves_only_what_yaml_and_json_know():
    assert flatten(Drawing(Shape(4, ("red", "blue")), Place(Path("a/b")))) == {
        "sides": 4,
        "colours": ["red", "blue"],
        "folder": "a/b",
    }


def test_a_name_in_two_groups_is_a_defect():
    @dataclass(frozen=True)
    class Twice:
        one: Shape
        other: Shape

    with pytest.raises(AssertionError, match="sides is a setting of two groups"):
        hints_of(Twice)


def warm_up(left):
    return 3e-4 * min(1.0, 10.0 * (1.0 - left))


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "ent_coef"])
@pytest.mark.parametrize("beside", [{}, {"schedule": "constant"}, {"schedule": "linear"}], ids=str)
def test_a_line_is_a_number_and_a_schedule(name, beside):
    beside = {f"{name}_{key}": value for key, value in beside.items()}
    assert spelled_out({name: "lin_2.5e-4", **beside}) == {name: 2.5e-4, f"{name}_schedule": "linear"}


def test_a_line_and_another_schedule_contradict_each_other():
    with pytest.raises(
        UserError, match=r"ent_coef is lin_0\.01, which is linear, but ent_coef_schedule is cosine; use one of them"
    ):
        spelled_out({"ent_coef": "lin_0.01", "ent_coef_schedule": "cosine"})


@pytest.mark.parametrize(
    "settings", [{"gamma": "lin_0.9"}, {"learning_rate": "lin_fast"}, {"clip_range": 0.3}], ids=str
)
def test_what_is_no_line_stays_as_it_is(settings):
    assert spelled_out(settings) == settings


def test_the_name_of_a_function_stands_for_it_and_says_so_when_it_is_called():
    shown = function_shown(warm_up)
    lost = spelled_out({"learning_rate": shown})["learning_rate"]
    assert (shown, lost) == ("function warm_up", LostFunction("learning_rate", "warm_up"))
    assert (str(lost), function_shown(lost)) == (shown, shown)
    with pytest.raises(UserError) as told:
        lost(1.0)
    assert str(told.value) == (
        "learning_rate was the Python function warm_up, of which files, checkpoints and other processes hold only the "
        "name; pass it again, PPOConfig(learning_rate=...), or give a number."
    )
