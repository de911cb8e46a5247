"""Which device a name means."""

import os

import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.runtime.rank_variables import local_rank


def choose_device(name: str) -> str:
    """The device that a name means: "cpu", "cuda", "mps", or one of several, such as "cuda:1".

    "auto" is the CPU, the fastest for perceptrons of usual sizes. Where torchrun, or whatever sets its LOCAL_RANK, has
    started several ranks on a machine with several GPUs, "cuda" is the rank's own, in turn. Raises UserError if the
    machine lacks the device, and if LOCAL_RANK, where it chooses, is no number.
    """
    if name == "auto":
        return "cpu"
    if name == "cuda" and torch.cuda.device_count() > 1 and (rank := local_rank(os.environ)) is not None:
        return f"cuda:{rank % torch.cuda.device_count()}"
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    kind, _, number = name.partition(":")
    if not (number or "0").isdecimal() or int(number or 0) >= counts.get(kind, 0):
        found = ", ".join(kind for kind, count in counts.items() if count)
        raise UserError(f"The device {name} is not there; this machine has {found}. Pass one of them, or auto.")
    return name
