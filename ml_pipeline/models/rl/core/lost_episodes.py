"""What the environments of a lost worker report: their episodes were truncated, where they were last seen."""

from typing import Any

from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.batch import Batch, BatchLayout, rows_between
from ml_pipeline.models.rl.core.env_block import Answer
from ml_pipeline.models.rl.core.rows import Rows, rows_of


class LostEpisodes:
    """Keeps the last observations of some environments, since a worker may die while it overwrites them.

    Rewards of a lost step are 0, and the info "worker_restarted" is True. `batch` is what the trainer reads,
    `environments` whose last observations are kept.
    """

    def __init__(self, batch: Batch, layout: BatchLayout, environments: range) -> None:
        self._environments = environments
        self._batch = batch
        self._layout = layout
        self._same_step = layout.autoreset_mode == AutoresetMode.SAME_STEP
        self._last: Any = None

    def remember(self, answer: Answer) -> None:
        """To be called with the answer of every command that brought observations."""
        observations = self._batch.observations
        mine = self._environments
        self._last = answer.values if observations is None else rows_between(observations, mine.start, mine.stop)

    def truncate(self, block: range, reset: Answer) -> Answer:
        """The answer to a step in which `block` was lost. reset: of the environments that took its place."""
        first = self._environments.start
        batch, answer = self._batch, Answer(finished=True, values=reset.values)
        batch.rewards[block.start : block.stop] = 0.0
        batch.terminated[block.start : block.stop] = False
        batch.truncated[block.start : block.stop] = True
        reset_infos = dict(reset.infos) if self._same_step else {}
        answer.infos = [(index, {**reset_infos.get(index, {}), "worker_restarted": True}) for index in block]
        if batch.observations is None:
            if self._same_step:
                answer.finals = [(index, self._last[index - first], {}) for index in block]
            else:
                answer.values = self._last[block.start - first : block.stop - first]
        else:
            target = self._rows(batch.final_obs if self._same_step else batch.observations)
            last = self._rows(self._last)
            for index in block:
                target.write(index, last.read(index - first))
        return answer

    def _rows(self, arrays: Any) -> Rows:
        return rows_of(self._layout.observation_space, arrays)
