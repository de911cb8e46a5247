"""Sentences about the environments of one rank, with the numbers that these have among those of all ranks."""

import re

from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError

# In sentences of a vectorized environment: "environment 2", "Environment 2 of 6", "environments 2 to 5".
_NAMED = re.compile(r"\b([Ee]nvironments?) (\d+)(?: to (\d+))?(?: of (\d+)\b)?")


def among_all(sentence: str, first: int, num_envs: int) -> str:
    """What a vectorized environment says that holds the environments from `first` on, of num_envs.

    >>> among_all("Worker 1 (environment 2 of 6, seed 9) raised KeyError in step 3", 6, 12)
    'Worker 1 (environment 8 of 12, seed 9) raised KeyError in step 3'
    >>> among_all("Worker 0 (environments 0 to 2) was killed by SIGKILL in step of environment 1.", 6, 12)
    'Worker 0 (environments 6 to 8) was killed by SIGKILL in step of environment 7.'
    """

    def numbered(named: re.Match[str]) -> str:
        noun, start, last, of = named.groups()
        to = "" if last is None else f" to {first + int(last)}"
        return f"{noun} {first + int(start)}{to}{'' if of is None else f' of {num_envs}'}"

    return _NAMED.sub(numbered, sentence)


def number_among_all(error: VectorEnvError, first: int, num_envs: int) -> None:
    """Let an error and its notes say which of all environments failed; what an environment itself printed stays."""
    sentence, newline, traceback = str(error).partition("\n")
    error.args = (f"{among_all(sentence, first, num_envs)}{newline}{traceback}", *error.args[1:])
    notes = getattr(error, "__notes__", [])
    notes[:] = [among_all(note, first, num_envs) for note in notes]
