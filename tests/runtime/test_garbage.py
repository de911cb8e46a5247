"""What a command imports is kept out of the search for garbage; what was garbage before is not kept."""

import gc
import subprocess
import sys

import pytest

from ml_pipeline.runtime.garbage import keeping_imports

CYCLES = """
import gc, weakref
from ml_pipeline.runtime.garbage import keeping_imports
from ml_pipeline.runtime.interrupts import exit_at_once_on_signals

class Cycle:
    def __init__(self): self.own = self

exit_at_once_on_signals("it")
gc.collect()
before = weakref.ref(Cycle())
try:
    with keeping_imports():
        assert not gc.isenabled()
        kept = weakref.ref(Cycle())
        {end}
except KeyError:
    pass
after = weakref.ref(Cycle())
gc.collect()
print(before(), kept() is None, after(), gc.isenabled(), gc.get_freeze_count() > 1_000)
"""


@pytest.mark.parametrize("end", ["pass", "raise KeyError"])
def test_a_command_s_imports_are_never_searched_again_and_all_else_is(end):
    command = [sys.executable, "-c", CYCLES.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["None", "False", "None", "True", "True"]


def test_a_process_that_is_no_command_s_keeps_its_own_ways():
    before = gc.get_freeze_count()
    with keeping_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before
