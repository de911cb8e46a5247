"""A run on the terminal: signals that stop it, and what it says."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress

from ml_pipeline.models.rl.algorithms.interruption import stop_on_signals
from ml_pipeline.monitoring.listener import RunListener, RunStart
from ml_pipeline.monitoring.run_console import RunConsole
from ml_pipeline.runs.ranks.rank_info import RankInfo
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runtime.interrupts import Interrupted, ending_signals, ignore


class StoppedBySignals(RunListener):
    """While the run trains, Ctrl-C, SIGTERM and SIGHUP request a stop. It says nothing, as ranks but the first do."""

    def __init__(self, place: RankInfo | None = None) -> None:
        """place: of a rank. A signal that was sent once may reach it twice, as a cluster or systemd signals all
        processes, and their launcher passes it on; the second one does not end the run without saving."""
        super().__init__()
        self.stop = StopRequest()
        self._place = place
        self._ignored: Sequence[int] = ()
        self._listening = ExitStack()

    def started(self, start: RunStart) -> None:
        self._listening.enter_context(stop_on_signals(self.request_stop))
        super().started(start)

    def trained(self) -> None:
        self.close()

    def close(self) -> None:
        self._listening.close()
        ignore(self._ignored)  # a copy may be late

    def request_stop(self, number: int) -> None:
        """End the run after its step, since this signal came."""
        self._ignored = _copies_of(number, self._place)
        ignore(self._ignored)
        self.stop.request(str(Interrupted(number)), signal=number)


class Terminal(StoppedBySignals, RunConsole):
    """The run on the terminal."""

    def __init__(self, place: RankInfo | None = None, *, notice: str | None = None) -> None:
        """notice: what to say before, once nothing can be refused any more."""
        super().__init__(place)
        self._notice = notice

    def started(self, start: RunStart) -> None:
        if self._notice is not None:
            self.say(self._notice)
        super().started(start)

    def close(self) -> None:
        StoppedBySignals.close(self)
        RunConsole.close(self)

    def request_stop(self, number: int) -> None:
        super().request_stop(number)
        with suppress(RuntimeError):  # the signal met the main thread while it was writing to the terminal
            again = "" if set(self._ignored) == set(ending_signals()) else "; once more to stop without saving"
            self.say(f"Stopping after this step, then saving{again}.")


def _copies_of(number: int, place: RankInfo | None) -> Sequence[int]:
    """The signals that may be copies of one that a rank received: torchrun passes on others as SIGTERM, our launchers
    the same one, and what a user sends after it as another."""
    if place is None or place.launch is None:
        return ()
    return [number] if place.started_by_us else ending_signals()
