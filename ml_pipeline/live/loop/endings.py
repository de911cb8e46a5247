"""The ends of a session: those that a person asks for, and those that the account, a guard or a difference demands."""

from typing import Literal

from ml_pipeline.live.loop.account_events import AccountEvents
from ml_pipeline.live.loop.one_bar.incoming_bars import IncomingBars
from ml_pipeline.live.loop.one_bar.order_writing import OrderWriting
from ml_pipeline.live.loop.parts import Ending
from ml_pipeline.live.loop.running_session import RunningSession
from ml_pipeline.live.loop.status import Status
from ml_pipeline.runs.stop import StopRequest


class Endings:
    """Asked again and again whether the session is to end; then it cancels what is open, and says how it ended."""

    def __init__(
        self,
        session: RunningSession,
        stop: StopRequest,
        *,
        incoming: IncomingBars,
        events: AccountEvents,
        writing: OrderWriting,
        status: Status,
    ) -> None:
        self._session = session
        self._stop = stop
        self._incoming = incoming
        self._events = events
        self._writing = writing
        self._status = status
        self._demanded = session.demanded

    def asked(self) -> Ending | None:
        """The end that a person asks for, by a signal or through the folder."""
        if self._stop.requested:
            return self.end("stopped", self._stop.reason or "A stop was requested.")
        requests = self._session.parts.requests
        request = None if requests is None else requests.poll()
        if request is None or (request.what == "flatten" and self._demanded.closing_down is not None):
            return None
        if request.what == "flatten":
            self.begin_to_close_down(request.why, asked=True)
            return self.demanded()
        return self.end("stopped", request.why)

    def demanded(self) -> Ending | None:
        """The end that the account, a guard or a difference demands."""
        session, demanded = self._session, self._demanded
        if (ending := self._failed()) is not None:
            return ending
        if demanded.ended_by is not None:
            return self.end("stopped", demanded.ended_by, asked=False)
        if demanded.unexplained:
            reason, demanded.unexplained = demanded.unexplained[0], []
            if session.settings.on_difference == "hold" or demanded.closing_down is not None:
                return self.end("stopped", reason, asked=False)
            self.begin_to_close_down(reason)
        if not session.state.begun:
            return None if demanded.closing_down is None else self._end_closed_down()
        books = session.parts.books
        if books.ended:
            why = "it could not pay what it owed" if books.margin_called else "ruin"
            return self.end("finished", f"The account was closed: {why}.", asked=False)
        is_done = session.is_flat and not session.desk.open and not self._incoming.waiting
        return self._end_closed_down() if demanded.closing_down is not None and is_done else None

    def begin_to_close_down(self, reason: str, *, asked: bool = False) -> None:
        """Cancel what is open, and close every position: at once, and again with each bar until all are closed."""
        self._demanded.closing_down, self._demanded.asked = reason, asked
        if self._session.state.begun and not self._incoming.waiting:
            self._session.attempt(self._close_positions)

    def end(
        self,
        status: Literal["finished", "stopped", "failed"],
        reason: str,
        *,
        asked: bool = True,
        cancels: bool = True,
    ) -> Ending:
        """Cancel what is open, and tell how it ended."""
        session = self._session
        begun, closes_down = session.state.begun, self._demanded.closing_down is not None
        reached = session.attempt(self._events.cancel_and_book if cancels else self._events.look) if begun else True
        flat = session.is_flat if begun else True
        if not reached:
            reason += " The broker could not be reached to cancel open orders."
        elif not flat and closes_down:
            reason += " Not all positions could be closed."
        session.record.log_now("stop", session.state.time, why=reason, flat=flat, sentence=reason)
        self._status.write(now=True)
        if session.parts.requests is not None:
            session.parts.requests.done("flatten" if closes_down else "stop")
        return Ending(status, reason, flat, asked)

    def _failed(self) -> Ending | None:
        """The end where bars cannot be decided on, unless positions are to be closed first."""
        session, failure = self._session, self._session.parts.failure
        if failure is None or self._demanded.closing_down is not None:
            return None
        if session.settings.on_error == "hold" or not session.state.begun or session.is_flat:
            return self.end("failed", failure, asked=False)
        self.begin_to_close_down(failure)
        return None

    def _end_closed_down(self) -> Ending:
        assert self._demanded.closing_down is not None
        status: Literal["failed", "stopped"] = "failed" if self._session.parts.failure is not None else "stopped"
        return self.end(status, self._demanded.closing_down, asked=self._demanded.asked)

    def _close_positions(self) -> None:
        session = self._session
        assert session.state.last is not None
        session.desk.settle_unsent(lambda placed: False)
        session.desk.collect()
        with session.record.transaction():
            self._events.book_all()
            self._writing.write_closing(session.state.last)
        session.desk.send()
