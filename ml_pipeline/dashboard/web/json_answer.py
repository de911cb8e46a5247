"""Answers in JSON, whatever texts they hold: UTF-8 cannot write the name of every file."""

import json
import re
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonAnswer(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json_bytes(content)


async def as_json(answer: Callable[[Request], Any], request: Request) -> Response:
    """What a function answers, in a thread: it reads files."""
    return await run_in_threadpool(lambda: JsonAnswer(answer(request)))


def json_bytes(content: Any) -> bytes:
    """JSON in UTF-8; what UTF-8 cannot write is shown by its number.

    >>> json_bytes({"name": "bad\\udcff"})
    b'{"name":"bad\\\\\\\\udcff"}'
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Two backslashes in JSON are one in the text: left as an escape, the number would be the character again.
        return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()
