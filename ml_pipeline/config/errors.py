"""Errors for users: one clear sentence, printed without a traceback on the command line."""

import difflib
from collections.abc import Iterable
from pathlib import Path

DISTRIBUTION = "parallel-ppo"
"""The name of this package for pip; `ml-pipeline` on PyPI is another project."""
_ROOM_FOR_NOTE = 60  # characters in an excerpt for the note about omitted text


class UserError(ValueError):
    """Invalid input. The message is one sentence: what failed, what was expected, what was received, what to do.

    Commands print the sentence and exit with code 2; Python code can catch it as a `ValueError`.
    """


class CheckFailed(RuntimeError):
    """A result from valid input failed a check. The message is one sentence; commands exit with code 1."""


def excerpt(text: str, longest: int = 10_000) -> str:
    """The text, shortened to its beginning and end if it has more than `longest` characters.

    >>> excerpt("a" * 1000, longest=80)
    'aaaaaaaaaa\\n[... 980 characters left out ...]\\naaaaaaaaaa'
    """
    if len(text) <= longest:
        return text
    each = (longest - _ROOM_FOR_NOTE) // 2
    return f"{text[:each]}\n[... {len(text) - 2 * each:,} characters left out ...]\n{text[-each:]}"


def install_extra(name: str) -> str:
    """The command that installs an extra of this package, from the clone if it runs from one, else from PyPI.

    name: of an extra in pyproject.toml, such as "tune".
    """
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        return f'pip install "{DISTRIBUTION}[{name}]"'
    return f'pip install -e "{"." if root == Path.cwd() else root}[{name}]"'


def did_you_mean(name: str, known: Iterable[str], *, least: float = 0.6) -> str:
    """The question "Did you mean ...?" with the closest known name; empty if none is close.

    least: the similarity needed, 0 to 1.

    >>> did_you_mean("--n-env", ["--n-envs", "--seed"])
    ' Did you mean "--n-envs"?'
    >>> did_you_mean("dqm", ["PPO", "DQN"])
    ' Did you mean "DQN"?'
    >>> did_you_mean("colour", ["n_envs", "seed"])
    ''
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=least) or _in_any_case(name, names, least)
    return f' Did you mean "{close[0]}"?' if close else ""


def _in_any_case(name: str, names: list[str], least: float) -> list[str]:
    """The closest name without regard to case, in a list; empty if none is close."""
    lowered = {each.lower(): each for each in names}
    return [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=least)]


def nearest(name: str, known: Iterable[str]) -> str:
    """The question "Did you mean ...?" with the closest known name; if none is close, all known names.

    >>> nearest("--n-env", ["--n-envs", "--seed"])
    'Did you mean "--n-envs"?'
    >>> nearest("colour", ["n_envs", "seed"])
    'Known names: n_envs, seed.'
    """
    names = sorted(known)
    return did_you_mean(name, names).lstrip() or f"Known names: {', '.join(names)}."
