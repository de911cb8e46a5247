"""The wheel that users install: what is in it, and that it trains from another folder without the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import ml_pipeline

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "ml_pipeline"
SMALL = [
    "--n-envs",
    "2",
    "--n-steps",
    "32",
    "--minibatch-size",
    "64",
    "--hidden-sizes",
    "8",
    "--total-timesteps",
    "128",
]
CARTPOLE = ["--env-id", "CartPole-v1", "--eval-episodes", "1"]


def requirements(path):
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in lines if line]


def test_both_lists_of_requirements_are_the_same_but_for_pytest():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    listed = requirements(REPOSITORY / "requirements.txt")
    assert sorted(listed) == sorted([*project["dependencies"], "pytest>=8.0"])


def name_of(requirement):
    return re.match(r"[\w-]+", requirement)[0]


def run(command, *, cwd, timeout_s=300, **variables):
    """The finished process. It finds neither the repository nor what the user's home may hold."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"HOME": str(cwd), **variables}
    command = [str(part) for part in command]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy: what an earlier build left in the repository does not get into it."""
    folder = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "checkpoints")
    shutil.copytree(REPOSITORY, folder / "source", ignore=left_out)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--quiet", "-w", str(folder)]
    done = subprocess.run(command, cwd=folder / "source", capture_output=True, text=True, timeout=300, check=False)
    if done.returncode and "No matching distribution found for setuptools" in done.stderr:
        pytest.skip("no package index can be reached, from which to get the build backend")
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A virtual environment that holds the wheel, and borrows its dependencies from this one: their folder comes last,
    and what is installed there in editable mode stays unknown, because Python reads no .pth file in it."""
    folder = tmp_path_factory.mktemp("environment")
    run([sys.executable, "-m", "venv", "--without-pip", folder], cwd=folder)
    bin_folder = folder / ("Scripts" if os.name == "nt" else "bin")
    python = bin_folder / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel], cwd=folder)
    purelib = run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], cwd=folder).stdout.strip()
    (Path(purelib) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return bin_folder


@pytest.mark.system
def test_it_holds_every_module_and_nothing_else(wheel):
    names = {Path(name) for name in zipfile.ZipFile(wheel).namelist()}
    is_ours = lambda path: path.suffix in {".py", ".yaml"} or path.name == "py.typed" or path.parent.name == "assets"  # noqa: E731
    ours = {path.relative_to(REPOSITORY) for path in PACKAGE.rglob("*") if is_ours(path)}
    assert {name for name in names if not name.parts[0].endswith(".dist-info")} == ours
    assert Path("ml_pipeline/py.typed") in ours


@pytest.mark.system
def test_its_metadata_say_what_it_needs(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = message_from_string(archive.read(name).decode())
    always = {line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    listed = requirements(REPOSITORY / "requirements.txt")
    assert set(map(name_of, always)) == {*map(name_of, listed)} - {"pytest"}
    assert metadata["Version"] == ml_pipeline.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata.get_payload().strip() == (REPOSITORY / "README.md").read_text().strip()


@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", [["ml-pipeline", "train"], ["python", "-m", "ml_pipeline.train_ppo"]], ids=" ".join)
def test_it_trains_from_another_folder(command, installed, tmp_path):
    where = "import ml_pipeline; print(ml_pipeline.__file__)"
    assert installed.parent in Path(run([installed / "python", "-c", where], cwd=tmp_path).stdout.strip()).parents
    program, *arguments = command
    done = run([installed / program, *arguments, *SMALL, *CARTPOLE], cwd=tmp_path)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert f"Run folder: {Path('checkpoints') / folder.name}\n" in done.stdout
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["time/global_step"] == 128


@pytest.mark.system
@pytest.mark.timeout(600)
def test_the_built_in_market_is_inside(installed, tmp_path):
    done = run([installed / "ml-pipeline", "train", *SMALL], cwd=tmp_path)
    assert "buy and hold" in done.stdout
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert (folder / "report.html").exists()


@pytest.mark.system
def test_its_types_are_seen(installed, tmp_path):
    """A type checker reads the annotations of the installed package, by the short names too."""
    (tmp_path / "own.py").write_text("from ml_pipeline import PPOConfig\n\nPPOConfig(gamma='fast')\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", installed / "python", "own.py"]
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 'Argument "gamma" to "PPOConfig" has incompatible type "str"; expected "float"' in done.stdout
