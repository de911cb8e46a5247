"""Ranks for tests: processes that are forked from one which has imported everything, in 20 ms each."""

import contextlib
import functools
import importlib
import os
import pickle
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle

from ml_pipeline.runs.ranks.launcher import free_port

_READY = b"ready"
_ROOT = Path(__file__).resolve().parents[4]


class Outcome(NamedTuple):
    """What became of one rank. status: as `subprocess` gives it, negative for a signal."""

    status: int
    value: Any = None
    error: BaseException | None = None


class RankServer:
    """Runs a function in several processes at once."""

    def __init__(self, *modules: str) -> None:
        """modules: imported once, for all ranks."""
        command = [sys.executable, "-m", __name__, *modules]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._n_jobs = 0
        assert self._read() == _READY

    def run(self, function: Callable[..., Any], size: int, *args: Any, timeout_s: float = 600.0) -> list[Outcome]:
        """function(ranks, *args) in a group of `size`, whose exchanges wait for timeout_s; 0: once, without a group."""
        self._n_jobs += 1
        _write(self._process.stdin, cloudpickle.dumps((self._n_jobs, function, size, args, timeout_s)))
        number = 0
        while number < self._n_jobs:  # that of a test whose time was over may come first
            number, of_ranks = pickle.loads(self._read())
        return [Outcome(status) if status else Outcome(0, *pickle.loads(answer)) for status, answer in of_ranks]

    def values(self, function: Callable[..., Any], size: int, *args: Any) -> list[Any]:
        """What the function returns in each rank; raises what it raised."""
        outcomes = self.run(function, size, *args)
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        assert [outcome.status for outcome in outcomes] == [0] * len(outcomes)
        return [outcome.value for outcome in outcomes]

    def close(self) -> None:
        with self._process as process:
            process.stdin.close()

    def _read(self) -> bytes:
        return _read(self._process.stdout)


@contextlib.contextmanager
def rank_server(*modules: str) -> Iterator[RankServer]:
    with contextlib.closing(RankServer(*modules)) as server:
        yield server


def _write(stream: Any, message: bytes) -> None:
    stream.write(struct.pack("<q", len(message)) + message)
    stream.flush()


def _read(stream: Any) -> bytes:
    header = stream.read(8)
    return stream.read(*struct.unpack("<q", header)) if header else b""


def _serve() -> None:
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not mix with answers
    _import_all()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    _write(answers, _READY)
    while job := _read(jobs):
        number, function, size, args, timeout_s = pickle.loads(job)
        port = free_port()
        call = functools.partial(_called, function, args, size, timeout_s)
        ranks = [_fork(call, rank, size, port) for rank in range(max(size, 1))]
        _write(answers, pickle.dumps((number, [_outcome(*rank) for rank in ranks])))


def _import_all() -> None:
    import gymnasium

    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer

    # Loads the compiled kernel as well.
    config = PPOConfig(n_steps=4, minibatch_size=4, n_epochs=1)
    with PPOTrainer([lambda: gymnasium.make("CartPole-v1")], config, total_timesteps=4) as trainer:
        trainer.train(progress=False)


def _fork(call: Callable[[], Any], rank: int, size: int, port: int) -> tuple[int, int]:
    """The process and a pipe with what it returns."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid:
        os.close(sending)
        return pid, receiving
    try:
        os.close(receiving)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        try:
            answer = (call(), None)
        except BaseException as error:
            answer = (None, error)
        with os.fdopen(sending, "wb") as stream:
            stream.write(cloudpickle.dumps(answer))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _called(function: Callable[..., Any], args: Any, size: int, timeout_s: float) -> Any:
    from ml_pipeline.models.rl.distributed.rank_group import RankGroup

    if not size:
        return function(None, *args)
    with RankGroup.join(timeout_s=timeout_s) as ranks:
        return function(ranks, *args)


def _outcome(pid: int, receiving: int) -> tuple[int, bytes]:
    with os.fdopen(receiving, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), answer


if __name__ == "__main__":
    _serve()
    os._exit(0)  # torch takes a second to end
