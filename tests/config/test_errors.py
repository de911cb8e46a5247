"""Which command installs an extra."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from ml_pipeline.config import errors
from ml_pipeline.config.errors import DISTRIBUTION, install_extra

CLONE = Path(errors.__file__).parents[2]


def test_the_distribution_is_that_of_the_project():
    assert tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]["name"] == DISTRIBUTION


def test_an_extra_is_installed_into_the_clone_that_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(CLONE)
    assert install_extra("tune") == 'pip install -e ".[tune]"'
    monkeypatch.chdir(tmp_path)
    assert install_extra("tune") == f'pip install -e "{CLONE}[tune]"'


def test_an_installed_package_names_its_distribution(tmp_path):
    module = Path(shutil.copytree(CLONE / "ml_pipeline" / "config", tmp_path / "ml_pipeline" / "config")) / "errors.py"
    program = f"import runpy; print(runpy.run_path({str(module)!r})['install_extra']('tune'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == 'pip install "parallel-ppo[tune]"\n'
