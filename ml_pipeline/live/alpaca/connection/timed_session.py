"""A session of `requests` whose requests end in time, an answer that drips in included; and why there was no answer."""

import threading
import time
from typing import Any

_CHUNK = 65_536
_MOST_BYTES = 64 * 2**20


def timed_session() -> Any:
    """A session on which each thread sets `deadline.end`, by `time.monotonic`: each of its requests has ended by then.

    What it raises is an error of `requests`, and so an OSError.
    """
    import requests

    class Session(requests.Session):
        deadline = threading.local()

        def request(self, *arguments: Any, **options: Any) -> requests.Response:
            end = self.deadline.end
            left = max(end - time.monotonic(), 0.001)
            response = super().request(*arguments, **{**options, "timeout": left, "stream": True})
            try:
                content = _content_until(response, end)
            except requests.exceptions.RequestException:
                response.close()
                raise
            except Exception as error:  # urllib3's own, where the connection breaks off
                response.close()
                kind = requests.exceptions.ReadTimeout if "Timeout" in type(error).__name__ else None
                raise (kind or requests.exceptions.ConnectionError)() from None
            response._content = content
            return response

    return Session()


def why_no_answer(error: OSError, timeout_s: float) -> str:
    """What the server did instead of an answer, to go on with a sentence."""
    import requests

    if isinstance(error, requests.exceptions.JSONDecodeError):
        return "answers what cannot be read"
    if isinstance(error, requests.exceptions.Timeout):
        return f"does not answer within {timeout_s:g} s"
    return f"cannot be reached: {type(error).__name__}"


def _content_until(response: Any, end: float) -> bytes:
    """All that a streamed response of `requests` says. Raises its ReadTimeout once it is too late, or far too long.

    The time-outs of `requests` count from byte to byte: an answer that drips in would never meet them.
    """
    import requests

    content = bytearray()
    while chunk := response.raw.read1(_CHUNK, decode_content=True):
        content += chunk
        if time.monotonic() > end or len(content) > _MOST_BYTES:
            raise requests.exceptions.ReadTimeout
    return bytes(content)
