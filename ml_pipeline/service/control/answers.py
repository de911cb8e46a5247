"""What the service answers to commands, by the name of what they ask for."""

from collections.abc import Mapping
from typing import Any

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.service.agent_training_service import AgentTrainingService

_KNOWN = ("submit", "knows", "stop", "resume", "scale")


def answer(service: AgentTrainingService, request: Mapping[str, Any]) -> Any:
    """Do what is asked, {"do": NAME, ...}, and return what JSON knows. Raises UserError."""
    asked = dict(request)
    do = asked.pop("do", "")
    if do == "submit":
        return service.submit(asked.pop("settings"), **asked)
    if do == "knows":
        return service.knows(asked["run"])
    if do in {"stop", "resume", "scale"}:
        return getattr(service, do)(asked.pop("run"), **asked)
    raise UserError(f'The service knows no "{do}". {nearest(str(do), _KNOWN)}')
