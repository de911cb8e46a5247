"""Tuned settings of environments, by the name of a preset; the files of presets say where each comes from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_mapping

Preset = Literal["zoo"]


def preset_file(name: Preset) -> Path:
    """The file of a preset: per environment, settings by their names."""
    return Path(__file__).with_name(f"{name}.yaml")


def preset_of(name: Preset, env_id: str | None) -> Mapping[str, Any]:
    """The settings of a preset for an environment, as its file has them. Raises UserError if it has none."""
    known = read_mapping(preset_file(name))
    if env_id not in known:
        what = "trading" if env_id is None else env_id
        raise UserError(f"The preset {name} has no settings for {what}; it has some for {', '.join(known)}.")
    return known[env_id]
