"""Shows docstrings of this project as Markdown: parameters as a list, doctests as code.

A docstring here is prose in which a parameter opens its sentence: `envs: functions that make an environment each`. Read
as Markdown, such lines would run into one another, and `>>>` would be a quotation of a quotation.
"""

import re
from collections.abc import Iterable, Iterator

import griffe

_DOCTEST = re.compile(r">>> ")
_AFTER_PARAMETERS = re.compile(r"(?m)^(?=(?:Returns?|Raises|Yields|Source)\b)|(?<=[.;]) (?=(?:Returns|Raises) )")


class ReadableDocstrings(griffe.Extension):
    """Rewrites every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        for each in _objects(pkg):
            if each.docstring is not None:
                each.docstring.value = as_markdown(each.docstring.value, _parameters(each))


def as_markdown(docstring: str, parameters: Iterable[str]) -> str:
    """The docstring with its parameters as a list, and its examples as blocks of code.

    >>> print(as_markdown("Adds.\\n\\na: the first. b: the second.\\nReturns a sum.", ["a", "b"]))
    Adds.
    <BLANKLINE>
    - **`a`**: the first.
    - **`b`**: the second.
    <BLANKLINE>
    Returns a sum.
    """
    paragraphs = re.split(r"\n\s*\n", docstring.strip())
    return "\n\n".join(_paragraph(paragraph, list(parameters)) for paragraph in paragraphs)


def _paragraph(text: str, parameters: list[str]) -> str:
    if _DOCTEST.match(text):
        return f"```pycon\n{text}\n```"
    if text.startswith(" "):  # a drawing
        return f"```text\n{text}\n```"
    text = re.sub(r"(?<!\n)\n- ", "\n\n- ", text, count=1)  # a list of its own begins a paragraph
    return "\n\n".join(_sentences(text, parameters)) if parameters else text


def _sentences(text: str, parameters: list[str]) -> Iterator[str]:
    name = "|".join(map(re.escape, parameters))
    opening = re.compile(rf"(?m)(?:^|(?<=[.;]) )(?=(?:{name})(?:, (?:{name}))*:\s)")
    before, *described = opening.split(text)
    if before.strip():
        yield before.rstrip()
    if not described:
        return
    *items, last = described
    last, *after = _AFTER_PARAMETERS.split(last)
    yield "\n".join(_item(item) for item in [*items, last])
    yield from (each.strip() for each in after)


def _item(text: str) -> str:
    names, _, what = text.strip().partition(":")
    bold = ", ".join(f"**`{name}`**" for name in names.split(", "))
    return f"- {bold}: {what.strip().removesuffix(';')}".replace("\n", "\n  ")


def _parameters(each: griffe.Object) -> list[str]:
    if isinstance(each, griffe.Function):
        return [parameter.name for parameter in each.parameters if parameter.name != "self"]
    if isinstance(each, griffe.Class):
        init = each.members.get("__init__")
        own = _parameters(init) if isinstance(init, griffe.Function) else []
        return own + [name for name in each.members if not name.startswith("_")]
    return []


def _objects(each: griffe.Object) -> Iterator[griffe.Object]:
    yield each
    for member in each.members.values():
        if not member.is_alias:
            yield from _objects(member)
