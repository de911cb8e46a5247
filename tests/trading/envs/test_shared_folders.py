"""Markets that runs of one pool share: written once, and removed with their last user."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ml_pipeline.runtime.env_limit import ENV_POOL_VARIABLE
from tests.models.rl.core.workers.probes import ROOT

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(os.name != "posix", reason="needs locks of files")]

USER = """
import os, sys
from dataclasses import replace
from pathlib import Path
import numpy as np
from ml_pipeline.trading.envs.prepared_market import PreparedMarket

close = np.arange(6.0).reshape(3, 2) + float(sys.argv[1])
market = PreparedMarket(
    symbols=("A", "B"), times=np.arange(3).astype("datetime64[D]"), open=close, close=close, tradable=close > -1,
    features=close.astype(np.float32), clip=5.0, periods_per_year=252.0,
).mapped()
assert (market.close == close).all() and (market.mapped().close == close).all()
print(Path(market.close.filename).parent, flush=True)
sys.stdin.read()
"""


def user(tmp_path: Path, value: float = 0.0, *, pool: str = "some-pool") -> tuple["subprocess.Popen[str]", Path]:
    """A process that maps a market, and the folder where it lies."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), ENV_POOL_VARIABLE: pool}
    process = subprocess.Popen(
        [sys.executable, "-c", USER, str(value)], text=True, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def leave(process: "subprocess.Popen[str]") -> None:
    process.communicate("", timeout=60)
    assert process.returncode == 0


@pytest.mark.slow
def test_runs_of_one_pool_share_equal_markets_until_the_last_has_left(tmp_path):
    first, folder = user(tmp_path)
    second, same = user(tmp_path)
    other, another = user(tmp_path, 1.0)
    assert folder == same != another
    leave(first)
    assert np.load(folder / "close.npy").shape == (3, 2)
    leave(second)
    assert not folder.exists()
    assert another.exists()
    leave(other)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_killed_runs_left_is_removed_by_the_next(tmp_path):
    killed, folder = user(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert folder.exists()
    other, _ = user(tmp_path, 1.0)
    assert not folder.exists()
    leave(other)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_root_that_others_may_write_is_not_used(tmp_path):
    root = tmp_path / f"ml-pipeline-markets-{os.geteuid()}"
    root.mkdir()
    root.chmod(0o777)
    process, folder = user(tmp_path)
    assert folder.parent == tmp_path
    leave(process)


@pytest.mark.slow
def test_without_a_pool_a_market_is_a_processes_own(tmp_path):
    first, folder = user(tmp_path, pool="")
    second, other = user(tmp_path, pool="")
    assert folder != other
    leave(first)
    leave(second)
    assert list(tmp_path.iterdir()) == []
