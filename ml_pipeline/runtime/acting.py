"""What acts in an environment: any function of an observation, which may also remember within an episode."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class ActsInEpisodes(Protocol):
    """A function of observations whose actions depend on earlier ones of the same episode."""

    def __call__(self, observation: Any) -> Any:
        """The action for one observation."""

    def begin_episode(self) -> None:
        """Forget all observations so far."""


def begin_episode(act: Callable[[Any], Any]) -> None:
    """Call this before each episode: an `act` that remembers forgets the episode before; any other is left alone."""
    if isinstance(act, ActsInEpisodes):
        act.begin_episode()
