"""A group of ranks over torch.distributed, started by torchrun or another launcher with its environment variables."""

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.distributed.lost_ranks import (
    FOLLOWED,
    LostRanks,
    cut,
    first_line,
    sockets_opened,
    told_by_torch,
    watch,
)
from ml_pipeline.models.rl.distributed.rendezvous import interface_towards, rendezvous
from ml_pipeline.models.rl.distributed.side_channel import SideChannel
from ml_pipeline.models.rl.distributed.stop_agreement import StopAgreement
from ml_pipeline.models.rl.ranks import Member, RankLost, pack, this_process, unpack
from ml_pipeline.runtime.rank_variables import rank_and_size

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIX = "ml_pipeline"
_LOOPBACK = "127.0.0.1"
# For processes of one machine that have started and imported everything. Without this limit, the group would wait for
# a process that is killed at that time as long as for the slowest step.
_MEETING_S = 60.0
_SHORTEST_NAP_S, _LONGEST_NAP_S = 2e-5, 2e-3
_ABANDONED_S = 2.0  # how long torch may wait for a rank that the side channel reported as gone
_LATER_S = 30.0  # torch's own limit is this much longer; at that limit, nccl ends the process without a message


class RankGroup:
    """This process as one rank of a group; call `join` to make it.

    An exchange takes a message to the store (1.4 us, without waiting), one round of gloo for the sizes, and one for the
    payloads. Two processes on a busy machine with two cores take 1.3 ms for a few bytes each, and 2.7 ms for 1 MB each.
    A network adds the time for the bytes.
    """

    def __init__(self, store: Any, rank: int, members: list[Member], channel: SideChannel, *, timeout_s: float) -> None:
        """store: the store of torch, shared by all ranks. timeout_s: how long exchanges wait for the slowest rank."""
        self.rank = rank
        self.size = len(members)
        self.members = members
        self.channel = channel
        self.timeout_s = timeout_s
        self.lost = LostRanks(store, rank, members)
        self.channel.listen(self.lost.note)
        self._store = store
        self._connections: Collection[str] = ()
        self._closed = False

    @classmethod
    def join(cls, *, timeout_s: float = 600.0) -> Self:
        """Join the group that the environment variables of torchrun describe; returns when all ranks have joined.

        Raises UserError if a variable is missing or not a number, and RankLost if ranks do not join within timeout_s.
        """
        missing = [name for name in _VARIABLES if name not in os.environ]
        if missing:
            raise UserError(
                f"A rank needs the environment variables {', '.join(_VARIABLES)}, but {', '.join(missing)} is not set; "
                "start it by torchrun, or train without ranks."
            )
        rank, size = rank_and_size(os.environ)
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        interface = interface_towards(address)
        if interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        is_held_here = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        with _rendezvous_errors(rank, size, f"{address}:{port}"), sockets_opened() as opened:
            store = _new_store(address, int(port), is_held_here=is_held_here, timeout_s=timeout_s)
            group = cls._joined(store, rank, size, address=address, timeout_s=timeout_s)
        return group._watching(opened)

    @classmethod
    def lead(cls, size: int, *, tell_port: Callable[[int], None], timeout_s: float = 600.0) -> Self:
        """Join as rank 0 of a group on this machine, without environment variables; returns when all have joined.

        tell_port: called with the port for `follow`; must return when the other processes are about to join. Raises
        RankLost if they do not join.
        """
        with _rendezvous_errors(0, size, _LOOPBACK), sockets_opened() as opened:
            store = _new_store(_LOOPBACK, 0, is_held_here=True, timeout_s=_MEETING_S)
            tell_port(store.port)
            group = cls._joined(store, 0, size, address=_LOOPBACK, timeout_s=_MEETING_S)
        group._wait_up_to(timeout_s)
        return group._watching(opened)

    @classmethod
    def follow(cls, port: int, rank: int, size: int, *, timeout_s: float = 600.0) -> Self:
        """Join the group that another process of this machine leads. Raises RankLost if that fails."""
        with _rendezvous_errors(rank, size, f"{_LOOPBACK}:{port}"), sockets_opened() as opened:
            store = _new_store(_LOOPBACK, port, is_held_here=False, timeout_s=_MEETING_S)
            group = cls._joined(store, rank, size, address=_LOOPBACK, timeout_s=_MEETING_S)
        group._wait_up_to(timeout_s)
        return group._watching(opened)

    @classmethod
    def _joined(cls, store: dist.Store, rank: int, size: int, *, address: str, timeout_s: float) -> Self:
        store = dist.PrefixStore(_PREFIX, store)
        met = rendezvous(store, rank, size, address=address, timeout_s=timeout_s)
        channel = SideChannel(rank, met.connections)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        try:
            store = dist.PrefixStore(met.name, store)  # hides keys from before a restart
            store.set(f"member/{rank}", json.dumps(this_process()))
            members = [Member(*json.loads(store.get(f"member/{each}"))) for each in range(size)]
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s + _LATER_S)
            )
            return cls(store, rank, members, channel, timeout_s=timeout_s)
        except BaseException:
            channel.close("it could not join the group")
            forget_group()
            raise

    def gather(self, payload: bytes, what: str) -> list[bytes]:
        self._arrive()
        sizes = torch.zeros(self.size, dtype=torch.int64)
        self._all_gather(torch.tensor([len(payload)]), sizes.view(-1, 1), what)
        longest = int(sizes.max())
        padded = np.zeros(longest, np.uint8)
        padded[: len(payload)] = np.frombuffer(payload, np.uint8)
        gathered = torch.empty(self.size, longest, dtype=torch.uint8)
        self._all_gather(torch.from_numpy(padded), gathered, what)
        return [row[:n].numpy().tobytes() for row, n in zip(gathered, sizes.tolist(), strict=True)]

    def gather_values(self, value: Any, what: str) -> list[Any]:
        return [unpack(each) for each in self.gather(pack(value), what)]

    def share(self, payload: bytes | None, what: str, root: int = 0) -> bytes:
        self._arrive()
        own = payload if self.rank == root else b""
        assert own is not None
        size = torch.tensor([len(own)])
        self._broadcast(size, root, what)
        shared = _bytes_as_tensor(own) if self.rank == root else torch.empty(int(size), dtype=torch.uint8)
        self._broadcast(shared, root, what)
        return shared.numpy().tobytes()

    def gather_tensor(self, part: Tensor, out: Tensor, what: str = "gradients") -> None:
        self._all_gather(part, out, what)

    def close(self, why: str | None = None) -> None:
        """Leave the group; may be called twice, and after an error. why: the error; it is sent to the other ranks."""
        if self._closed:
            return
        self._closed = True
        self.channel.close(why)
        if self.lost or why is not None:
            _abandon(self._connections)
        else:
            dist.destroy_process_group()

    def check(self) -> None:
        """Raise RankLost if another rank is known to be gone."""
        self.lost.check()

    def new_stop(self) -> StopAgreement:
        return StopAgreement(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        why = None if error is None else f"it raised {type(error).__name__}: {first_line(error)}"
        self.close(FOLLOWED if isinstance(error, RankLost) else why)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank {self.rank} of {self.size})"

    def _watching(self, opened: Collection[str]) -> Self:
        """This group, after it took over the sockets that were opened for it."""
        self._connections = opened
        watch(opened)  # otherwise torch waits a quarter of an hour for a machine that is gone
        return self

    def _wait_up_to(self, timeout_s: float) -> None:
        """Change how long exchanges wait for the slowest rank."""
        self.timeout_s = timeout_s
        self._store.set_timeout(timedelta(seconds=timeout_s))
        set_group_timeout(timeout_s + _LATER_S)

    def _arrive(self) -> None:
        self.check()
        try:
            self.lost.arrive()
        except RuntimeError as error:
            raise self.lost.error("the next exchange", error, waited_s=0.0, timeout_s=self.timeout_s) from error

    def _all_gather(self, part: Tensor, out: Tensor, what: str) -> None:
        self._await(lambda: dist.all_gather(list(out.unbind()), part.contiguous(), async_op=True), what)

    def _broadcast(self, tensor: Tensor, root: int, what: str) -> None:
        self._await(lambda: dist.broadcast(tensor, src=root, async_op=True), what)

    def _await(self, begin: Callable[[], Any], what: str) -> None:
        """Wait for torch in Python, so that signals are handled and losses are noticed at once."""
        nap_s, began, end_s = _SHORTEST_NAP_S, time.monotonic(), math.inf
        try:
            work = begin()
            while not work.is_completed():
                waited_s = time.monotonic() - began
                if self.lost:  # the lost rank may have sent its part before
                    end_s = min(end_s, waited_s + _ABANDONED_S)
                if waited_s > min(end_s, self.timeout_s):
                    raise RuntimeError("torch still waits")
                time.sleep(nap_s)
                nap_s = min(1.5 * nap_s, _LONGEST_NAP_S)
            work.wait()
        except RuntimeError as error:
            waited_s = time.monotonic() - began
            raise self.lost.error(what, error, waited_s=waited_s, timeout_s=self.timeout_s) from error


