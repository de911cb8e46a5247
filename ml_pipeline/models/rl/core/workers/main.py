"""The code of a worker process: it steps one block of environments, on commands from a link.

A worker does not import torch, gives numerical libraries one thread, leaves Ctrl-C and SIGTERM to the trainer, and lets
environments start processes. When the trainer ends, the worker ends with these processes, even in the middle of a step.

The processes that environments start belong to the process group of their worker, and end with it. A process that
should outlive its worker needs its own session (`start_new_session=True`). On systems without process groups (Windows),
only the worker ends.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import select
import signal
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import gymnasium

from ml_pipeline.models.rl.core.stepping import by_value
from ml_pipeline.models.rl.core.stepping.batch import BatchLayout
from ml_pipeline.models.rl.core.stepping.env_block import EnvBlock, EnvFactory
from ml_pipeline.models.rl.core.stepping.errors import EnvFailedError, FailureReport, ForkReturned
from ml_pipeline.models.rl.core.stepping.protocol import FINISHED, NOTHING, Command, Reply, ResetOrder
from ml_pipeline.models.rl.core.workers.fork_server import forget_parents
from ml_pipeline.models.rl.core.workers.pipes import (
    DONE,
    DONE_FINISHED,
    DONE_WITH_MESSAGE,
    WITH_MESSAGE,
    WorkerLink,
)
from ml_pipeline.runtime.standard_streams import guard_standard_streams

BLOCKED_AT_START = {getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGTERM") if hasattr(signal, name)}
"""Signals that reach every process of a terminal or service. They are blocked while workers start, so that they never
hit a half-started one."""

_COMMANDS = {int(command): command for command in Command}  # 0.4 µs faster than Command(code)


@dataclass(slots=True)
class WorkerSetup:
    """The first message to a worker.

    worker: its number. first: the index of its first environment. spin_s: the time to spin for the next command before
    sleeping. registered: environments that the trainer's script registered, each pickled. env_fns: a pickled list,
    loaded last so that errors in it can be reported. first_reset: the first reset of environments that replace those of
    a lost worker; None to wait for a command.
    """

    worker: int
    first: int
    layout: BatchLayout
    environ: dict[str, str]
    spin_s: float
    registered: list[bytes]
    env_fns: bytes
    first_reset: Sequence[ResetOrder] | None


def run_worker(inbox: Connection, outbox: Connection, stacks: Connection, memory: Any, trainer_pid: int) -> None:
    """The main function of a worker process: returns when told to close.

    The first message is its `WorkerSetup`. stacks: pipe for its Python stack on SIGUSR1. memory: of the batch.
    """
    begin_worker()
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    threading.Thread(target=_die_with, args=(trainer_pid,), name="die-with-trainer", daemon=True).start()
    link = WorkerLink(inbox, outbox)
    forked: list[int] = []
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=link.close)
        os.register_at_fork(after_in_child=lambda: forked.append(os.getpid()))
    try:
        serve(link, memory, forked)
    finally:
        for process in multiprocessing.active_children():  # else multiprocessing would wait for them
            process.terminate()


def begin_worker() -> None:
    """Turns this process into a worker, before it has any environments."""
    _leave_signals_to_the_trainer()
    lead_group()
    multiprocessing.current_process().daemon = False  # a daemon may not start processes
    forget_parents()
    guard_standard_streams(outlive_readers=True)  # a closed terminal must not end an environment that prints


def _outlast_sigterm() -> None:
    """Ignores SIGTERM in this process, but not in processes that it forks or starts."""
    signal.signal(signal.SIGTERM, _ignore_sigterm)  # SIG_IGN would be inherited by programs
    if hasattr(signal, "siginterrupt"):
        signal.siginterrupt(signal.SIGTERM, False)  # most system calls of a simulator then continue
    _guard_forks()


@cache  # a fork of a worker has the hooks already, and may become a worker itself
def _guard_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_delay_sigterm, after_in_parent=_take_sigterm, after_in_child=partial(_take_sigterm, is_fork=True)
        )


def _ignore_sigterm(number: int, frame: Any) -> None:
    pass


_forking = threading.local()  # usual_mask: of the thread that forks, if it delays SIGTERM


def _delay_sigterm() -> None:
    """Blocks SIGTERM during a fork, so that a SIGTERM to the new process ends it instead of being ignored."""
    _forking.usual_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _take_sigterm(*, is_fork: bool = False) -> None:
    if is_fork and signal.getsignal(signal.SIGTERM) is _ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.usual_mask)


def serve(link: WorkerLink, memory: Any, forked: Sequence[int]) -> None:
    """Makes the environments of the first message, a `WorkerSetup`, and steps them; returns when told to close.

    forked: not empty in a process that an environment forked. Ends this process if the trainer has ended or has
    abandoned it.
    """
    number = -1
    try:
        setup: WorkerSetup = pickle.loads(link.receive())
        number, spin_s = setup.worker, setup.spin_s
        block = _set_up(link, setup, memory, forked)
        del setup  # the factories may hold a whole market, and the environments have it now
        if block is not None:
            _serve(link, block, spin_s)
    except (EOFError, BrokenPipeError):  # the trainer has ended, or has abandoned this worker
        end_with_group()
    except ForkReturned:
        _leave(number)


def _leave(worker: int) -> NoReturn:
    """Ends a process that an environment forked, and that is not a worker."""
    sentence = (
        f"Process {os.getpid()} was forked by an environment of worker {worker} and returned from it, but only the "
        "worker may return: it ends here, and the worker continues. End it inside the environment, with os._exit().\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, sentence.encode())
    os._exit(1)


def _set_up(link: WorkerLink, setup: WorkerSetup, memory: Any, forked: Sequence[int]) -> EnvBlock | None:
    """The block, once all its environments are made; None if one failed. The trainer gets a reply either way."""
    os.environ.update(setup.environ)
    _register(setup.registered)
    layout = setup.layout
    try:
        env_fns: list[EnvFactory] = pickle.loads(setup.env_fns)
        block = EnvBlock(env_fns, setup.first, layout.num_envs, layout.autoreset_mode, forked)
    except EnvFailedError as error:
        _send(link, 0, Reply(failure=error.report))
        return None
    except Exception as error:  # unpickling imports the user's modules
        _send(link, 0, _not_unpickled(error, "its factory", setup.first, layout.num_envs))
        return None
    block.attach(layout.place_in(memory), setup.worker)
    if setup.first_reset is None:
        _send(link, 0, Reply(values=block.space_mismatches()))
    else:
        _send(link, 0, block.execute(Command.RESET, None, setup.first_reset), block)
    return block


def _not_unpickled(error: Exception, what: str, first: int, num_envs: int) -> Reply:
    """The reply if unpickling failed: foreign code may raise anything, and modules may be missing here."""
    where = {"index": first, "num_envs": num_envs, "seed": None, "step": None, "action": None}
    return Reply(failure=FailureReport.of(error, __file__, doing=f"the unpickling of {what}", **where))


def _register(pickled_specs: list[bytes]) -> None:
    """Registers the trainer's environments here; the module that registered them may still be imported here later."""
    warnings.filterwarnings("ignore", r".*Overriding environment .* already in registry", UserWarning)
    for pickled in pickled_specs:
        with contextlib.suppress(Exception):  # if its module is missing here, gymnasium.make() reports it
            spec = pickle.loads(pickled)
            gymnasium.registry[spec.id] = spec


