"""Formats values, sentences and tables for users."""

import json
import re
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ml_pipeline.config.env_schedule import shown

_TRACEBACK = "Traceback (most recent call last):"


def counted(n: int, what: str) -> str:
    """A number with its noun, in the plural unless the number is one.

    >>> counted(1, "symbol"), counted(1200, "bar")
    ('1 symbol', '1,200 bars')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def written(value: object) -> str:
    """A setting as a user writes it after its flag.

    >>> written((64, 64)), written(True), written(None), written(3e-4), written({"size": 8})
    ('64 64', 'true', 'none', '0.0003', '{"size": 8}')
    """
    if isinstance(value, dict) and value and all(isinstance(key, int) for key in value):
        return shown(value)
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def shortly(value: object) -> str:
    """A setting for display: as `written`, but numbers with six significant digits.

    >>> shortly(0.00031415926535), shortly((0.30000000000000004, 64)), shortly(1e-5), shortly(8)
    ('0.000314159', '0.3 64', '1e-05', '8')
    """
    if isinstance(value, tuple):
        return " ".join(map(shortly, value)) or "none"
    return f"{value:.6g}" if isinstance(value, float) else written(value)


def lasting(seconds: float) -> str:
    """A duration in the largest suitable unit, with three significant digits.

    >>> lasting(60.5), lasting(3600), lasting(172_800), lasting(0.25), lasting(float("nan"))
    ('60.5 s', '1 hour', '2 days', '0.25 s', 'nan s')
    """
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length and (unit != "minute" or seconds >= 120):
            n = f"{seconds / length:,.3g}"
            return f"{n} {unit}{'' if n == '1' else 's'}"
    return f"{seconds:.3g} s"


def score_unit(env_id: object, score: object) -> str | None:
    """The name of a run's score; None if its setting `score` is unknown.

    >>> score_unit("CartPole-v1", "log_return"), score_unit(None, "sharpe")
    ('mean return', 'Sharpe ratio')
    """
    return (
        "mean return" if env_id is not None else {"log_return": "log return", "sharpe": "Sharpe ratio"}.get(str(score))
    )


def in_one_line(value: object, longest: int = 200) -> str:
    """Text from outside, safe to quote in a sentence: without line breaks and control characters, and shortened.

    >>> in_one_line("two\\nlines"), in_one_line(3), in_one_line("word " * 99, longest=12)
    ('two lines', '3', 'word ...')
    """
    text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(str(value).split()))
    return text if len(text) <= longest else f"{text[: longest - 4].rstrip()} ..."


def without_traceback(reason: str, longest: int) -> str:
    """The reason of a failure in one line; a traceback is reduced to its exception.

    >>> without_traceback("In step 3:\\nTraceback (most recent call last):\\n  File x\\nValueError: no\\n", longest=80)
    'In step 3: ValueError: no'
    """
    before, raised = _around_traceback(reason)
    return in_one_line(f"{before} {raised}" if raised else reason, longest)


def last_line_first(reason: str, longest: int = 400) -> str:
    """The reason of a failure in one line that may be cut off: the exception of a traceback first, then its context.

    >>> last_line_first("In step 3:\\nTraceback (most recent call last):\\n  File x\\nValueError: no\\n")
    'ValueError: no (In step 3)'
    >>> last_line_first("It was killed.")
    'It was killed.'
    """
    before, raised = _around_traceback(reason)
    said = in_one_line(before).rstrip(" :")
    return in_one_line(f"{raised} ({said})" if raised and said else raised or reason, longest)


def _around_traceback(reason: str) -> tuple[str, str]:
    """The text before the first traceback, and the exception of the last one; empty without a traceback."""
    before, mark, _ = reason.partition(_TRACEBACK)
    lines = reason.rpartition(_TRACEBACK)[2].splitlines() if mark else []
    return before, next((line for line in lines if line and not line.startswith(" ")), "")


def shown_path(path: Path) -> Path:
    """A path as a user would type it: relative to the working directory, if it is below it."""
    with suppress(FileNotFoundError):  # the working directory was deleted
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return path


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """An aligned table, the first row as header: the first column is left-aligned, the others right-aligned.

    >>> print(text_table([["run", "steps"], ["a", "1,024"], ["long name", "8"]]))
    run        steps
    ----------------
    a          1,024
    long name      8
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def ended(sentence: str) -> str:
    """The sentence, with a full stop unless it already ends in a punctuation mark.

    >>> ended("It rose"), ended("Was it known?")
    ('It rose.', 'Was it known?')
    """
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def wrapped(text: str, width: int, indent: str = "", first_indent: str = "") -> list[str]:
    """Wrap the text only between words, so that flags, names and numbers stay whole.

    >>> wrapped("of 172,800 seconds", width=8)
    ['of', '172,800', 'seconds']
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def definitions(rows: Sequence[tuple[str, str]], width: int, column: int) -> list[str]:
    """Terms with their sentences at `column`, or below each term if `width` is too small.

    >>> definitions([("--seed INT", "Seed of the run.")], width=40, column=15)
    ['  --seed INT   Seed of the run.']
    >>> definitions([("--seed INT", "Seed of the run.")], width=20, column=15)
    ['  --seed INT', '      Seed of the', '      run.']
    """
    lines: list[str] = []
    for term, sentence in rows:
        beside = width >= 2 * column + 8
        indent = " " * (column if beside else 6)
        said = wrapped(sentence, width, indent, indent)
        if beside and len(term) + 4 <= column and said:
            said[0] = f"  {term:{column - 2}}{said[0].lstrip()}"
        else:
            lines += wrapped(term if len(term) + 2 <= width else re.sub(r",(?=\S)", ", ", term), width, "      ", "  ")
        lines += said
    return lines
