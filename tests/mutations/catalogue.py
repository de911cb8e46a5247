"""Mistakes that are easily made in this field, by subject, each with the test that must notice."""

from tests.mutations.compiled_catalogue import COMPILED
from tests.mutations.device_catalogue import ON_A_DEVICE
from tests.mutations.metrics_catalogue import BOOKS, METRICS, SANITY
from tests.mutations.mutation import Mutation
from tests.mutations.network_catalogue import BEGINNINGS, BOUNDS, DISTRIBUTIONS, IMAGES, MASKS
from tests.mutations.rollout_catalogue import ACTIONS_TAKEN, GAE, MEMORY, NORMALIZATION
from tests.mutations.run_catalogue import FOLDERS, JUDGING, RESUMING, SAVING
from tests.mutations.service_catalogue import LEASES, QUEUE, SCALING
from tests.mutations.trading_catalogue import ACCOUNTS, EPISODES, MARKETS
from tests.mutations.update_catalogue import LOSS, SEQUENCES, STEPS
from tests.mutations.vec_env_catalogue import ENVIRONMENTS, WORKERS

MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "environments": (*ENVIRONMENTS, *WORKERS),
    "rollouts": (*GAE, *NORMALIZATION, *MEMORY, *ACTIONS_TAKEN),
    "devices": ON_A_DEVICE,
    "updates": (*LOSS, *STEPS, *SEQUENCES),
    "compiled": COMPILED,
    "networks": (*BEGINNINGS, *DISTRIBUTIONS, *BOUNDS, *MASKS, *IMAGES),
    "runs": (*SAVING, *FOLDERS, *RESUMING, *JUDGING),
    "service": (*SCALING, *LEASES, *QUEUE),
    "trading": (*MARKETS, *ACCOUNTS, *EPISODES),
    "figures": (*METRICS, *BOOKS, *SANITY),
}
"""By subject."""
