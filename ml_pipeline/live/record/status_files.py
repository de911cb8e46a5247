"""What others watch a session by, besides its heartbeat: live.json and decision.json."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_pipeline.live.record.session_log import plain


def write_status(path: Path, values: Mapping[str, Any]) -> None:
    """Write a file of JSON anew, so that a reader sees the old one or the new one, and never half of it.

    It does not wait for the disk: the journal has what matters. A disk that is full costs the file, not the session.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(plain(values), ensure_ascii=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
