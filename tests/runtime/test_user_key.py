"""What this user signed is known again, by every process of the user's and by nobody else's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ml_pipeline.runtime.user_key import NoKey, is_signed, key_path, sign

VARIABLE = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_STATE_HOME"
posix = pytest.mark.skipif(os.name == "nt", reason="needs owners and modes")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "state"))
    return tmp_path


def test_only_the_same_content_and_signature_are_known_again():
    signature = sign(b"content")
    assert is_signed(b"content", signature)
    assert not is_signed(b"content.", signature)
    for other in ("", "-", "ü", signature[:-1], signature[::-1]):
        assert not is_signed(b"content", other)


def test_another_users_signature_is_not_known(home, monkeypatch):
    signature = sign(b"content")
    monkeypatch.setenv(VARIABLE, str(home / "another"))
    assert not is_signed(b"content", signature)
    assert not (home / "another").exists()  # looking makes no key
    assert sign(b"content") != signature


@posix
def test_the_key_is_for_the_users_eyes_only():
    sign(b"content")
    assert key_path().stat().st_mode & 0o777 == 0o600
    assert key_path().parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in key_path().parent.iterdir()] == ["signing.key"]


@posix
@pytest.mark.parametrize("mode", [0o640, 0o606, 0o620])
def test_a_key_that_others_can_reach_signs_nothing(mode):
    signature = sign(b"content")
    key_path().chmod(mode)
    assert not is_signed(b"content", signature)
    with pytest.raises(NoKey, match=r"other users can read or write .*; delete it"):
        sign(b"content")


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_key_cut_short_signs_nothing(content):
    key_path().parent.mkdir(parents=True)
    key_path().write_bytes(content)
    key_path().chmod(0o600)
    with pytest.raises(NoKey, match="is not 32 bytes"):
        sign(b"content")


def test_a_folder_that_cannot_be_written_is_said(home, monkeypatch):
    (home / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(home / "file"))
    with pytest.raises(NoKey, match=r"signing\.key cannot be written"):
        sign(b"content")
    assert not is_signed(b"content", "")


@posix
@pytest.mark.parametrize("folder", ["", "relative"])
def test_without_a_home_the_working_directory_gives_no_key(folder, tmp_path, monkeypatch):
    """It may be another's, as the key in it would be."""
    monkeypatch.setenv(VARIABLE, folder)
    monkeypatch.setenv("HOME", "relative")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoKey, match="there is no home folder"):
        sign(b"content")
    assert not list(tmp_path.iterdir())


def test_processes_that_begin_at_once_share_one_key():
    code = "from ml_pipeline.runtime.user_key import sign; print(sign(b'content'))"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    signatures = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert len(signatures) == 1
    assert is_signed(b"content", signatures.pop())
    assert [path.name for path in Path(key_path().parent).iterdir()] == ["signing.key"]