def _serve(link: WorkerLink, block: EnvBlock, spin_s: float) -> None:
    while True:
        if spin_s:
            link.spin(spin_s)
        number, code = link.read_note()
        if code == Command.CLOSE:
            break
        if code & WITH_MESSAGE:
            command, message = _COMMANDS[code ^ WITH_MESSAGE], link.receive()
            try:
                common, per_env = pickle.loads(message)
            except Exception as error:
                what = f"the arguments of {command.name.lower()}"
                reply = _not_unpickled(error, what, block.span.start, block.num_envs)
            else:
                reply = block.execute(command, common, per_env)
        else:
            reply = block.execute(_COMMANDS[code])
        _send(link, number, reply, block)
    block.close()


def _send(link: WorkerLink, number: int, reply: Reply, block: EnvBlock | None = None) -> None:
    if reply is NOTHING or reply is FINISHED:
        link.note(number, DONE if reply is NOTHING else DONE_FINISHED)
        return
    try:
        message = dumps(reply)
    except Exception as error:  # foreign __getstate__ and __reduce__ may raise anything
        assert block is not None
        message = dumps(Reply(failure=block.unsendable(reply, error, _is_sendable)))
    link.note(number, DONE_WITH_MESSAGE)
    link.send(message)


def _is_sendable(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def dumps(value: Any) -> bytes:
    """Pickles quickly if possible, and by value if the value needs classes that only this process has."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # the fast pickler raises AttributeError, TypeError or PicklingError for this
        return by_value.dumps(value)


def _leave_signals_to_the_trainer() -> None:
    """Ctrl-C, a terminal's hang-up and a service manager's SIGTERM reach every process of the run; only the trainer
    handles them. They were blocked while this process started.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _outlast_sigterm()
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for name in ("SIGTTIN", "SIGTTOU"):  # they would stop a background group for good if it uses its terminal
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_AT_START)


def _die_with(trainer_pid: int) -> None:
    """Ends this process and its group as soon as the trainer has ended, for any reason and at any point."""
    _wait_for_end(trainer_pid)
    end_with_group()


def _wait_for_end(trainer_pid: int) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # SIGUSR1 must reach the main thread
    if hasattr(os, "pidfd_open"):
        try:
            trainer = select.poll()
            trainer.register(os.pidfd_open(trainer_pid), select.POLLIN)
            trainer.poll()
            return
        except ProcessLookupError:
            return
        except OSError:
            pass  # a kernel or sandbox without pidfd
    parent = parent_process()
    assert parent is not None
    parent.join()


def lead_group() -> None:
    """Makes this process the leader of a new group; call it before this process starts others, which then belong to it.

    From then on only the trainer gets the terminal's signals. After Ctrl-Z, workers finish their step and wait.
    """
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


def end_with_group() -> NoReturn:
    """Ends this process and its group at once."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def end_group_of(worker_pid: int) -> None:
    """Ends the processes that an ended worker left behind; the worker must have been waited for."""
    if not hasattr(os, "killpg"):
        return
    try:
        os.kill(worker_pid, 0)
    except ProcessLookupError:
        # The group may be empty. macOS raises PermissionError if only zombies are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker_pid, signal.SIGKILL)
    except PermissionError:
        pass
    # Otherwise the id was reused by another process, and the group is empty: a group with members reserves its id.
