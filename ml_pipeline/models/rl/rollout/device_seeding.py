"""Random generators of a run that live on a device, so that their numbers need no transfer."""

import torch

from ml_pipeline.runtime.seeding import random_generator


def device_generator(seed: int, purpose: str, device: torch.device) -> torch.Generator:
    """As `random_generator`, on a device; its numbers differ from that one's, and between kinds of devices.

    >>> cpu = torch.device("cpu")
    >>> first, again = (torch.rand(2, generator=device_generator(3, "actions", cpu)) for _ in range(2))
    >>> torch.equal(first, again)
    True
    """
    return torch.Generator(device).manual_seed(int(random_generator(seed, purpose).integers(2**63 - 1)))
