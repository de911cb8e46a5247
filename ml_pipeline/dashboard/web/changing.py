"""Stop, resume and scale, as the page asks for it."""

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.dashboard.controls import Controls
from ml_pipeline.dashboard.files import find_run
from ml_pipeline.dashboard.web.http import JsonAnswer

_LARGEST_REQUEST = 10_000


class Changing:
    """Stop, resume and scale; refused where no service serves the page."""

    def __init__(self, root: Path, controls: Controls | None) -> None:
        self._root = root
        self._controls = controls

    def routes(self) -> list[Route]:
        return [
            Route(f"/api/{name}", partial(self._answer, name), methods=["POST"]) for name in ("stop", "resume", "scale")
        ]

    async def _answer(self, name: Literal["stop", "resume", "scale"], request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise HTTPException(415, "send JSON")
        return JsonAnswer(await run_in_threadpool(self._do, name, await _body_of(request)))

    def _do(self, name: str, body: bytes) -> dict[str, str]:
        if self._controls is None:
            raise UserError(
                "This page only shows runs; to stop, resume and scale them, let `ml-pipeline serve` serve it."
            )
        try:
            values = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise UserError("The request is not valid JSON.") from error
        if not isinstance(values, dict) or not isinstance(values.get("run"), str):
            raise UserError('The request must name a run, as {"run": "NAME"}.')
        run = values.pop("run")
        find_run(self._root, run)
        known = {"scale": ("n_workers", "n_envs"), "resume": ("total_timesteps",), "stop": ()}[name]
        for each in values:
            if each not in known:
                raise UserError(f'{name} takes no "{each}". {nearest(each, ["run", *known])}')
        if name == "scale":
            self._controls.scale(run, **_scale_of(values))
            return {"done": f"Asked {run} to scale; it does so after an iteration, and says so in its log."}
        if name == "stop":
            self._controls.stop(run)
            return {"done": f"Asked {run} to stop; it saves first."}
        total = values.get("total_timesteps")
        if total is not None and (not isinstance(total, int) or isinstance(total, bool) or total < 1):
            raise UserError(f"total_timesteps must be a whole number from 1 on, but got {json.dumps(total)}.")
        if self._controls.resume(run, total_timesteps=total) is False:
            return {"done": f"{run} has no checkpoint; it begins anew as soon as there is room."}
        return {"done": f"{run} goes on from its checkpoint as soon as there is room."}


def _scale_of(values: dict[str, Any]) -> dict[str, Any]:
    if not values:
        raise UserError("scale needs n_workers, n_envs, or both.")
    for name, value in values.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= (0 if name == "n_workers" else 1)
        if not is_count and not (name == "n_workers" and value in ("auto", "dynamic")):
            words = ", auto or dynamic" if name == "n_workers" else ""
            raise UserError(f"{name} must be a whole number{words}, but got {json.dumps(value)}.")
    return values


async def _body_of(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST_REQUEST:
            raise HTTPException(413, "the request is too long")
    return body
