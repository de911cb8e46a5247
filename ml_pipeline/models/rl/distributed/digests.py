"""Whether ranks are still equal: a digest of all that they act and learn by."""

import hashlib
import json

import numpy as np

from ml_pipeline.models.rl.distributed.ranks import Ranks, RanksDiffer, described
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runtime.seeding import generator_state


def digest_of(policy: Policy, generator: np.random.Generator) -> str:
    """SHA-256 of the weights and statistics, and of where the generator of noise stands.

    90 us for a 64x64 network, 4 ms for a million weights.
    """
    state = policy.state_dict()
    rest = [state["normalizer"], state["value_normalizer"], generator_state(generator)]
    digest = hashlib.sha256(json.dumps(rest).encode())
    for weight in state["network"].values():
        digest.update(weight.cpu().numpy().tobytes())
    return digest.hexdigest()


def check_equal(ranks: Ranks, digests: list[str]) -> None:
    """Raise RanksDiffer where the digests of ranks, in their order, are not all the same.

    Those with the digest that most have count as right; of as many, that of the lowest rank.
    """
    right = max(digests, key=digests.count)
    others = [rank for rank, digest in enumerate(digests) if digest != right]
    if others:
        where = described(ranks.members, others)
        raise RanksDiffer(
            f"The weights of {where} differ from those of rank {digests.index(right)}, or their random numbers do, "
            "although they learned from the same rollouts; give all ranks the same seed, the same kind of processor "
            "and the same versions, and start them again from the last checkpoint."
        )
