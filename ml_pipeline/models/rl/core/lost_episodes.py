"""What the environments of a lost worker report: their episodes were truncated, where they were last seen."""

from typing import Any

from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.batch import Batch, BatchLayout, copy_of
from ml_pipeline.models.rl.core.env_block import Answer
from ml_pipeline.models.rl.core.rows import Rows, rows_of


class LostEpisodes:
    """Keeps the last observations of a batch, since a worker may die while it overwrites them, and ends episodes there.

    Rewards of a lost step are 0, and the info "worker_restarted" is True. `batch` is what the trainer reads.
    """

    def __init__(self, batch: Batch, layout: BatchLayout) -> None:
        self._batch = batch
        self._layout = layout
        self._same_step = layout.autoreset_mode == AutoresetMode.SAME_STEP
        self._last: Any = None

    def remember(self, answer: Answer) -> None:
        """To be called with the answer of every command that brought observations."""
        observations = self._batch.observations
        self._last = answer.values if observations is None else copy_of(observations)

    def truncate(self, block: range, reset: Answer) -> Answer:
        """The answer to a step in which `block` was lost. reset: of the environments that took its place."""
        batch, answer = self._batch, Answer(finished=True, values=reset.values)
        batch.rewards[block.start : block.stop] = 0.0
        batch.terminated[block.start : block.stop] = False
        batch.truncated[block.start : block.stop] = True
        reset_infos = dict(reset.infos) if self._same_step else {}
        answer.infos = [(index, {**reset_infos.get(index, {}), "worker_restarted": True}) for index in block]
        if batch.observations is None:
            if self._same_step:
                answer.finals = [(index, self._last[index], {}) for index in block]
            else:
                answer.values = self._last[block.start : block.stop]
        else:
            target = self._rows(batch.final_obs if self._same_step else batch.observations)
            last = self._rows(self._last)
            for index in block:
                target.write(index, last.read(index))
        return answer

    def _rows(self, arrays: Any) -> Rows:
        return rows_of(self._layout.observation_space, arrays)
