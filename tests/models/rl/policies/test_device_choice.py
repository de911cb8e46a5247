"""What a device's name means, and which names are refused."""

import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.policies.device_choice import choose_device


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