def _new_store(address: str, port: int, *, is_held_here: bool, timeout_s: float) -> dist.TCPStore:
    """The store of torch. `rendezvous` waits for the ranks, because the store does not notice if one ends."""
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(
        address, port, is_master=is_held_here, timeout=timeout, wait_for_workers=False, multi_tenant=is_held_here
    )


def _abandon(connections: Collection[str]) -> None:
    """Leave torch's group after ranks may have been lost."""
    cut(connections)  # torch joins its threads, which would wait for a machine that does not answer
    abort_group()
    dist.destroy_process_group()


# Private functions of torch, as of 2.13. pyproject.toml limits the version, and a test fails if they change.


def forget_group() -> None:
    """Let this process join another group after one failed; torch numbers the groups of a process to name them."""
    dist.distributed_c10d._world.group_count = 0


def set_group_timeout(timeout_s: float) -> None:
    """Change the timeout of the exchanges in torch's group."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))


def abort_group() -> None:
    """End the exchanges of torch's group, whose threads would wait for ranks that are gone."""
    dist.distributed_c10d._get_default_group().abort()


@contextlib.contextmanager
def _rendezvous_errors(rank: int, size: int, where: str) -> Iterator[None]:
    """Within the block, errors of torch and `rendezvous` become RankLost. where: the address of rank 0."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:  # torch's errors have no narrower common class
        if isinstance(error, UserError):
            raise
        raise RankLost(
            f"Rank {rank} of {size} could not meet the others at {where} ({told_by_torch(error)}); start all ranks, "
            "let them reach that address, and look for the reason in the output of one that ended."
        ) from error


def _bytes_as_tensor(payload: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(payload, np.uint8).copy())
