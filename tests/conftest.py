"""What holds for every test."""

import os

import hypothesis
import pytest

# Before torch is imported: on a busy machine its threads wait for each other by spinning, seconds in place of millis.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The parts of a contract are no test modules, whose asserts say by themselves what they compared.
pytest.register_assert_rewrite("tests.contracts")

# A shared machine may stop for longer than Hypothesis allows an example; pytest's timeout still holds.
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")
