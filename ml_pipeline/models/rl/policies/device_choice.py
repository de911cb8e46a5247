"""Which device a name means."""

import torch

from ml_pipeline.config.errors import UserError


def choose_device(name: str) -> str:
    """The device that a name means: "cpu", "cuda", "mps", or one of several, such as "cuda:1".

    "auto" is the CPU, the fastest for perceptrons of usual sizes. Raises UserError if the machine lacks the device.
    """
    if name == "auto":
        return "cpu"
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    kind, _, number = name.partition(":")
    if not (number or "0").isdecimal() or int(number or 0) >= counts.get(kind, 0):
        found = ", ".join(kind for kind, count in counts.items() if count)
        raise UserError(f"The device {name} is not there; this machine has {found}. Pass one of them, or auto.")
    return name
