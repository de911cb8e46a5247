"""Simulated machines: network namespaces connected by a relay with a delay and a bandwidth.

Needs Linux and root. Each namespace has a TUN device. The relay, a process in user space, carries packets between them
like a switch: each machine has its own link with a bandwidth per direction and a delay. The kernel only needs TUN; tc's
netem, which does the same, is not in every kernel. TCP sees an MTU of 1,500, so its window grows as in a real network,
but packets travel 64 KB at a time, as between a kernel and its network card.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush

DEVICE = "eth0"
"""The name of the link in every namespace."""

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CHECKSUMS, _LARGE_SEGMENTS = 0x01, 0x02
_HEADER = 10  # bytes of struct virtio_net_hdr before each packet
_DESTINATION = slice(_HEADER + 16, _HEADER + 20)  # of an IPv4 packet
_PR_SET_TIMERSLACK = 29
_LARGEST = 1 << 17


class Link:
    """Arrival times of packets: limited by the bandwidth of both links, then delayed.

    >>> link = Link(n_machines=2, delay_s=0.5, bytes_per_s=100.0)
    >>> link.arrival(0, 1, n_bytes=100, now_s=0.0), link.arrival(0, 1, n_bytes=100, now_s=0.0)
    (1.5, 2.5)
    """

    def __init__(self, *, n_machines: int, delay_s: float, bytes_per_s: float) -> None:
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s
        self._sent_s, self._received_s = [0.0] * n_machines, [0.0] * n_machines

    def arrival(self, source: int, target: int, *, n_bytes: int, now_s: float) -> float:
        takes_s = n_bytes / self._bytes_per_s
        self._sent_s[source] = max(now_s, self._sent_s[source]) + takes_s
        self._received_s[target] = max(self._sent_s[source] + self._delay_s, self._received_s[target] + takes_s)
        return self._received_s[target]


class Machines:
    """Open namespaces: their addresses, and the prefix for commands that run in one."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __len__(self) -> int:
        return len(self._names)

    def address(self, machine: int) -> str:
        return _address(machine)

    def inside(self, machine: int) -> list[str]:
        return ["ip", "netns", "exec", self._names[machine]]

    def cut_off(self, machine: int) -> None:
        """Disconnect a machine in both directions."""
        _ip("-n", self._names[machine], "link", "set", DEVICE, "down")

    def connect(self, machine: int) -> None:
        """Undo `cut_off`."""
        _ip("-n", self._names[machine], "link", "set", DEVICE, "up")


@contextmanager
def machines(number: int, *, delay_s: float, bits_per_s: float) -> Iterator[Machines]:
    """Open `number` namespaces and their relay until the end of the block.

    delay_s: one way. bits_per_s: of each link, in each direction.
    """
    names = [f"scale{os.getpid()}-{index}" for index in range(number)]
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
        arguments = [*names, str(delay_s), str(bits_per_s / 8)]
        relay = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE)
        stack.callback(_end, relay)
        assert relay.stdout is not None
        if relay.stdout.readline() != b"ready\n":
            raise RuntimeError("The relay did not start; see above.")
        yield Machines(names)


def _end(relay: subprocess.Popen) -> None:
    relay.kill()
    relay.wait()
    assert relay.stdout is not None
    relay.stdout.close()


def _address(machine: int) -> str:
    return f"10.77.0.{machine + 1}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _open_tun(index: int, namespace: str) -> int:
    """Open a new device for reading and writing; its other end is in the namespace, with its address."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    device = f"{namespace[-12:]}t"
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH14x", device.encode(), flags))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUMS | _LARGE_SEGMENTS)
    _ip("link", "set", device, "netns", namespace, "name", DEVICE)
    for words in (
        ["addr", "add", f"{_address(index)}/24", "dev", DEVICE],
        ["link", "set", DEVICE, "txqueuelen", "10000", "up"],
        ["link", "set", "lo", "up"],
    ):
        _ip("-n", namespace, *words)
    return descriptor


def _relay(namespaces: Sequence[str], *, delay_s: float, bytes_per_s: float) -> None:
    tuns = [_open_tun(index, namespace) for index, namespace in enumerate(namespaces)]
    _be_punctual()
    print("ready", flush=True)
    link = Link(n_machines=len(tuns), delay_s=delay_s, bytes_per_s=bytes_per_s)
    by_address = {bytes(map(int, _address(index).split("."))): index for index in range(len(tuns))}
    waiting: list[tuple[float, int, int, bytes]] = []  # arrival, number, target, packet
    number = 0
    while True:
        timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else -1
        readable = select.select(tuns, [], [], None if timeout_s < 0 else timeout_s)[0]
        now_s = time.monotonic()
        for tun in readable:
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(tun, _LARGEST)
                    target = by_address.get(packet[_DESTINATION])
                    if target is not None:
                        arrives_s = link.arrival(tuns.index(tun), target, n_bytes=len(packet), now_s=now_s)
                        heappush(waiting, (arrives_s, number, target, packet))
                        number += 1
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, packet = heappop(waiting)
            with contextlib.suppress(OSError):  # a machine that is cut off gets nothing
                os.write(tuns[target], packet)


def _be_punctual() -> None:
    """Wake up to the microsecond, before others that wait for the processor."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1000, 0, 0, 0)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


if __name__ == "__main__":
    *given, delay, rate = sys.argv[1:]
    _relay(given, delay_s=float(delay), bytes_per_s=float(rate))
