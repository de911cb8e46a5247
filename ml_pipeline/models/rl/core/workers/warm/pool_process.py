"""What the process of a pool runs: it gets ready to fork workers, and lends them."""

import gc
import os
import signal
import socket
import sys
import types
from collections.abc import Sequence
from multiprocessing import resource_tracker

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.workers.warm import messages
from ml_pipeline.models.rl.core.workers.warm.broker import Broker, PoolSettings
from ml_pipeline.models.rl.core.workers.warm.same_code import code_stamp, is_own_code
from ml_pipeline.runtime.user_code import import_user_module


def main(owner_fd: int, listener_fd: int) -> None:
    """See `EnvPool`, whose settings are the first message of `owner_fd`."""
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):  # of a terminal or a service manager, which the owner answers
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.modules["__main__"] = types.ModuleType("__main__")  # what workers start in turn would run it again
    owner, listener = socket.socket(fileno=owner_fd), socket.socket(fileno=listener_fd)
    message, _ = messages.receive(owner)
    settings = PoolSettings(**{**message, "preload": tuple(message["preload"])})
    try:
        _preload(settings.preload)
    except UserError as error:
        messages.send(owner, {"failed": str(error)})
        return
    _silence(1, 2)  # whoever reads the owner's output does not wait for workers that outlive it
    resource_tracker.ensure_running()  # one for all workers, as for those of a trainer
    code_stamp()
    gc.collect()
    gc.freeze()  # workers then share these pages for longer
    messages.send(owner, {"ready": True})
    Broker(owner, listener, settings).run()


def _preload(names: Sequence[str]) -> None:
    """Imports what workers will need. Raises UserError for what must not be there while this process forks."""
    for name in names:
        module = import_user_module(name)
        if is_own_code(module):
            raise UserError(f"preload takes installed packages, but {name} lies in {module.__file__} and may change.")
        if len(os.listdir("/proc/self/task")) > 1:
            raise UserError(f"preload cannot take {name}: it starts threads, which a worker could not have.")


def _silence(*descriptors: int) -> None:
    """Has what is written there lead nowhere."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nothing, descriptor)
    os.close(nothing)
