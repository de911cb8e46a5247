"""How many examples a property is tried on: few daily, and many in `make test-system`."""

from hypothesis import settings

# Of a property whose example takes a tenth of a second and more.
COSTLY = settings().max_examples // 4


def searched(examples: int) -> int:
    """This number of examples, the same each time; 1,000 new ones with `--hypothesis-profile search`."""
    return examples if settings().derandomize else 1_000
