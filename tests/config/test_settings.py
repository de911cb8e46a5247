"""Groups of settings are flat to flags and files."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ml_pipeline.config.settings import build, flatten, groups_of, hints_of


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
