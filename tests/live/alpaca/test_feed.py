from contextlib import contextmanager

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.config import AlpacaConfig
from ml_pipeline.live.feeds.config import FeedConfig
from ml_pipeline.live.feeds.feed import BarsUnavailable, Correction, Gap
from ml_pipeline.testing.feeds import BEGINS, FIRST, MINUTE, FeedContract, assert_same_bars, minutes_market
from ml_pipeline.trading.market.bar_set import BarSet, bar_sets_of
from ml_pipeline.trading.market.resampling import BarForm
from ml_pipeline.trading.market.timeframes import make_clock
from tests.models.rl.core.workers.probes import wait_until

SECOND = np.timedelta64(1, "s")
TWO = minutes_market(10, 2)


class Clock:
    def __init__(self, now: np.datetime64) -> None:
        self.now = now

    def __call__(self) -> np.datetime64:
        return self.now


def as_alpaca_writes(bars: BarSet, i: int, **changes: float) -> dict:
    names = {"o": "open", "h": "high", "l": "low", "c": "close", "v": "volume"}
    values = {short: float(getattr(bars, name)[i]) for short, name in names.items()}
    stamp = f"{np.datetime_as_string(bars.time.astype('datetime64[s]'))}Z"
    return {"t": stamp, **values, "n": 7, "vw": values["c"], **changes}


class Session:
    """The feed of a market at the test's server, with a clock that the test sets. symbols: as the server names them."""

    def __init__(
        self, server, market=TWO, *, symbols=None, timeframe="1m", silent_s=60.0, alpaca=None, **settings
    ) -> None:
        from ml_pipeline.live.alpaca.feed import open_alpaca_feed

        self.server = server.market_data
        self.faults = server.faults
        self.market = market
        self.symbols = market.symbols if symbols is None else symbols
        self.bars = list(bar_sets_of(market))
        self.clock = Clock(self.bars[FIRST - 1].closed_at)
        config = AlpacaConfig(
            **{
                "alpaca_url": server.url,
                "alpaca_stream_url": server.stream_url,
                "alpaca_data_url": server.data_url,
                "alpaca_data_stream_url": server.data_stream_url,
                "alpaca_timeout_s": 2.0,
                **(alpaca or {}),
            }
        )
        form = BarForm(timeframe=timeframe, clock=make_clock("09:30-16:00", "America/New_York"))
        self.feed = open_alpaca_feed(
            self.symbols, form, config, FeedConfig(**settings), clock=self.clock, silent_s=silent_s
        )

    def record(self, *rows: int) -> None:
        for row in rows:
            for i in np.flatnonzero(self.bars[row].present):
                self.server.record(self.symbols[i], as_alpaca_writes(self.bars[row], i))

    def start(self) -> None:
        self.feed.start()
        wait_until(lambda: self.server.listening == 1)

    def publish(self, row: int, *assets: int, updated: bool = False, **changes: float) -> None:
        for i in assets or range(len(self.symbols)):
            self.server.publish(self.symbols[i], as_alpaca_writes(self.bars[row], i, **changes), updated=updated)

    def wait_for_bars(self, n: int) -> None:
        """Until the feed has received so many that it does not give out yet."""
        waiting = self.feed._assembly.waiting
        wait_until(lambda: self.feed.next(0.0) is None and sum(map(len, waiting.values())) >= n)

    def close_of(self, row: int, *, plus: float = 0.0) -> None:
        self.clock.now = self.bars[row].closed_at + np.timedelta64(round(plus * 1_000), "ms")

    def next(self):
        """What comes within 30 s."""
        event = self.feed.next(30.0)
        assert event is not None
        return event


@pytest.fixture
def open_session(server):
    opened = []

    def start(*arguments, **settings) -> Session:
        opened.append(Session(server, *arguments, **settings))
        return opened[-1]

    yield start
    for session in opened:
        session.feed.close()


@pytest.fixture
def session(open_session):
    made = open_session()
    made.start()
    return made


