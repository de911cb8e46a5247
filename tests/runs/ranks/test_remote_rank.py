"""A rank's process on another machine, without the cluster in between: what is passed on, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from ml_pipeline.runs.ranks.ray_launcher import RemoteRank


@contextmanager
def remote_rank(code, *, folder=os.curdir, **variables):
    rank = RemoteRank()
    rank.start(["-c", code], variables, folder=str(folder))
    try:
        yield rank
    finally:
        rank.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
        rank.close()


def followed(rank):
    """All that it writes until its end, by stream, and its exit code."""
    written = {"stdout": b"", "stderr": b""}
    while True:
        output, exit_code = rank.news(10.0)
        for stream, chunk in output:
            written[stream] += chunk
        if exit_code is not None:
            return written["stdout"], written["stderr"], exit_code


@pytest.mark.parametrize("code", [0, 2, 75, 143])
def test_output_and_exit_code_are_passed_on(code):
    with remote_rank(f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({code})") as rank:
        assert followed(rank) == (f"out{os.linesep}".encode(), f"err{os.linesep}".encode(), code)


def test_more_output_than_is_kept_waits_for_its_reader():
    with remote_rank("import os\nfor _ in range(200): os.write(1, b'x' * 65536)") as rank:
        out, _, code = followed(rank)
    assert (len(out), code) == (200 * 65536, 0)


def test_it_gets_the_variables_and_the_folder(tmp_path):
    show = "import json, os; print(json.dumps([os.environ['RANK'], os.getcwd(), 'PATH' in os.environ]))"
    with remote_rank(show, folder=tmp_path, RANK="3") as rank:
        assert json.loads(followed(rank)[0]) == ["3", os.path.realpath(tmp_path), True]


def test_a_folder_that_this_machine_lacks_leaves_it_here(tmp_path):
    with remote_rank("import os; print(os.getcwd())", folder=tmp_path / "missing") as rank:
        assert followed(rank)[0].decode().strip() == os.getcwd()


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
def test_a_signal_that_this_thread_blocks_reaches_it_all_the_same():
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        code = "import signal, sys; signal.signal(2, lambda *_: sys.exit(130)); print(flush=True); signal.pause()"
        with remote_rank(code) as rank:
            assert rank.news(60.0).output == [("stdout", b"\n")]
            rank.send_signal(signal.SIGINT)
            assert followed(rank)[2] == 130
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone kills a child with its parent")
def test_it_ends_when_the_process_that_started_it_is_killed():
    starter = (
        "from ml_pipeline.runs.ranks.ray_launcher import RemoteRank\n"
        "rank = RemoteRank()\n"
        "rank.start(['-c', 'import os, signal; print(os.getpid(), flush=True); signal.pause()'], {}, folder='.')\n"
        "print(rank.news(60.0).output[0][1].decode(), flush=True)\n"
        "rank.news(600.0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE) as process:
        rank = psutil.Process(int(process.stdout.readline()))
        process.kill()
        rank.wait(60)


def test_a_signal_after_its_end_is_nothing():
    with remote_rank("") as rank:
        assert followed(rank)[2] == 0
        rank.send_signal(signal.SIGTERM)
