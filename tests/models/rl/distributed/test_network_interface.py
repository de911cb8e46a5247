"""Which interface leads to another machine, on the interfaces that this machine has."""

import socket

import psutil
import pytest

from ml_pipeline.models.rl.distributed.rendezvous import interface_towards

OWN = [
    (name, each.address)
    for name, addresses in psutil.net_if_addrs().items()
    for each in addresses
    if each.family == socket.AF_INET and not each.address.startswith("127.")
]


@pytest.mark.parametrize(("name", "address"), OWN, ids=[name for name, _ in OWN])
def test_an_own_address_is_reached_through_its_interface(name, address):
    assert interface_towards(address) == name


def test_this_machine_and_unknown_names_take_none():
    assert interface_towards("localhost") is None
    assert interface_towards("no-such-machine.invalid") is None