class TestAlpacaFeed(FeedContract):
    market = minutes_market(n_symbols=3, absent=0.3, seed=5)

    @pytest.fixture(autouse=True)
    def with_server(self, server):
        self.server = server

    @contextmanager
    def open_feed(self, market):
        session = Session(self.server, market)
        session.record(*range(market.n_bars))
        session.feed.history()
        session.clock.now = market.times[-1] + MINUTE + 10 * SECOND
        yield session.feed
        session.feed.close()

    def test_history_is_what_comes_before_the_first_bars(self, expected):
        session = Session(self.server, self.market)
        session.record(*range(self.market.n_bars))
        history = session.feed.history()
        session.feed.start()
        session.close_of(FIRST, plus=5)
        (first,) = self.taken(session.feed, 1)
        session.feed.close()

        assert [bars.time for bars in history] == [bars.time for bars in expected[:FIRST]]
        for got, want in zip([*history, first], expected, strict=False):
            assert_same_bars(got, want)


def test_bars_of_the_stream_come_with_their_bits(session):
    session.publish(FIRST)
    session.close_of(FIRST)

    bars = session.next()

    assert_same_bars(bars, session.bars[FIRST])
    assert not bars.late


def test_a_bar_is_stamped_with_when_it_begins_and_comes_a_minute_later(session):
    session.publish(FIRST)
    session.clock.now = session.bars[FIRST].time + 59 * SECOND
    assert session.feed.next(0.2) is None

    session.clock.now += SECOND
    bars = session.next()

    assert bars.closed_at - bars.time == MINUTE


def test_the_meaning_of_the_stamp_is_among_what_is_printed_at_the_start(session):
    assert "bars of 2 symbols come from Alpaca's feed iex, adjusted to splits" in session.feed.notices
    assert any(
        "when bars open: the 1m bar of" in notice and "14:30 closes at 14:31" in notice
        for notice in session.feed.notices
    )


def test_bars_that_come_twice_are_one(session):
    session.server.copies = 3
    for row in (FIRST, FIRST + 1):
        session.publish(row)
        session.close_of(row)
        assert_same_bars(session.next(), session.bars[row])
    assert session.feed.next(0.0) is None


def test_bars_out_of_order_are_sorted(session):
    session.publish(FIRST + 1)
    session.publish(FIRST)
    session.wait_for_bars(4)
    session.close_of(FIRST + 1)

    assert_same_bars(session.next(), session.bars[FIRST])
    assert_same_bars(session.next(), session.bars[FIRST + 1])


def test_an_updated_bar_replaces_the_first_before_the_decision_and_is_a_correction_after_it(session):
    session.publish(FIRST, 0, updated=True, v=5.0)
    session.publish(FIRST)
    session.close_of(FIRST)
    bars = session.next()
    session.publish(FIRST, 1, updated=True, v=6.0)
    correction = session.next()

    assert list(bars.volume) == [5.0, session.bars[FIRST].volume[1]]
    assert isinstance(correction, Correction)
    assert list(correction.bars.volume) == [5.0, 6.0]
    assert correction.symbols == ("S1",)


def test_a_bar_that_the_stream_missed_is_looked_up_before_the_decision(session):
    session.publish(FIRST, 0)
    session.record(FIRST)
    session.close_of(FIRST, plus=5)

    assert_same_bars(session.next(), session.bars[FIRST])
    asked = session.server.asked[-1]
    assert (asked["start"], asked["end"]) == ("2024-03-01T14:34:00Z", "2024-03-01T14:34:00Z")
    assert (asked["feed"], asked["adjustment"], asked["symbols"]) == ("iex", "split", "S0,S1")


def test_a_minute_without_trades_has_no_bar_and_is_no_gap(session):
    session.publish(FIRST, 0)
    session.wait_for_bars(1)
    session.close_of(FIRST, plus=5)

    assert list(session.next().present) == [True, False]


