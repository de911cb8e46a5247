"""Signals that end a command: at once while it imports, by an exception while it works."""

import gc
import os
import signal
import subprocess
import sys
import threading

import pytest

from ml_pipeline.runtime.interrupts import Interrupted, ending_signals, keeping_imports, raising_on_signals

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def run(code):
    code = f"import os, signal, sys, time\nfrom ml_pipeline.runtime.interrupts import *\n{code}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_within_the_block_a_signal_raises_and_after_it_the_handlers_are_back(number):
    before = {each: signal.getsignal(each) for each in SIGNALS}
    with pytest.raises(Interrupted) as stop, raising_on_signals():
        signal.raise_signal(number)
    assert (stop.value.exit_code, str(stop.value)) == (128 + number, f"Stopped by {number.name}.")
    assert {each: signal.getsignal(each) for each in SIGNALS} == before


def test_a_hangup_that_is_ignored_stays_ignored():
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ending_signals() == [signal.SIGINT, signal.SIGTERM]
        with raising_on_signals():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_another_thread_leaves_the_handlers_alone():
    before, seen = (signal.getsignal(signal.SIGINT), sys.unraisablehook), []

    def work():
        with raising_on_signals():
            seen.append((signal.getsignal(signal.SIGINT), sys.unraisablehook))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert seen == [before]


def test_a_process_that_begins_ends_at_once_whatever_catches_exceptions():
    done = run("""
exit_at_once_on_signals("it")
try:
    signal.raise_signal(signal.SIGTERM)
except BaseException:
    print("caught")
""")
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "it: Stopped by SIGTERM.\n")


def test_exiting_at_once_within_work_ends_at_once_again():
    done = run("""
exit_at_once_on_signals("it")
with raising_on_signals():
    try:
        signal.raise_signal(signal.SIGINT)
    except Interrupted:
        print("caught", flush=True)
    with exiting_at_once():
        signal.raise_signal(signal.SIGINT)
""")
    assert (done.returncode, done.stdout, done.stderr) == (130, "caught\n", "it: Stopped by SIGINT.\n")


def test_exiting_at_once_changes_nothing_in_a_process_that_did_not_begin_so():
    done = run("""
with raising_on_signals():
    try:
        with exiting_at_once():
            signal.raise_signal(signal.SIGINT)
    except Interrupted as stop:
        print(stop)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Stopped by SIGINT.\n", "")


@pytest.mark.parametrize("how", ["", "once=True"])
def test_an_exception_that_is_lost_in_a_destructor_comes_again_and_is_not_printed(how):
    done = run(f"""
class Losing:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

with raising_on_signals({how}):
    try:
        Losing()
        time.sleep(60)
    except Interrupted as stop:
        print(stop)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Stopped by SIGINT.\n", "")


def test_a_fork_does_not_inherit_what_the_handler_does():
    done = run("""
with raising_on_signals():
    child = os.fork()
    if not child:
        signal.raise_signal(signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "143\n", "")


BOTH_AT_ONCE = """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
"""


def test_of_two_signals_at_once_only_the_first_raises():
    done = run(f"""
with raising_on_signals(once=True):
    try:
        exec({BOTH_AT_ONCE!r})
    except Interrupted as stop:
        signal.raise_signal(signal.SIGHUP)
        print(stop)
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Stopped by SIGINT.\n", "")


@pytest.mark.parametrize(
    "where",
    [
        "signal.raise_signal(signal.SIGTERM)",
        "import atexit; atexit.register(signal.raise_signal, signal.SIGTERM)",
        "sys.modules['late'] = Late()",  # which goes while Python ends
    ],
    ids=["after the block", "at exit", "in the last moment"],
)
def test_a_process_that_a_signal_ended_keeps_its_exit_code_to_its_last_moment(where):
    done = run(f"""
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid()):
        kill(pid, {signal.SIGTERM:d})
exit_at_once_on_signals("it")
try:
    with raising_on_signals(once=True):
        signal.raise_signal(signal.SIGINT)
except Interrupted as stop:
    {where}
    sys.exit(stop.exit_code)
""")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_later_signal_may_force_the_end_and_then_it_counts():
    done = run("""
exit_at_once_on_signals("it")
try:
    with raising_on_signals(once=True):
        try:
            signal.raise_signal(signal.SIGINT)
        except Interrupted:
            with raising_once_more():
                signal.raise_signal(signal.SIGTERM)
except Interrupted as stop:
    signal.raise_signal(signal.SIGINT)
""")
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


CYCLES = """
import gc, weakref
from ml_pipeline.runtime.interrupts import keeping_imports
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
