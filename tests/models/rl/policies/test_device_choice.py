"""What a device's name means, and which names are refused."""

import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.policies.threads_and_device import choose_device


def test_auto_is_the_cpu():
    assert (choose_device("auto"), choose_device("cpu"), choose_device("cpu:0")) == ("cpu", "cpu", "cpu:0")


def test_one_of_two_gpus_is_named_by_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert (choose_device("cuda"), choose_device("cuda:1")) == ("cuda", "cuda:1")
    with pytest.raises(UserError, match=r"The device cuda:2 is not there; this machine has cpu, cuda\."):
        choose_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "cpu:one", "cuda:-1", ""])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(UserError, match=f"The device {name} is not there; this machine has cpu"):
        choose_device(name)


def test_ranks_of_a_machine_take_its_gpus_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for rank, expected in enumerate(["cuda:0", "cuda:1", "cuda:0"]):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        assert choose_device("cuda") == expected
    assert choose_device("cuda:1") == "cuda:1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda") == "cuda"


@pytest.mark.parametrize("text", ["", "two", "-1"])
def test_a_place_on_the_machine_that_is_no_number_is_refused(monkeypatch, text):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", text)
    with pytest.raises(UserError, match=f'^LOCAL_RANK must be a whole number where ranks are started, but is "{text}"'):
        choose_device("cuda")
