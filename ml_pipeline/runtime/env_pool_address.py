"""Where this process leases warm worker processes, if anywhere."""

import os

ENV_POOL_VARIABLE = "ML_PIPELINE_ENV_POOL"
"""The environment variable that holds the address of an `EnvPool`; runs inherit it from their service."""


def env_pool_address() -> str | None:
    """The address of the pool; None without one."""
    return os.environ.get(ENV_POOL_VARIABLE) or None
