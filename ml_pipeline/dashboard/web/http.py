"""Parameters of requests, and answers in JSON."""

import json
import re
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ml_pipeline.config.errors import UserError

MOST_RUNS = 24
_MOST_METRICS = 100


def runs_of(request: Request, *, at_least: int = 1, exactly: int | None = None) -> list[str]:
    runs = list(dict.fromkeys(request.query_params.getlist("run")))
    if exactly is not None and len(runs) != exactly:
        raise UserError(f"Name one run, as ?run=NAME, but got {len(runs)}.")
    if len(runs) < at_least:
        raise UserError("Name runs, as ?run=NAME&run=NAME.")
    if len(runs) > MOST_RUNS:
        raise UserError(f"At most {MOST_RUNS} runs are shown at once, but {len(runs)} are named.")
    return runs


def one_of(request: Request, what: str) -> str:
    """The value of the query parameter `what`, such as "study", which must occur once."""
    names = request.query_params.getlist(what)
    if len(names) != 1:
        raise UserError(f"Name one {what}, as ?{what}=NAME, but got {len(names)}.")
    return names[0]


def metrics_of(request: Request) -> list[str]:
    metrics = list(dict.fromkeys(request.query_params.getlist("metric")))
    if len(metrics) > _MOST_METRICS:
        raise UserError(f"At most {_MOST_METRICS} metrics are shown at once, but {len(metrics)} are named.")
    return metrics


def range_of(request: Request) -> tuple[float | None, float | None]:
    """The range of the axis to show; None means its end."""
    bounds = [
        number_of(request, name, None, least=-1e18, most=1e18) if name in request.query_params else None
        for name in ("low", "high")
    ]
    return bounds[0], bounds[1]


def number_of(request: Request, name: str, default: Any, *, least: float, most: float) -> Any:
    text = request.query_params.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise UserError(f'{name} must be a number from {least:g} to {most:g}, but got "{text}".')
    return value


def whole_number_of(request: Request, name: str) -> int | None:
    value = number_of(request, name, None, least=0, most=2**53)
    return None if value is None else int(value)


_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonAnswer(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json_bytes(content)


async def as_json(answer: Callable[[Request], Any], request: Request) -> Response:
    """Call a function in a thread, because it reads files, and return its result as JSON."""
    return await run_in_threadpool(lambda: JsonAnswer(answer(request)))


def json_bytes(content: Any) -> bytes:
    """JSON in UTF-8, with characters that UTF-8 cannot encode as their number.

    >>> json_bytes({"name": "bad\\udcff"})
    b'{"name":"bad\\\\\\\\udcff"}'
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Two backslashes in JSON are one in the text; with only one, the number would become the character again.
        return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()
