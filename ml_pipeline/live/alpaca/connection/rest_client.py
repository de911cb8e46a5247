"""Requests to Alpaca's trading server that end in time: an answer, a refusal, or "not available now".

alpaca-py sends them; on its own it waits without end for an answer, and blocks for seconds at each 429.
"""

import json
from collections.abc import Mapping
from typing import Any

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.connection.alpaca_library import alpaca_module
from ml_pipeline.live.alpaca.connection.keys import Keys
from ml_pipeline.live.alpaca.connection.time_limit import SERVER_ERRORS, TOO_MANY, TimeLimit
from ml_pipeline.live.alpaca.connection.timed_session import timed_session, why_no_answer
from ml_pipeline.live.brokers.broker import BrokerUnavailable

_NO_ENTRY = (401,)


class Refused(BrokerUnavailable):
    """Alpaca's answer is no. code: its own number of the reason, 0 where it gives none."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(f"Alpaca answers {status}: {message}")
        self.status, self.code, self.message = status, code, message


class RestClient:
    """Answers as plain data, in which Alpaca writes quantities and money as texts: no digit is lost.

    timeout_s: the longest time that one call takes altogether, waits after 429 included.
    """

    def __init__(self, keys: Keys, *, live: bool, url: str | None, timeout_s: float) -> None:
        library = alpaca_module("trading.client")
        self._errors = alpaca_module("common.exceptions")
        self._client = library.TradingClient(
            keys.key_id, keys.secret_key, paper=not live, raw_data=True, url_override=url.rstrip("/") if url else None
        )
        self._client._retry = 0  # it would sleep for three seconds at each 429; `_call` waits within the time there is
        self._client._session.close()
        self._client._session = self._session = timed_session()
        self._timeout_s = timeout_s
        self._account = "live" if live else "paper"

    def get(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """Asked again where the server fails, for asking changes nothing. Raises Refused and BrokerUnavailable."""
        return self._call("GET", path, dict(parameters or {}), again_after_failure=True)

    def post(self, path: str, content: Mapping[str, Any]) -> Any:
        """Asked once. After BrokerUnavailable it is unknown whether the server did it."""
        return self._call("POST", path, dict(content), again_after_failure=False)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path, {}, again_after_failure=True)

    def close(self) -> None:
        self._session.close()

    def _call(self, method: str, path: str, content: dict[str, Any], *, again_after_failure: bool) -> Any:
        limit = TimeLimit(self._timeout_s)
        while True:
            try:
                return self._once(method, path, content, limit.end)
            except Refused as refused:
                failed = refused.status >= SERVER_ERRORS
                if not failed and refused.status != TOO_MANY:
                    raise
                why = f"answers {refused.status}"
                # After 429 nothing was done; after 500 it may have been.
                last = failed and not again_after_failure
            except _NoAnswer as error:
                why, last = str(error), not again_after_failure
            if last or not limit.wait():
                raise BrokerUnavailable(f"Alpaca's trading server {why} ({method} {path}).") from None

    def _once(self, method: str, path: str, content: dict[str, Any], end: float) -> Any:
        self._session.deadline.end = end
        failure: Exception
        try:
            if method == "GET":
                return self._client.get(path, content)
            return self._client.post(path, content) if method == "POST" else self._client.delete(path)
        except self._errors.APIError as error:
            failure = _refusal(error.status_code or 0, str(error), self._account)
        except OSError as error:
            failure = _NoAnswer(why_no_answer(error, self._timeout_s))
        raise failure  # out here, so that it does not hold the error above, whose request holds the keys


class _NoAnswer(Exception):
    """No answer came, or none that can be read."""


def _refusal(status: int, text: str, account: str) -> Refused | UserError:
    code, message = 0, text.strip()[:300]
    try:
        answer = json.loads(text)
        code, message = int(answer.get("code") or 0), str(answer.get("message") or message)
    except (ValueError, AttributeError, TypeError):
        pass
    # An order that is refused has a code of its own; keys that are refused have none, or that of 401.
    if status in _NO_ENTRY or (status == 403 and code // 100_000 != 403):
        return UserError(
            f"Alpaca's {account} account does not take these keys (it answers {status}); check that they are the keys "
            f"of the {account} account and have not been replaced by newer ones."
        )
    return Refused(status, code, message)
