"""Which network interface of this machine leads to another one.

gloo asks for the address of this machine's own name, which is 127.0.0.1 or 127.0.1.1 on many Linux systems: ranks of
other machines cannot reach that. The interface that leads to the rank that all ranks know is right on every machine.
"""

import ipaddress
import socket

import psutil

_ANY_PORT = 9  # nothing is sent: connecting a UDP socket only chooses the route


def interface_towards(host: str) -> str | None:
    """The name of the interface through which a host is reached, itself included.

    None where that is the loopback, which gloo finds without help, or where no route or interface is known.

    >>> interface_towards("127.0.0.1") is None
    True
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as towards:
            towards.connect(address)
            own = towards.getsockname()[0]
    except OSError:
        return None
    if ipaddress.ip_address(own.partition("%")[0]).is_loopback:
        return None
    names = (name for name, addresses in psutil.net_if_addrs().items() if own in {each.address for each in addresses})
    return next(names, None)
