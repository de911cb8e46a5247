"""Small markets, as in the tests of trading."""

from tests.trading.conftest import random_case, tiny_market  # noqa: F401
