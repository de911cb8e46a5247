"""How many examples a property is tried on: few daily, and many in `make test-system`."""

from hypothesis import settings

# Of a property whose example takes a tenth of a second and more.
COSTLY = settings().max_examples // 4
