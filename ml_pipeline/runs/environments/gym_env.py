"""A Gymnasium environment as settings name it: its id, keywords, Atari preprocessing, wrappers and stacked frames."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import RunConfig
from ml_pipeline.runs.environments.atari import not_atari, preprocessed
from ml_pipeline.runs.environments.frame_stack import stacked
from ml_pipeline.runs.environments.wrappers import wrapped

_ATARI_FRAMES = 4


@dataclass(frozen=True, kw_only=True)
class GymEnv:
    """What `make` makes, in this order: the environment of the id with its keywords, the preprocessing of Atari games,
    the wrappers, the first one innermost, and stacked frames.

    frame_stack: how many observations in one; None is 1, or 4 with `atari`.
    """

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    atari: bool = False
    wrappers: tuple[str, ...] = ()
    frame_stack: int | None = None

    @classmethod
    def of(cls, run: RunConfig) -> Self:
        """The environment that a run's settings name."""
        assert run.env_id is not None
        return cls(
            env_id=run.env_id,
            env_kwargs=run.env_kwargs,
            atari=run.atari,
            wrappers=run.wrappers,
            frame_stack=run.frame_stack,
        )

    @property
    def is_gymnasiums_own(self) -> bool:
        """Whether nothing of it is code of somebody else's."""
        spec = gymnasium.registry.get(self.env_id)
        return spec is not None and str(spec.entry_point).startswith("gymnasium.envs.") and not self.wrappers

    def make(self, *, training: bool = False, render_mode: str | None = None) -> gymnasium.Env:
        """A new environment. training: whether an Atari game ends with each life, and its rewards are signs.

        Raises UserError if a wrapper cannot be used, the environment is no Atari game, or it cannot be rendered as
        "human" or "rgb_array", and whatever Gymnasium and the environment raise.
        """
        env = self._base(render_mode)
        if self.atari:
            env = preprocessed(env, self.env_id, training=training)
        for name in self.wrappers:
            env = wrapped(env, name)
        n_frames = self.frame_stack or (_ATARI_FRAMES if self.atari else 1)
        return stacked(env, n_frames) if n_frames > 1 else env

    def _base(self, render_mode: str | None) -> gymnasium.Env:
        kwargs = dict(self.env_kwargs)
        if self.atari:
            kwargs = {"frameskip": 1, **kwargs}  # the preprocessing skips frames itself
        if render_mode is None:
            return self._made(kwargs)
        with closing(self._made(kwargs)) as env:
            modes = env.metadata.get("render_modes") or []
        # Gymnasium itself shows the frames of an environment that has no window of its own.
        enough = {"human", "rgb_array"} if render_mode == "human" else {render_mode}
        try:
            if not enough & {*modes}:
                raise TypeError(f"its render modes are {', '.join(map(str, modes)) or 'none'}")
            return gymnasium.make(self.env_id, **{**kwargs, "render_mode": render_mode})
        except (TypeError, gymnasium.error.Error) as error:  # also of a constructor that does not take render_mode
            raise UserError(
                f'{self.env_id} cannot be rendered as "{render_mode}": {str(error).rstrip(".")}.'
            ) from error

    def _made(self, kwargs: dict[str, Any]) -> gymnasium.Env:
        try:
            return gymnasium.make(self.env_id, **kwargs)
        except TypeError as error:
            if "'frameskip'" in str(error) and "frameskip" not in self.env_kwargs:
                raise not_atari(self.env_id) from error
            raise
