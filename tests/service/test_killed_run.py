"""A run's process is asked to stop, and killed with all that it started."""

import subprocess
import sys

import pytest

from ml_pipeline.runtime.process_identity import identity_of, is_alive
from ml_pipeline.service.processes import RunProcess, ask_to_stop
from tests.models.rl.core.workers.probes import wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills by SIGKILL")
DEAF = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "input()"])
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("leads", [True, False])
def test_what_does_not_stop_is_killed_also_where_it_leads_no_group(leads, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", DEAF], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=leads
    ) as process:
        child = identity_of(int(process.stdout.readline()))
        watched = RunProcess(identity_of(process.pid))
        assert not watched.look(grace_s=0.0)
        assert ask_to_stop(tmp_path, watched.process)
        assert not watched.look(grace_s=0.0)  # nobody limited its time
        watched.kill_after(0.0)
        assert watched.look(grace_s=60.0)
        process.wait()
        assert not watched.look(grace_s=60.0)
        assert watched.has_ended
        process.stdin.close()  # on which the child waits that was not in the group
        wait_until(lambda: not is_alive(child))
