"""alpaca-py where it is installed, without its warnings and without its words on the terminal."""

import logging
import warnings
from importlib import import_module
from types import ModuleType

from ml_pipeline.config.errors import UserError, install_extra


def alpaca_module(name: str) -> ModuleType:
    """A module of alpaca-py, such as "trading.client". Raises UserError, with what to install, where it is missing.

    Importing it warns that `websockets.legacy` is deprecated, which users of this program can do nothing about.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            module = import_module(f"alpaca.{name}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in ("alpaca", "websockets", "requests"):
                raise
            raise UserError(
                f"Alpaca's account and market data need another package: {install_extra('alpaca')}; or trade on the "
                "simulated broker, which needs none."
            ) from None
    # What it logs of lost connections is told by the session; a handler of the user's own still gets it.
    log = logging.getLogger("alpaca")
    if not any(isinstance(handler, logging.NullHandler) for handler in log.handlers):
        log.addHandler(logging.NullHandler())
    return module


def quiet_websocket_log() -> logging.Logger:
    """A logger for websockets that leaves out what is sent: the message that logs in holds the secret key."""
    log = logging.getLogger("ml_pipeline.alpaca.websocket")
    log.setLevel(logging.WARNING)
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    return log
