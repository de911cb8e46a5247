"""Several sinks are written to and closed as one."""

import pytest

from ml_pipeline.monitoring.sink import EpisodeRecord, Sinks


class Recorder:
    def __init__(self, name, calls, *, fails=False):
        self.name, self.calls, self.fails = name, calls, fails

    def write(self, metrics, episodes):
        self.calls.append((self.name, dict(metrics), list(episodes)))

    def close(self):
        self.calls.append((self.name, "closed"))
        if self.fails:
            raise OSError(self.name)


def test_every_sink_gets_every_iteration_in_order():
    calls = []
    episode = EpisodeRecord(1.0, 2, 3, 4, 5.0)
    Sinks(Recorder("a", calls), Recorder("b", calls)).write({"x": 1.0}, [episode])
    assert calls == [("a", {"x": 1.0}, [episode]), ("b", {"x": 1.0}, [episode])]


def test_every_sink_is_closed_even_if_one_fails_to():
    calls = []
    with pytest.raises(OSError, match="a"):
        Sinks(Recorder("a", calls, fails=True), Recorder("b", calls)).close()
    assert calls == [("a", "closed"), ("b", "closed")]
