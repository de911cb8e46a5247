"""Whether a study gets anywhere: so many trials or workers that failed one after another would fail for ever."""

import signal
from collections.abc import Mapping
from typing import Any

from ml_pipeline.config.wording import without_traceback
from ml_pipeline.jobs.exit_reason import how_it_ended

MOST_FAILED = 10
"""Trials in a row, of one call of `tune`, that failed."""
MOST_IMPOSSIBLE = 100
"""Trials in a row whose settings were impossible; each takes milliseconds."""
_LONGEST_REASON = 1000
_MOST_ENDS = 10
_MOST_KILLS = 50  # by somebody, or by a system whose memory is full
_SIGKILL = -getattr(signal, "SIGKILL", 9)


class Setbacks:
    """Counts since the last trial that finished."""

    def __init__(self) -> None:
        self._reset()
        self.sentence: str | None = None
        """Why it is of no use to go on, once that is so."""

    def _reset(self) -> None:
        self._failed = self._impossible = self._ends = self._kills = 0

    def note_trial(self, end: Mapping[str, Any]) -> None:
        """end: a `TrialEnd`, by its names."""
        state, reason = end["state"], end["reason"]
        told = without_traceback(reason or "No reason is known.", _LONGEST_REASON)
        if state in {"complete", "pruned"}:
            self._reset()
        elif state in {"failed", "lost"}:
            self._failed += 1
            if self._failed >= MOST_FAILED:
                self.sentence = f"{self._failed} trials failed one after another, so the study ends here. {told}"
        elif state == "impossible":
            self._impossible += 1
            if self._impossible >= MOST_IMPOSSIBLE:
                self.sentence = (
                    f"The settings of {self._impossible} trials one after another were impossible, so the study ends "
                    f"here; search fewer values. {told}"
                )

    def note_worker(self, exit_code: int, *, log: str) -> None:
        """A worker ended that should not have; log: where its last words are."""
        self._kills += exit_code == _SIGKILL
        self._ends += exit_code != _SIGKILL
        if self._ends >= _MOST_ENDS or self._kills >= _MOST_KILLS:
            self.sentence = (
                f"{self._ends + self._kills} worker processes ended before a trial did, the last one "
                f"{how_it_ended(exit_code)}; {log} may say why. Where memory is short, a smaller --n-jobs takes less."
            )
