"""Errors that a user can cause: one clear sentence, and no traceback on the command line."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Input that cannot be used, told in one sentence: what failed, what was expected, what came, what to do.

    Entries print the sentence and exit with code 2; Python callers catch it as a `ValueError`.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """A closing question that names what the user probably meant, or every name there is.

    >>> nearest("--n-env", ["--n-envs", "--seed"])
    'Did you mean "--n-envs"?'
    >>> nearest("colour", ["n_envs", "seed"])
    'Known are: n_envs, seed.'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f'Did you mean "{close[0]}"?' if close else f"Known are: {', '.join(names)}."
