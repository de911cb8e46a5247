"""Two sessions of a user do not trade one account."""

import os
import signal
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.account_claim import claim_account


class Account:
    name = "mine"

    def __init__(self, account_id=None):
        if account_id is not None:
            self.account_id = account_id


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    return tmp_path / "state"


def claim(account_id, folder="live/first", told=None):
    return claim_account(Account(account_id), Path(folder), [].append if told is None else told.append)


def test_a_second_session_is_refused_with_the_first_ones_name_and_others_are_not():
    with claim("PA1"):
        told = r"The account PA1 at mine is traded by .*live.first.*process \d+ on"
        with pytest.raises(UserError, match=told), claim("PA1", "live/second"):
            pass
        with claim("PA2", "live/second"), claim(None), claim(None):
            pass
    with claim("PA1", "live/second"):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks")
def test_a_killed_session_leaves_no_lock():
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            with claim("PA1"):
                os.write(write, b"x")
                signal.pause()
        finally:
            os._exit(0)
    try:
        assert os.read(read, 1) == b"x"
        with pytest.raises(UserError, match=f"process {child} on"), claim("PA1", "live/second"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)
    with claim("PA1", "live/second"):
        pass


def test_a_lock_that_cannot_be_stored_is_told_and_the_session_goes_on(state):
    state.write_text("no folder")
    told = []
    with claim("PA1", told=told):
        pass
    (sentence,) = told
    assert "The account PA1 cannot be locked" in sentence
    assert "make sure that no other session trades it" in sentence
