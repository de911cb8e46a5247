"""Whole or not at all, and no code in it."""

import errno
import os
import zipfile

import numpy as np
import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.checkpoint import load_checkpoint, save_checkpoint
from ml_pipeline.runtime.seeding import generator_state, random_generator, restore_generator

STATE = {"weights": {"a": torch.arange(5.0)}, "count": 3, "nested": [1.5, None, "x"]}


def test_what_is_saved_is_what_is_loaded(tmp_path):
    save_checkpoint(tmp_path / "latest.pt", STATE)
    loaded = load_checkpoint(tmp_path / "latest.pt")
    assert torch.equal(loaded["weights"]["a"], STATE["weights"]["a"])
    assert (loaded["count"], loaded["nested"]) == (3, [1.5, None, "x"])
    assert os.listdir(tmp_path) == ["latest.pt"]


def test_a_folder_that_was_deleted_is_not_made_anew(tmp_path):
    with pytest.raises(UserError, match="Cannot write the checkpoint"):
        save_checkpoint(tmp_path / "gone" / "latest.pt", STATE)
    assert os.listdir(tmp_path) == []


def test_a_generator_goes_on_where_it_was_saved(tmp_path):
    generator = random_generator(5, "actions")
    generator.random(7, dtype=np.float32)
    save_checkpoint(tmp_path / "a.pt", {"generator": generator_state(generator)})
    other = random_generator(6, "actions")
    restore_generator(other, load_checkpoint(tmp_path / "a.pt")["generator"])
    assert other.random(4).tolist() == generator.random(4).tolist()


def test_a_failed_write_leaves_the_old_checkpoint_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "latest.pt"
    save_checkpoint(path, STATE)
    before = path.read_bytes()

    def disk_full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(UserError, match=r"no space left on device\. The checkpoint before it is untouched"):
        save_checkpoint(path, {"count": 4})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["latest.pt"]


def test_a_disk_that_is_full_is_told_in_one_sentence(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"Cannot write the checkpoint .*: no space left on device") as caught:
        save_checkpoint(tmp_path / "latest.pt", STATE)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_checkpoint_cut_short_is_named(tmp_path, share):
    path = tmp_path / "latest.pt"
    save_checkpoint(path, STATE)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match=r"latest\.pt cannot be read as a checkpoint"):
        load_checkpoint(path)


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(UserError, match="There is no checkpoint"):
        load_checkpoint(tmp_path / "none.pt")
    with pytest.raises(UserError, match="is a folder"):
        load_checkpoint(tmp_path)
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        load_checkpoint(tmp_path / "text.pt")
    torch.save({"weights": 1}, tmp_path / "other.pt")
    with pytest.raises(UserError, match="is not a checkpoint of this program"):
        load_checkpoint(tmp_path / "other.pt")


def test_a_checkpoint_that_unpacks_to_more_than_it_holds_is_refused_unread(tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "latest.pt", {"weights": torch.zeros(1 << 16)})
    with zipfile.ZipFile(tmp_path / "latest.pt") as whole, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as bomb:
        for info in whole.infolist():
            bomb.writestr(info.filename, whole.read(info), zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(zipfile.ZipFile, "testzip", None)  # would unpack it
    with pytest.raises(UserError, match=r"bomb\.pt cannot be read as a checkpoint: it unpacks to more than its size"):
        load_checkpoint(tmp_path / "bomb.pt")


class _Code:
    def __reduce__(self):
        return (print, ("code ran",))


def test_a_checkpoint_that_holds_code_is_refused(tmp_path, capsys):
    torch.save({"format": "ml-pipeline checkpoint", "evil": _Code()}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="cannot be read"):
        load_checkpoint(tmp_path / "evil.pt")
    assert "code ran" not in capsys.readouterr().out


def test_a_checkpoint_of_another_version_is_named(tmp_path):
    torch.save({"format": "ml-pipeline checkpoint", "version": 1}, tmp_path / "old.pt")
    with pytest.raises(UserError, match=r"old\.pt has checkpoint version 1, but this program reads 3; use the release"):
        load_checkpoint(tmp_path / "old.pt")


def test_a_bit_that_flipped_in_the_weights_is_named(tmp_path):
    path = tmp_path / "latest.pt"
    save_checkpoint(path, {"weights": torch.arange(4096.0)})
    content = bytearray(path.read_bytes())
    content[content.index(torch.arange(4096.0).numpy().tobytes()) + 999] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is truncated, damaged or another kind of file"):
        load_checkpoint(path)