def test_a_history_that_does_not_answer_gives_a_gap_and_the_session_goes_on(open_session):
    session = open_session(bar_fetches=1, alpaca={"alpaca_timeout_s": 0.5})
    session.start()
    session.faults.answer("GET /v2/stocks/bars", 500, times=1_000)
    session.publish(FIRST, 0)
    session.wait_for_bars(1)
    session.close_of(FIRST, plus=5)

    gap = session.next()
    bars = session.next()

    assert isinstance(gap, Gap)
    assert gap.symbols == ("S1",)
    assert gap.why == "Alpaca's history answers 500."
    assert list(bars.present) == [True, False]


def test_after_429_the_history_is_asked_again(session):
    fault = session.faults.answer("GET /v2/stocks/bars", 429, times=2)
    session.record(FIRST)
    session.close_of(FIRST, plus=5)

    assert_same_bars(session.next(), session.bars[FIRST])
    assert fault.met == 2


@pytest.mark.parametrize("fault", ["silence", "cut"])
def test_a_history_that_breaks_off_is_asked_again(open_session, fault):
    session = open_session(alpaca={"alpaca_timeout_s": 0.5})
    session.start()
    getattr(session.faults, fault)("GET /v2/stocks/bars")
    session.record(FIRST)
    session.close_of(FIRST, plus=5)
    assert fault == "cut" or session.feed.next(0.0) is None  # the first look-up took all its time
    session.close_of(FIRST, plus=6)

    assert_same_bars(session.next(), session.bars[FIRST])


def test_a_dropped_stream_is_opened_again(session):
    session.server.drop()
    wait_until(lambda: session.server.connections >= 2 and session.server.listening == 1)
    session.publish(FIRST)
    session.close_of(FIRST)

    assert_same_bars(session.next(), session.bars[FIRST])


def test_what_was_sent_while_the_stream_was_down_is_looked_up(session):
    session.server.drop()
    session.record(FIRST, FIRST + 1)
    session.close_of(FIRST + 1, plus=5)

    assert_same_bars(session.next(), session.bars[FIRST])
    assert_same_bars(session.next(), session.bars[FIRST + 1])


def test_a_stream_that_falls_silent_is_opened_again(open_session):
    session = open_session(silent_s=0.3)
    session.start()
    session.server.silent = True
    wait_until(lambda: session.server.connections >= 2)
    session.server.silent = False
    wait_until(lambda: session.server.listening == 1)
    session.publish(FIRST)
    session.close_of(FIRST)

    assert_same_bars(session.next(), session.bars[FIRST])


def test_a_stream_that_flaps_loses_no_bar(session):
    session.server.closes_after = 1
    given = []
    for row in range(FIRST, 8):
        session.record(row)
        session.publish(row)
        session.close_of(row, plus=5)
        given.append(session.next())

    for got, expected in zip(given, session.bars[FIRST:], strict=False):
        assert_same_bars(got, expected)


def test_another_session_on_the_same_keys_does_not_end_this_one(open_session):
    session = open_session()
    session.server.limit = 0
    session.feed.start()
    wait_until(lambda: session.server.connections >= 1)
    session.record(FIRST)
    session.close_of(FIRST, plus=5)

    assert_same_bars(session.next(), session.bars[FIRST])


def test_silence_of_the_market_is_told(open_session):
    session = open_session(silent_bars=2)
    session.start()
    session.close_of(FIRST, plus=5)
    assert session.feed.next(0.0) is None
    session.close_of(FIRST + 1, plus=5)

    gap = session.next()

    assert isinstance(gap, Gap)
    assert gap.why == "Alpaca has sent no bar since 2024-03-01 14:34:00, and its history has none."


def test_the_history_comes_in_pages(open_session):
    session = open_session()
    session.server.page = 3
    session.record(*range(10))

    history = session.feed.history()

    assert len(session.server.asked) == 3
    assert [bars.time for bars in history] == [bars.time for bars in session.bars[:FIRST]]
    for got, expected in zip(history, session.bars, strict=False):
        assert_same_bars(got, expected)


def assert_same_high(longer: BarSet, bars: list[BarSet]) -> None:
    np.testing.assert_array_equal(longer.high, np.max([each.high for each in bars], axis=0))


