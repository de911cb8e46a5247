"""What `SB3ParallelEnv` asks of single environments, apart from it: workers would import Stable-Baselines3 with it."""

from typing import Any

import gymnasium


def get_attribute(env: gymnasium.Env, name: str) -> Any:
    """That of the first wrapper that has it, or else of the environment."""
    return env.get_wrapper_attr(name)


def set_attribute(env: gymnasium.Env, name: str, value: Any) -> None:
    """Sets it on the first wrapper that has it, or else on the environment."""
    env.set_wrapper_attr(name, value)


def call_method(env: gymnasium.Env, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the method of the first wrapper that has it, or else of the environment."""
    return env.get_wrapper_attr(name)(*args, **kwargs)


def is_wrapped(env: gymnasium.Env, wrapper: type[gymnasium.Wrapper] | str) -> bool:
    """Whether it has a wrapper of this class, which `class_to_send` gave."""
    while isinstance(env, gymnasium.Wrapper):
        if wrapper in map(_full_name, type(env).__mro__) if isinstance(wrapper, str) else isinstance(env, wrapper):
            return True
        env = env.env
    return False


def class_to_send(wrapper_class: type[gymnasium.Wrapper]) -> type[gymnasium.Wrapper] | str:
    """The name of a class, since a worker would import the class itself, and all that its module imports.

    The class itself where it stands inside of a function or class: a copy that is sent by value loses that of its name.
    """
    at_top = wrapper_class.__qualname__ == wrapper_class.__name__
    return _full_name(wrapper_class) if at_top else wrapper_class


def _full_name(of: type) -> str:
    return f"{of.__module__}.{of.__qualname__}"
