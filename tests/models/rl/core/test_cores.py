"""Quotas of control groups, from files written here."""

import os
from pathlib import Path

import pytest

from ml_pipeline.models.rl.core import cores


@pytest.fixture
def quota_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cpu.max of the root group, which every process is in."""
    monkeypatch.setattr(cores, "_CGROUP_ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    return tmp_path / "cpu.max"


def test_affinity_counts_where_there_is_no_quota(quota_file: Path) -> None:
    assert cores.usable_cores() == 4.0
    quota_file.write_text("max 100000\n")
    assert cores.usable_cores() == 4.0


def test_the_smaller_of_quota_and_affinity_counts(quota_file: Path) -> None:
    quota_file.write_text("150000 100000\n")
    assert cores.usable_cores() == 1.5
    quota_file.write_text("800000 100000\n")
    assert cores.usable_cores() == 4.0
