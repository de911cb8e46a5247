"""Where a trainer sends its figures: the contract, and one sink that is several."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol


class EpisodeRecord(NamedTuple):
    """A finished episode, as its environment gave it: before any scaling or clipping of rewards."""

    episode_return: float
    length: int
    env_index: int
    global_step: int
    """Transitions of all environments together when it ended."""
    time_s: float
    """Since training began."""


class MetricsSink(Protocol):
    """Takes the figures of each iteration. Raises UserError where they cannot be kept."""

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        """Take one iteration: figures by name, NaN where there is none, and the episodes that ended in it."""

    def close(self) -> None:
        """Finish; may be called twice."""


class Sinks:
    """Several sinks as one, written to in order."""

    def __init__(self, *sinks: MetricsSink) -> None:
        self._sinks = list(sinks)

    def add(self, sink: MetricsSink) -> None:
        self._sinks.append(sink)

    def write(self, metrics: Mapping[str, float], episodes: Sequence[EpisodeRecord]) -> None:
        for sink in self._sinks:
            sink.write(metrics, episodes)

    def close(self) -> None:
        """Close every sink, even if one of them fails to."""
        with ExitStack() as stack:
            for sink in reversed(self._sinks):
                stack.callback(sink.close)
