"""Functions of `SB3ParallelEnv` that run in workers, in this module so that workers do not import Stable-Baselines3."""

from typing import Any

import gymnasium


def get_attribute(env: gymnasium.Env, name: str) -> Any:
    """The attribute of the first wrapper that has it, or else of the environment."""
    return env.get_wrapper_attr(name)


def set_attribute(env: gymnasium.Env, name: str, value: Any) -> None:
    """Sets the attribute on the first wrapper that has it, or else on the environment."""
    env.set_wrapper_attr(name, value)


def call_method(env: gymnasium.Env, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the method of the first wrapper that has it, or else of the environment."""
    return env.get_wrapper_attr(name)(*args, **kwargs)


def is_wrapped(env: gymnasium.Env, wrapper: type[gymnasium.Wrapper] | str) -> bool:
    """Whether the environment has a wrapper of this class, as returned by `class_to_send`."""
    while isinstance(env, gymnasium.Wrapper):
        if wrapper in map(_full_name, type(env).__mro__) if isinstance(wrapper, str) else isinstance(env, wrapper):
            return True
        env = env.env
    return False


def class_to_send(wrapper_class: type[gymnasium.Wrapper]) -> type[gymnasium.Wrapper] | str:
    """The full name of a class, so that a worker need not import its module and all imports of that module.

    A class defined inside a function or class is returned itself, since its name does not identify it.
    """
    at_top = wrapper_class.__qualname__ == wrapper_class.__name__
    return _full_name(wrapper_class) if at_top else wrapper_class


def _full_name(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"
