"""Wrappers by their names, as the settings have them: module:Wrapper, or a wrapper of Gymnasium by its name alone."""

from typing import Any

import gymnasium

from ml_pipeline.config.errors import UserError, did_you_mean
from ml_pipeline.runtime.user_code import import_by_name


def wrapped(env: gymnasium.Env, name: str) -> gymnasium.Env:
    """`env` in the wrapper of this name, which is called with the environment alone.

    Raises UserError if there is no such wrapper, it needs more arguments, or it does not return an environment.
    """
    wrapper = _load(name)
    try:
        result = wrapper(env)
    except TypeError as error:
        if "required" in str(error) and "argument" in str(error):
            raise UserError(
                f"The wrapper {name} needs more than the environment ({error}); name a function of your own, "
                "my_project:wrap, that calls it with them."
            ) from error
        raise
    if not isinstance(result, gymnasium.Env):
        raise UserError(f"The wrapper {name} must return a gymnasium.Env, but returned a {type(result).__name__}.")
    return result


def _load(name: str) -> Any:
    if ":" in name:
        return import_by_name(name)
    try:
        return getattr(gymnasium.wrappers, name)
    except AttributeError as error:
        near = did_you_mean(name, gymnasium.wrappers.__all__)
        raise UserError(f"gymnasium.wrappers has no {name}.{near} Name one of your own as module:Wrapper.") from error
