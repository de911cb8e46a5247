"""The trading loop: bars close, the books are closed, the policy decides, orders are written down and sent.

All that one set of bars brings about is one transaction of the journal, the orders included; they are sent after it. So
a kill leaves a bar either not begun, or closed with its orders on disk, about which the broker is asked by their ids.
"""

import time
from collections.abc import Callable

import numpy as np

from ml_pipeline.live.feeds.feed import Correction, End, Gap
from ml_pipeline.live.loop.account_events import AccountEvents
from ml_pipeline.live.loop.broker_line import BrokerLine
from ml_pipeline.live.loop.endings import Endings
from ml_pipeline.live.loop.model_switch import look_for_model
from ml_pipeline.live.loop.one_bar.bar_close import BarClose
from ml_pipeline.live.loop.one_bar.bar_decision import BarDecision
from ml_pipeline.live.loop.one_bar.incoming_bars import IncomingBars
from ml_pipeline.live.loop.one_bar.last_decision import LastDecision
from ml_pipeline.live.loop.one_bar.order_writing import OrderWriting
from ml_pipeline.live.loop.parts import Ending, LoopSettings, Parts
from ml_pipeline.live.loop.running_session import RunningSession
from ml_pipeline.live.loop.status import Status
from ml_pipeline.live.orders import OpenOrder, OrderManager
from ml_pipeline.live.record.session_record import SessionRecord
from ml_pipeline.runs.stop import StopRequest

_LAST_ATTEMPTS = 6
"""How often a broker that is away is asked again once there are no more bars."""


class TradingLoop:
    """Trades until the bars end, a person asks for an end, or a guard or a difference demands one.

    It never prints, and installs no signal handler: `stop` may be requested by anyone, at any time.
    """

    def __init__(
        self,
        parts: Parts,
        record: SessionRecord,
        desk: OrderManager,
        settings: LoopSettings,
        stop: StopRequest,
        *,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """The parts are as the journal left them: see `start_up`. beat: called each time the loop goes round."""
        self._session = session = RunningSession(parts, record, desk, settings, BrokerLine(record))
        self._beat = beat
        self._arrived = 0.0  # when the latest bars came, by `time.perf_counter`
        self._decision = LastDecision(record, session.symbols)
        self._status = Status(session, self._decision)
        self._incoming = IncomingBars(session)
        self._events = AccountEvents(session)
        writing = OrderWriting(session)
        self._close = BarClose(session, self._incoming, self._events, BarDecision(session, writing, self._decision))
        self._endings = Endings(
            session, stop, incoming=self._incoming, events=self._events, writing=writing, status=self._status
        )

    def run(self) -> Ending:
        """Trade. Raises UserError where the session cannot go on; started again, it goes on after the latest bar."""
        session = self._session
        session.parts.feed.start(after=session.state.time)
        self._decision.log_unlogged()
        if (ending := self._endings.demanded()) is not None:  # what ended it before does so again
            return ending
        while True:
            self._beat()
            for sentence in session.parts.undelivered():
                session.record.note_undelivered(sentence)
            if (ending := self._endings.asked()) is not None:
                return ending
            item = session.parts.feed.next(session.line.back_off_s if session.line.away else session.settings.idle_s)
            self._arrived = time.perf_counter()
            match item:
                case End():
                    return self._end_of_bars()
                case None:
                    self._idle()
                case Gap():
                    self._incoming.note_gap(item)
                    if session.settings.on_gap == "flatten":
                        self._endings.begin_to_close_down("A gap in the bars closes all positions, as configured.")
                case Correction():
                    self._incoming.note_correction(item)
                case _:
                    self._look_for_model()
                    if self._incoming.take(item):
                        self._try_to_catch_up()
            if (ending := self._endings.demanded()) is not None:
                return ending

    def _look_for_model(self) -> None:
        look_for_model(self._session, n_waiting=len(self._incoming.waiting))

    def _idle(self) -> None:
        self._look_for_model()  # a bar may be long: what is deployed within it decides at its close
        session = self._session
        if self._incoming.waiting or session.desk.unsent or session.line.away:
            self._try_to_catch_up()
        elif session.settings.real_time and session.state.begun:
            session.attempt(self._events.look)
        self._status.write()

    def _end_of_bars(self) -> Ending:
        session = self._session
        for attempt in range(_LAST_ATTEMPTS):
            if not (self._incoming.waiting or session.desk.unsent):
                break
            if attempt:
                time.sleep(min(session.line.back_off_s, 1.0) if session.settings.real_time else 0.0)
            self._try_to_catch_up()
        if (ending := self._endings.demanded()) is not None:
            return ending
        # A recording that has grown goes on here: what was decided last is then filled, as in its backtest.
        return self._endings.end("finished", "The bars have ended.", cancels=session.settings.real_time)

    def _try_to_catch_up(self) -> None:
        session = self._session
        if session.attempt(self._catch_up) or not session.desk.unsent:
            return
        session.attempt(self._settle_unsent)  # an answer was lost: ask at once, then with the next bars

    def _catch_up(self) -> None:
        """Close every bar that waits, decide on the last, and send its orders."""
        parts, desk = self._session.parts, self._session.desk
        self._incoming.show_broker()
        self._settle_unsent()
        if not self._incoming.waiting:
            self._events.look()
            return
        market = parts.session_of(self._incoming.waiting[-1].closed_at)
        desk.collect()
        self._close.close_waiting(market)
        desk.send()
        if self._decision.note_sent(self._arrived):
            self._status.write()

    def _settle_unsent(self) -> None:
        self._session.desk.settle_unsent(self._in_time)

    def _in_time(self, placed: OpenOrder) -> bool:
        """Whether an order may still be sent: the bar after the one that it was decided on has not closed."""
        state, feed = self._session.state, self._session.parts.feed
        if self._incoming.waiting or state.last is None or placed.number != state.number - 1:
            return False
        return not feed.now() > placed.closed_at + np.timedelta64(feed.timing.length, "ns")
