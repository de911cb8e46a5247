"""What is printed where nobody can take it; in processes of their own, whose streams are changed for good."""

import os
import select
import subprocess
import sys
import threading

import pytest

from ml_pipeline.runtime import standard_streams

GUARD = "import os, sys\nfrom ml_pipeline.runtime.standard_streams import OutputLost, guard_standard_streams\n"
FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")


def run(code, *, flags=(), **streams):
    command = [sys.executable, *flags, "-c", GUARD + code]
    return subprocess.run(command, text=True, timeout=60, check=False, **{"stderr": subprocess.PIPE, **streams})


@FULL
@pytest.mark.parametrize("flags", [[], ["-u"]], ids=str)
def test_a_stream_that_fails_is_silent_from_then_on_for_everybody(flags):
    code = """
import subprocess
earlier = sys.stdout  # as a logging handler may keep it
guard_standard_streams(outlive_readers=True)
for i in range(3):
    print("lost", flush=True)
print("lost as well", file=earlier, flush=True)
os.write(1, b"of a library in C")
subprocess.run(["echo", "of a program"], check=True)
print("gone on", file=sys.stderr)
"""
    with open("/dev/full", "w") as full:
        done = run(code, flags=flags, stdout=full)
    assert (done.returncode, done.stderr) == (0, "gone on\n")


@FULL
def test_stderr_may_fail_and_stdout_goes_on():
    with open("/dev/full", "w") as full:
        code = "guard_standard_streams(outlive_readers=False)\nprint('x', file=sys.stderr)\nprint('gone on')"
        done = run(code, stderr=full, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, "gone on\n")


@FULL
def test_a_process_that_does_not_outlive_its_reader_is_told_once():
    code = """
guard_standard_streams(outlive_readers=False)
for i in range(2):
    try:
        print("lost", flush=True)
    except OutputLost as lost:
        print(lost, lost.reader_left, file=sys.stderr)
guard_standard_streams(outlive_readers=True)
print("nor does this matter")
"""
    with open("/dev/full", "w") as full:
        done = run(code, stdout=full)
    assert (done.returncode, done.stderr) == (0, "No space left on device False\n")


@pytest.mark.skipif(os.name == "nt", reason="there every pipe waits")
def test_a_slow_reader_of_a_pipe_that_does_not_wait_gets_everything(monkeypatch):
    reading, writing = os.pipe()
    received = []
    data = bytes(range(256)) * 4096

    def read():
        with open(reading, "rb") as file:
            received.append(file.read())

    reader = threading.Thread(target=read)

    def wait(*arguments):
        if not received and not reader.is_alive():
            reader.start()
        return usual(*arguments)

    usual = select.select
    monkeypatch.setattr(standard_streams.select, "select", wait)  # nobody reads before the pipe is full
    os.set_blocking(writing, False)
    with standard_streams._Output(writing, "w") as output:
        assert output.write(data) == len(data)
    reader.join(30)
    assert received == [data]


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes the stream")
def test_a_stream_that_was_closed_takes_what_is_printed_and_no_file_gets_its_number():
    code = """
guard_standard_streams(outlive_readers=True)
print("nowhere")
descriptor = os.open(os.devnull, os.O_RDONLY)
print(sys.stdout is not None, descriptor > 2, file=sys.stderr)
"""
    command = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-c", GUARD + code]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "True True\n")
