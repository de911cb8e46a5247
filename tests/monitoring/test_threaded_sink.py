"""A sink in a thread gets everything in order, and whatever it does, the thread that trains goes on."""

import threading
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.listener import RunEnd
from ml_pipeline.monitoring.threaded_sink import ThreadedSink

END = RunEnd("finished", None, 3, 1.0, Path("run"))


class Kept:
    """Keeps what it is given; `raises` at the iteration of this number, and waits for `released` in each."""

    def __init__(self, *, raises=None, close_raises=False, released=None):
        self.got, self.threads = [], set()
        self._raises, self._close_raises, self._released = raises, close_raises, released
        self.reached = threading.Event()

    def write(self, metrics, episodes):
        self.threads.add(threading.current_thread())
        self.reached.set()
        if self._released is not None:
            self._released.wait()
        if self._raises == metrics["i"]:
            raise KeyError("no such curve")
        self.got.append((metrics["i"], list(episodes)))

    def ended(self, end):
        self.got.append(end)

    def close(self):
        self.got.append("closed")
        if self._close_raises:
            raise OSError("disk")


class WithoutEnd:
    def __init__(self):
        self.got = []

    def write(self, metrics, episodes):
        self.got.append(metrics["i"])

    def close(self):
        self.got.append("closed")


def threaded(sink, said, **options):
    return ThreadedSink("mine", lambda: sink, say=said.append, **options)


def test_everything_is_written_in_order_by_another_thread_before_close_returns():
    kept, said = Kept(), []
    sink = threaded(kept, said)
    for i in range(100):
        sink.write({"i": i}, [i])
    sink.ended(END)
    sink.close()
    sink.close()
    assert kept.got == [*((i, [i]) for i in range(100)), END, "closed"]
    assert threading.current_thread() not in kept.threads
    assert said == []
    sink.write({"i": 100}, [])
    assert len(kept.got) == 102


def test_a_sink_needs_no_method_ended():
    plain, said = WithoutEnd(), []
    sink = threaded(plain, said)
    sink.write({"i": 1}, [])
    sink.ended(END)
    sink.close()
    assert (plain.got, said) == ([1, "closed"], [])


def test_a_sink_that_raises_is_told_once_with_its_line_and_closed():
    kept, said = Kept(raises=1), []
    sink = threaded(kept, said)
    for i in range(3):
        sink.write({"i": i}, [])
    sink._thread.join(60)  # which a failure ends
    for i in range(3, 3000):
        sink.write({"i": i}, [])
    sink.ended(END)
    sink.close()
    assert kept.got == [(0, []), "closed"]
    failures = [sentence for sentence in said if "no more" in sentence]
    assert len(failures) == 1
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "raise KeyError" in text)
    assert failures[0].startswith("The sink mine is written to no more: line ")
    assert f"line {line} of " in failures[0]
    assert "raised KeyError: 'no such curve'. Training goes on." in failures[0]


def test_a_sink_that_hangs_misses_iterations_and_is_left_at_the_limit():
    released = threading.Event()
    kept, said = Kept(released=released), []
    sink = threaded(kept, said, most_waiting=5, close_timeout_s=0.05)
    try:
        sink.write({"i": 0}, [])
        assert kept.reached.wait(30)
        for i in range(1, 20):
            sink.write({"i": i}, [])
        sink.ended(END)
        sink.close()
        assert [sentence.partition(":")[0] for sentence in said] == [
            "The sink mine is too slow",
            "The sink mine did not finish within 0.05 s of the run's end; its last figures may be missing.",
        ]
        assert "5 iterations wait for it" in said[0]
    finally:
        released.set()
        sink._waiting.put(None)
        sink._thread.join()
    assert [i for i, _ in kept.got[:6]] == [0, 1, 2, 3, 4, 5]


def test_a_sink_that_cannot_be_opened_or_closed_is_told():
    said = []

    def fails():
        raise UserError("There is no such project.")

    sink = ThreadedSink("mine", fails, say=said.append)
    sink.write({"i": 0}, [])
    sink.close()
    assert said == ["The sink mine is written to no more: There is no such project. Training goes on."]
    said.clear()
    sink = threaded(Kept(close_raises=True), said)
    sink.write({"i": 0}, [])
    sink.close()
    assert len(said) == 1
    assert "raised OSError: disk." in said[0]


@pytest.mark.parametrize(("opens_unwritten", "got"), [(False, []), (True, ["closed"])])
def test_a_sink_that_gets_nothing_is_opened_only_if_asked_for(opens_unwritten, got):
    kept, said = Kept(), []
    sink = threaded(kept, said, opens_unwritten=opens_unwritten)
    sink.ended(END)
    sink.close()
    assert (kept.got, said) == (got, [])


def test_a_sink_that_calls_exit_ends_neither_silently_nor_the_training():
    class Exits(WithoutEnd):
        def write(self, metrics, episodes):
            raise SystemExit("no licence")

    said = []
    sink = threaded(Exits(), said)
    sink.write({"i": 1}, [])
    sink.close()
    (sentence,) = said
    assert "SystemExit: no licence. Training goes on." in sentence
