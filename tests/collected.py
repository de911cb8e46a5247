"""Which tests this session found, with those that its marks leave out."""

import pytest

COLLECTED = pytest.StashKey[frozenset[str]]()
