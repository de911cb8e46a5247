"""Errors that are told to a user: one clear sentence, and no traceback on the command line."""

import difflib
from collections.abc import Iterable
from pathlib import Path

DISTRIBUTION = "parallel-ppo"
"""What pip installs this package by; `ml-pipeline` on PyPI is another project."""
_ROOM_FOR_NOTE = 60  # characters of an excerpt, where it leaves something out


class UserError(ValueError):
    """Input that cannot be used, told in one sentence: what failed, what was expected, what came, what to do.

    Entries print the sentence and exit with code 2; Python callers catch it as a `ValueError`.
    """


class CheckFailed(RuntimeError):
    """What was made of good input is not as it should be, told in one sentence; entries then exit with code 1."""


def excerpt(text: str, longest: int = 10_000) -> str:
    """The text, or the beginning and the end of one with more than `longest` characters.

    >>> excerpt("a" * 1000, longest=80)
    'aaaaaaaaaa\\n[... 980 characters left out ...]\\naaaaaaaaaa'
    """
    if len(text) <= longest:
        return text
    each = (longest - _ROOM_FOR_NOTE) // 2
    return f"{text[:each]}\n[... {len(text) - 2 * each:,} characters left out ...]\n{text[-each:]}"


def install_extra(name: str) -> str:
    """The command that installs an extra of this package: into the clone that it runs from, or by its distribution.

    name: as in pyproject.toml, such as "tune".
    """
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        return f'pip install "{DISTRIBUTION}[{name}]"'
    return f'pip install -e "{"." if root == Path.cwd() else root}[{name}]"'


def did_you_mean(name: str, known: Iterable[str], *, least: float = 0.6) -> str:
    """A closing question that names what the user probably meant, or nothing where nothing is near.

    least: how much of the two must be alike, 0 to 1.

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
    """The nearest where capitals do not count."""
    lowered = {each.lower(): each for each in names}
    return [lowered[each] for each in difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=least)]


def nearest(name: str, known: Iterable[str]) -> str:
    """What the user probably meant, or every name there is.

    >>> nearest("--n-env", ["--n-envs", "--seed"])
    'Did you mean "--n-envs"?'
    >>> nearest("colour", ["n_envs", "seed"])
    'Known are: n_envs, seed.'
    """
    names = sorted(known)
    return did_you_mean(name, names).lstrip() or f"Known are: {', '.join(names)}."
