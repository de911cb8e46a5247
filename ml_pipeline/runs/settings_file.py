"""Records in the run folder which settings file started a run, so that `backtest --config` can find the run.

Files match by content; comments, order, layout and file name may differ. Runs outside checkpoints/ are listed in the
user's state folder and match only by file path, because another project may have a file of equal content.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_mapping
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.wording import written
from ml_pipeline.runs.folder import runs_folder
from ml_pipeline.runs.train_config import train_settings_of
from ml_pipeline.runtime.files import alone, open_regular, written_whole
from ml_pipeline.runtime.user_key import NoKey, state_folder

STARTED_WITH_FILE = "started-with.json"
_RUNS_ELSEWHERE = "runs-elsewhere.jsonl"  # in the user's state folder: one run folder per line
_MOST_BYTES = 1_000_000


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """A settings file as it was read. content: normalized text, equal for equal settings.

    paths: the absolute paths in it, by setting; relative ones start from the working directory.
    """

    path: str
    content: str
    paths: Mapping[str, str]

    def is_same(self, other: "SettingsFile") -> bool:
        """Whether both hold the same settings; names may differ."""
        return (self.content, self.paths) == (other.content, other.paths)


@dataclass(frozen=True, kw_only=True)
class StartedWith:
    """How a run was started. file: of --config, or None. flags: further settings, with values as typed."""

    file: SettingsFile | None = None
    flags: Mapping[str, str] = field(default_factory=dict)

    def record(self, folder: Path) -> None:
        """Store the file and the flags in a run folder; resuming without a file adds its flags.

        Raises UserError if the folder cannot be written.
        """
        earlier = started_with(folder)
        file = self.file or (earlier.file if earlier is not None else None)
        if file is None or Path(file.path).parent == folder.absolute():  # a service keeps the settings there
            return
        known = earlier.flags if earlier is not None and self.file is None else {}
        flags = {name: value for name, value in {**known, **self.flags}.items() if name != "checkpoint_dir"}
        try:
            with written_whole(folder / STARTED_WITH_FILE, "w", encoding="utf-8") as opened:
                json.dump({"file": asdict(file), "flags": flags}, opened, indent=2)
        except OSError as error:
            raise UserError(
                f"{folder / STARTED_WITH_FILE} cannot be written: {error.strerror}; choose another folder."
            ) from error
        if folder.absolute().parent != runs_folder():
            _list_elsewhere(folder.absolute())

    def with_flags(self, **flags: Any) -> "StartedWith":
        """A copy with further flags."""
        return replace(self, flags={**self.flags, **{name: written(value) for name, value in flags.items()}})

    def shown_flags(self) -> str:
        """The flags as typed; empty without any.

        >>> StartedWith(flags={"seed": "1", "hidden_sizes": "64 64"}).shown_flags()
        '--seed 1 --hidden-sizes 64 64'
        """
        return " ".join(f"{flag_of(name)} {value}" for name, value in self.flags.items())


def read_settings_file(path: Path) -> tuple[dict[str, Any], SettingsFile]:
    """The converted settings of a file, and its record.

    Raises UserError like `read_train_settings`.
    """
    mapping = read_mapping(path)
    settings = train_settings_of(mapping, path)
    paths = {name: str(value.absolute()) for name, value in settings.items() if isinstance(value, Path)}
    content = json.dumps(mapping, sort_keys=True, default=str)
    return settings, SettingsFile(path=str(path.absolute()), content=content, paths=paths)


def started_with(folder: Path) -> StartedWith | None:
    """The record in a run folder; None if missing or unreadable."""
    try:
        with open_regular(folder / STARTED_WITH_FILE) as file:
            values = json.loads(file.read(_MOST_BYTES))
        found = SettingsFile(**values["file"])
        flags = {str(name): str(value) for name, value in values["flags"].items()}
        is_good = isinstance(found.path, str) and isinstance(found.content, str) and isinstance(found.paths, dict)
        return StartedWith(file=found, flags=flags) if is_good else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def runs_elsewhere(file: SettingsFile) -> list[Path]:
    """The run folders outside checkpoints/ started with the file at this path, whatever its content then."""
    found = [(Path(each), started_with(Path(each))) for each in _listed_elsewhere()]
    return [folder for folder, start in found if start is not None and start.file and start.file.path == file.path]


def _list_elsewhere(folder: Path) -> None:
    """Add a run folder to the list, and drop deleted ones. Does nothing without a state folder."""
    with contextlib.suppress(NoKey, OSError):
        state = state_folder()
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(state / f"{_RUNS_ELSEWHERE}.lock"):
            there = [each for each in _listed_elsewhere() if (Path(each) / STARTED_WITH_FILE).is_file()]
            lines = [json.dumps(each) for each in dict.fromkeys([*there, str(folder)])]
            with written_whole(state / _RUNS_ELSEWHERE, "w", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in lines))


def _listed_elsewhere() -> list[str]:
    try:
        lines = (state_folder() / _RUNS_ELSEWHERE).read_text(encoding="utf-8").splitlines()
    except (NoKey, OSError, UnicodeDecodeError):
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            each = json.loads(line)
            found += [each] if isinstance(each, str) else []
    return found
