"""How a run ended, by what its folder tells and what the system tells of its process."""

import signal

from ml_pipeline.jobs.exit_reason import how_it_ended
from ml_pipeline.runs.state import RunState, Status
from ml_pipeline.runs.stop import ON_REQUEST


def outcome(
    *, state: RunState | None, exit_code: int | None, when: str, stop_asked: bool, words: str
) -> tuple[Status, str | None]:
    """The status and the reason of a run whose process is gone.

    state: what state.json tells; None if it cannot be read. exit_code: -N is by signal N; None if the service did not
    start the process, so that the system does not tell. when: "at 14:02:11 UTC", the end of the process; if exit_code
    is None, its last sign of life. words: what the process printed last. A run that never began is "queued": its folder
    is untouched.

    >>> outcome(state=None, exit_code=-9, when="at 14:02:11 UTC", stop_asked=False, words="")
    ('failed', 'The process ended without a message (killed by SIGKILL at 14:02:11 UTC).')
    >>> outcome(state=None, exit_code=None, when="last sign of life at ...", stop_asked=False, words="")
    ('failed', 'The process ended without a message (last sign of life at ...).')
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
    how = when if exit_code is None else f"{how_it_ended(exit_code).removeprefix('ended with ')} {when}"
    if not words:
        return "failed", f"The process ended without a message ({how})."
    return "failed", f"The process ended ({how}); it said last:\n{words}" if was_killed else words
