"""Calls in a process of their own: what they return, raise, and how they end their process."""

import os
import signal
import sys
from functools import partial

import pytest

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.separate_process import CallFailed, run_in_process
from ml_pipeline.models.rl.core.stepping.errors import EnvFailedError


def calls(end):
    yield "construction"
    env = CountingEnv()
    yield "reset()"
    env.reset()
    end()
    return os.getpid()


def raise_it():
    raise ValueError("not now")


def test_the_result_comes_back_from_another_process():
    assert run_in_process(partial(calls, lambda: None)) not in (None, os.getpid())


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (partial(os._exit, 0), "ends its process with code 0 in reset()"),
        (partial(sys.exit, 3), "ends its process with code 3 in reset()"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "is killed by SIGSEGV in reset()"),
    ],
)
def test_a_call_that_ends_its_process_is_named(end, how):
    with pytest.raises(CallFailed) as told:
        run_in_process(partial(calls, end))
    assert told.value.how == how


def test_what_a_call_raises_is_raised_here():
    with pytest.raises(EnvFailedError) as told:
        run_in_process(partial(calls, raise_it))
    assert isinstance(told.value, ValueError)
    assert str(told.value.__cause__) == "not now"
