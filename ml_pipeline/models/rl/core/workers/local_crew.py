"""Steps environments in the trainer's own process, behind the interface of a pool of workers."""

import copy
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.stepping.batch import Batch, BatchLayout
from ml_pipeline.models.rl.core.stepping.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.stepping.protocol import STEP, Command, Reply

_NEVER_CHANGES = (int, float, bool, str, bytes, type(None), np.generic)


class LocalCrew:
    """One block of environments of a batch. A command is carried out when its reply is collected."""

    def __init__(self, block: EnvBlock, layout: BatchLayout, batch: Batch, number: int = 0) -> None:
        """block: the environments, number `number` of the blocks that `layout` and `batch` have places for."""
        self._block = block
        self.layout, self.batch = layout, batch
        block.attach(batch, layout.observation_space, layout.action_space, number)
        self.space_mismatches = block.space_mismatches(layout.observation_space, layout.action_space)
        self.closed = False

    @classmethod
    def of_all(cls, env_fns: Sequence[EnvFactory], autoreset_mode: AutoresetMode) -> Self:
        """The crew that steps every environment of a batch."""
        block = EnvBlock(env_fns, 0, len(env_fns), autoreset_mode)
        # Copied: whoever samples from the batch's spaces must not advance the generators of an environment's own.
        spaces = copy.deepcopy((block.envs[0].observation_space, block.envs[0].action_space))
        layout = BatchLayout(len(env_fns), *spaces, autoreset_mode)
        return cls(block, layout, layout.place())

    @property
    def envs(self) -> list[Any]:
        """The environments themselves."""
        return self._block.envs

    def drain_replies(self) -> None:
        """Nothing is ever under way."""

    def post(self, command: Command, common: Any = None, per_env: Sequence[Any] | None = None) -> None:
        """Keeps the command for `collect`."""
        self._posted = (command, common, None if per_env is None else per_env[self._block.span])

    def is_ready(self) -> bool:
        """Whether `collect` would not have to wait for others: always."""
        return True

    def collect(self, timeout_s: float | None = None) -> Reply:
        """Carries the command out; nothing could interrupt it after `timeout_s`, which is ignored.

        What it returns is the caller's to keep, as if it had crossed a pipe: environments may go on changing theirs.
        """
        command = self._posted[0]
        reply = self._block.execute(*self._posted)
        if reply.failure is not None:
            raise reply.failure.error()
        if reply.infos:
            reply.infos = [(index, _own(info)) for index, info in reply.infos]
        if reply.values and command in (STEP, Command.RESET):
            reply.values = copy.deepcopy(reply.values)
        return reply

    def close(self, *, timeout_s: float | None = None, terminate: bool = False) -> None:
        """Closes the environments, in either manner."""
        self.closed = True
        self._block.close()


def _own(info: dict[str, Any]) -> dict[str, Any]:
    """The info, copied if it holds anything that could change later."""
    return info if all(isinstance(value, _NEVER_CHANGES) for value in info.values()) else copy.deepcopy(info)
