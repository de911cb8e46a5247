"""How a run ended, by what its folder tells and what the system tells of its process."""

import signal

from ml_pipeline.runs.state import RunState, Status
from ml_pipeline.runs.stop import ON_REQUEST
from ml_pipeline.service.run.last_words import how_it_ended


def outcome(
    *, state: RunState | None, exit_code: int | None, stop_asked: bool, words: str
) -> tuple[Status, str | None]:
    """The status and the reason of a run whose process is gone.

    state: what state.json tells; None where it cannot be read. exit_code: -N is by signal N, None is not known. words:
    what the process printed last. A run that never began is "queued": its folder is untouched.

    >>> outcome(state=None, exit_code=-9, stop_asked=False, words="")
    ('failed', 'Its process was killed by SIGKILL, and said nothing.')
    """
    if state is not None and state.ended is not None and state.status != "queued":
        return state.status, state.reason or (words if state.status == "failed" else None)
    if stop_asked:
        if exit_code == -signal.SIGKILL:
            return "stopped", "It did not stop when asked, and was killed; what its last checkpoint holds is whole."
        return "stopped", ON_REQUEST
    was_killed = exit_code is None or exit_code < 0
    if was_killed and state is not None and state.status == "queued":
        return "queued", "Its process ended before it began."
    if was_killed:
        said = f"; it said last:\n{words}" if words else ", and said nothing."
        return "failed", f"Its process was {how_it_ended(exit_code)}{said}"
    return "failed", words or f"Its process {how_it_ended(exit_code)}, and said nothing."
