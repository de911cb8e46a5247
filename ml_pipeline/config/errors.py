"""Errors that a user can cause: one clear sentence, and no traceback on the command line."""

import difflib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """Input that cannot be used, told in one sentence: what failed, what was expected, what came, what to do.

    Entries print the sentence and exit with code 2; Python callers catch it as a `ValueError`.
    """


@contextmanager
def user_errors_exit(prog: str) -> Iterator[None]:
    """Turn a UserError of the block into its sentence on stderr and exit code 2, which is what entries do."""
    try:
        yield
    except UserError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A closing question that names what the user probably meant, or nothing where nothing is near.

    >>> did_you_mean("--n-env", ["--n-envs", "--seed"])
    ' Did you mean "--n-envs"?'
    >>> did_you_mean("colour", ["n_envs", "seed"])
    ''
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f' Did you mean "{close[0]}"?' if close else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """What the user probably meant, or every name there is.

    >>> nearest("--n-env", ["--n-envs", "--seed"])
    'Did you mean "--n-envs"?'
    >>> nearest("colour", ["n_envs", "seed"])
    'Known are: n_envs, seed.'
    """
    names = sorted(known)
    return did_you_mean(name, names).lstrip() or f"Known are: {', '.join(names)}."
