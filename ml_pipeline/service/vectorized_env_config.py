"""`VectorizedEnvConfig`: how many environments, and how they are stepped, by the names of Stable-Baselines3."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ml_pipeline.config.errors import UserError, did_you_mean, nearest
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.runs.vectorized_section import MOST_ENVS, EnvType, too_many, vec_env_settings


class VectorizedEnvConfig(BaseModel):
    """How environments are stepped. Raises UserError, one sentence, where a value cannot be used.

    >>> VectorizedEnvConfig(env_type="DummyVecEnv").settings()
    {'vec_env': 'DummyVecEnv'}
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    env_type: EnvType = "auto"
    """DummyVecEnv steps in this process, SubprocVecEnv in a worker per core, batched all in one call; auto measures."""

    num_envs: int = Field(4, ge=1)
    """Number of environments, unless a run asks for another; None: chosen by measuring a step."""

    max_concurrent_envs: int = Field(MOST_ENVS, ge=1)
    """The most environments at once; more are refused."""

    enable_monitoring: bool = True
    """Whether the figures of episodes go into a file in the format of Stable-Baselines3's Monitor."""

    def __init__(self, **values: Any) -> None:
        if values.get("num_envs", 0) is None:
            del values["num_envs"]
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _as_user_error(error, type(self).model_fields) from None
        if "num_envs" in self.model_fields_set:
            self.require_allowed(self.num_envs, "num_envs")
        elif self.num_envs > self.max_concurrent_envs:  # the usual number, under a lower limit
            object.__setattr__(self, "num_envs", self.max_concurrent_envs)

    @classmethod
    def of(cls, values: "VectorizedEnvConfig | Mapping[str, Any]") -> "VectorizedEnvConfig":
        """The settings of a mapping. Raises UserError where it cannot be used."""
        if isinstance(values, VectorizedEnvConfig):
            return values
        if not isinstance(values, Mapping):
            raise UserError(f"vectorized must be a section of settings, but got {values!r}.")
        return cls(**{str(name): value for name, value in values.items()})

    def require_allowed(self, n_envs: int, name: str = "n_envs") -> None:
        """Raise UserError where these are more environments than `max_concurrent_envs`."""
        if n_envs > self.max_concurrent_envs:
            raise too_many(name, n_envs, self.max_concurrent_envs)

    def settings(self) -> dict[str, Any]:
        """The settings of a run with such environments, by name; none for "auto"."""
        return vec_env_settings(self.env_type)

    def given(self) -> dict[str, Any]:
        """What was set, as the section `vectorized` of a file has it."""
        return self.model_dump(exclude_unset=True)


def _as_user_error(error: ValidationError, known: Mapping[str, Any]) -> UserError:
    """The first of what is wrong, as a sentence."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return UserError(f'vectorized: unknown setting "{name}". {nearest(name, known)}')
    received = in_one_line(repr(first["input"]))
    if first["type"] == "literal_error":
        choices = [str(each) for each in EnvType.__args__]  # type: ignore[attr-defined]
        hint = did_you_mean(str(first["input"]), choices)
        return UserError(f"{name} must be one of {', '.join(choices)}, but got {received}.{hint}")
    expected = "true or false" if name == "enable_monitoring" else "a whole number of at least 1"
    return UserError(f"{name} must be {expected}, but got {received}.")
