"""What the broker tells between two bars and at them, entered into the books as it comes."""

from ml_pipeline.live.brokers.broker import BrokerEvent, Fill
from ml_pipeline.live.loop.booking import book, is_foreign
from ml_pipeline.live.loop.running_session import RunningSession


class AccountEvents:
    """Books events of the account; a trade of somebody else is not booked, but demands an end of the session."""

    def __init__(self, session: RunningSession) -> None:
        self._session = session
        self._desk = session.desk

    def look(self) -> None:
        """Book what has happened at the broker since the last bar."""
        if self._desk.look():
            with self._session.record.transaction():
                self.book_all()

    def cancel_and_book(self) -> None:
        """Cancel what is open, and book what happened until then."""
        self._desk.settle_unsent(lambda placed: False)
        self._desk.collect()
        with self._session.record.transaction():
            self.book_all()

    def book_all(self) -> None:
        """Book what was taken in, within a transaction."""
        for event in self._desk.take_events():
            self.book(event)
        self._session.state.account = self._session.parts.books.state()

    def book(self, event: BrokerEvent) -> None:
        """Book one event, within a transaction."""
        session = self._session
        if isinstance(event, Fill) and is_foreign(event, self._desk):
            self._note_unexplained(event)
        else:
            book(event, session.parts, session.record, self._desk, number=session.state.number)

    def _note_unexplained(self, fill: Fill) -> None:
        sentence = (
            f"The account traded {fill.quantity:g} {fill.symbol} at {fill.price:g} by an order that is not of this "
            f'session ("{fill.client_order_id}").'
        )
        session = self._session
        session.record.log("difference", session.state.time, rows=[fill._asdict()], sentence=sentence)
        session.demanded.unexplained.append(sentence)
