"""Looks into the loop of Stable-Baselines3's `learn()`."""

from collections.abc import Callable

from stable_baselines3.common.callbacks import BaseCallback


class LoopCallback(BaseCallback):
    """Calls functions where a rollout begins, after each step of the environments, and where a rollout is over.

    What they raise leaves `learn()`. At the beginning of a rollout everything is whole: what was collected is stored,
    and what was stored has been learned from. At a step, the transitions of this step are stored nowhere yet.
    """

    def __init__(
        self, *, rollout_starts: Callable[[], None], stepped: Callable[[], None], rollout_ends: Callable[[], None]
    ) -> None:
        super().__init__()
        self._rollout_starts = rollout_starts
        self._stepped = stepped
        self._rollout_ends = rollout_ends

    def _on_rollout_start(self) -> None:
        self._rollout_starts()

    def _on_step(self) -> bool:
        self._stepped()
        return True

    def _on_rollout_end(self) -> None:
        self._rollout_ends()
