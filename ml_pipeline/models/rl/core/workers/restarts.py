"""What becomes of the episodes of a lost worker: truncated where they were last seen, and followed by new ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.stepping.batch import Batch, BatchLayout, rows_between
from ml_pipeline.models.rl.core.stepping.protocol import Reply, ResetOrder
from ml_pipeline.models.rl.core.stepping.rows import Rows, rows_of


class LostEpisodes:
    """Keeps the last seeds and observations of some environments, since a worker may die while it overwrites them.

    Rewards of a lost step are 0, and the info "worker_restarted" is True. `batch` is what the trainer reads,
    `environments` whose last seeds and observations are kept.
    """

    def __init__(self, batch: Batch, layout: BatchLayout, environments: range) -> None:
        self._environments = environments
        self._batch = batch
        self._layout = layout
        self._same_step = layout.autoreset_mode == AutoresetMode.SAME_STEP
        self._last: Any = None
        self._seeds: list[int | None] = [None] * layout.num_envs

    def remember(self, reply: Reply) -> None:
        """To be called with the reply of every command that brought observations."""
        observations = self._batch.observations
        mine = self._environments
        self._last = reply.values if observations is None else rows_between(observations, mine.start, mine.stop)

    def remember_seeds(self, orders: Sequence[ResetOrder]) -> None:
        """To be called with the orders of every reset, one an environment of the batch."""
        self._seeds = [old if now.seed is None else now.seed for now, old in zip(orders, self._seeds, strict=True)]

    def new_episodes(self, block: range, n_restarts: int) -> list[ResetOrder]:
        """How the environments that take the place of `block` begin; each restart has seeds of its own."""
        seeds = [_successor_seed(self._seeds[index], n_restarts) for index in block]
        return [ResetOrder(seed, wanted=True, expired=not self._same_step) for seed in seeds]

    def truncate(self, block: range, reset: Reply) -> Reply:
        """The reply to a step in which `block` was lost. reset: of the environments that took its place."""
        first = self._environments.start
        batch, reply = self._batch, Reply(finished=True, values=reset.values)
        batch.rewards[block.start : block.stop] = 0.0
        batch.terminated[block.start : block.stop] = False
        batch.truncated[block.start : block.stop] = True
        reset_infos = dict(reset.infos) if self._same_step else {}
        reply.infos = [(index, {**reset_infos.get(index, {}), "worker_restarted": True}) for index in block]
        if batch.observations is None:
            if self._same_step:
                reply.finals = [(index, self._last[index - first], {}) for index in block]
            else:
                reply.values = self._last[block.start - first : block.stop - first]
        else:
            target = self._rows(batch.final_obs if self._same_step else batch.observations)
            last = self._rows(self._last)
            for index in block:
                target.write(index, last.read(index - first))
        return reply

    def _rows(self, arrays: Any) -> Rows:
        return rows_of(self._layout.observation_space, arrays)


def _successor_seed(seed: int | None, n_restarts: int) -> int | None:
    return None if seed is None else int(np.random.SeedSequence([seed, n_restarts]).generate_state(1)[0])
