"""What a worker finds left behind, in a process of its own that is known from its beginning."""

import subprocess
import sys

import pytest

from ml_pipeline.models.rl.core.workers.warm import messages

pytestmark = pytest.mark.skipif(messages.why_unavailable() is not None, reason="there are no warm workers here")

BEGIN = "import threading, time; from ml_pipeline.models.rl.core.workers.warm.wipe import CleanState; "


def left_behind(code: str) -> str:
    program = f"{BEGIN}clean = CleanState(); {code}; print(clean.restore(), flush=True)"
    command = [sys.executable, "-c", program]
    # A group of its own, as a warm worker has.
    return subprocess.run(command, check=True, capture_output=True, text=True, process_group=0).stdout.strip()


def test_a_thread_that_is_about_to_end_is_not_left_behind():
    assert left_behind("threading.Thread(target=time.sleep, args=(0.1,)).start()") == "[]"


def test_a_thread_that_goes_on_is_left_behind():
    assert "threads are left" in left_behind("threading.Thread(target=threading.Event().wait, daemon=True).start()")