def test_longer_bars_are_made_of_minutes(open_session):
    session = open_session(timeframe="5m", market=minutes_market(12, 2))
    session.start()
    session.record(*range(12))
    session.close_of(9, plus=5)

    first, longer = session.next(), session.next()

    assert first.time == BEGINS
    assert_same_high(first, session.bars[:5])
    assert_same_high(longer, session.bars[5:10])

    assert longer.time == BEGINS + 5 * MINUTE
    assert longer.closed_at == BEGINS + 10 * MINUTE
    np.testing.assert_array_equal(longer.close, session.bars[9].close)


def test_crypto_is_open_on_weekends(open_session, server):
    market = minutes_market(8, 2)
    session = open_session(
        market,
        symbols=("BTC/USD", "ETH/USD"),
        alpaca={"alpaca_data_stream_url": server.data_stream_url.replace("/v2/iex", "/v1beta3/crypto/us")},
    )
    session.start()
    session.publish(FIRST, 0)
    session.record(FIRST)
    session.close_of(FIRST, plus=5)

    assert_same_bars(session.next(), session.bars[FIRST])
    assert session.feed.calendar.name == "24/7"
    assert "feed" not in session.server.asked[-1]


def test_bars_outside_the_session_are_left_out(session):
    night = {"t": "2024-03-01T13:00:00Z", "o": 1.0, "h": 1.0, "l": 1.0, "c": 1.0, "v": 1.0}
    for symbol in session.symbols:
        session.server.record(symbol, night)
    session.record(0)

    history = session.feed.history()

    assert [bars.time for bars in history] == [BEGINS]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"message": "subscription does not permit querying recent SIP data"}, "feed iex needs another subscription"),
        ({"message": "forbidden."}, r"does not accept these keys \(status 403: forbidden.\)"),
    ],
)
def test_a_refusal_at_the_start_says_what_to_do(open_session, body, sentence):
    session = open_session()
    session.faults.answer("GET /v2/stocks/bars", 403, body)

    with pytest.raises(UserError, match=sentence):
        session.feed.history()


@pytest.mark.parametrize(
    "body",
    [
        {"bars": [1, 2]},
        {"bars": {"S0": [{"t": "2024-03-01T14:30:00Z"}]}},
        {"bars": {"S0": [{"t": "soon", "o": 1, "h": 1, "l": 1, "c": 1, "v": 1}]}},
        {"bars": {"S0": [None]}},
    ],
)
def test_an_answer_that_is_none_is_told(open_session, body):
    session = open_session()
    session.faults.answer("GET /v2/stocks/bars", 200, body)

    with pytest.raises(BarsUnavailable, match="Alpaca's history sent an unreadable answer"):
        session.feed.history()


def test_of_a_history_that_cannot_be_reached_the_caller_is_told(open_session):
    session = open_session(alpaca={"alpaca_data_url": "http://127.0.0.1:9", "alpaca_timeout_s": 0.3})

    with pytest.raises(BarsUnavailable, match="Alpaca's history cannot be reached: ConnectionError"):
        session.feed.history()


def test_a_timeframe_must_be_named(server):
    from ml_pipeline.live.alpaca.feed import open_alpaca_feed

    with pytest.raises(UserError, match="set --timeframe to the length of the bars in training"):
        open_alpaca_feed(("AAPL",), BarForm(), AlpacaConfig(), FeedConfig())
    with pytest.raises(UserError, match="--timeframe 30s is shorter"):
        open_alpaca_feed(("AAPL",), BarForm(timeframe="30s"), AlpacaConfig(), FeedConfig())


def test_stocks_and_crypto_are_not_mixed(server):
    from ml_pipeline.live.alpaca.feed import open_alpaca_feed

    with pytest.raises(UserError, match="BTC/USD is crypto and AAPL a stock"):
        open_alpaca_feed(("AAPL", "BTC/USD"), BarForm(timeframe="1m"), AlpacaConfig(), FeedConfig())


def test_keys_are_in_no_message(session):
    from tests.live.alpaca_server.server import KEY, SECRET

    said = [repr(session.feed), repr(vars(session.feed)), *session.feed.notices]

    assert not any(KEY in text or SECRET in text for text in said)
