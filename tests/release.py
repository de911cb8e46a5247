"""Installs the distributions of dist/ into empty environments, and uses them there as a newcomer would.

    python -m tests.release dist

With the oldest and the newest supported Python on this machine: install the wheel with what it requires; from a folder
outside the repository run the Python of the README, a training on the built-in market and the self-test; then install
the source distribution in place of the wheel and run the self-test again. `make release` builds both first.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser("tests.release", description=__doc__)
    parser.add_argument("dist", type=Path, help="folder with one wheel and one source distribution")
    dist = parser.parse_args().dist.resolve()
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    found = {version: python for version in supported() if (python := find_python(version))}
    missing = [version for version in supported() if version not in found]
    if missing:
        print(f"Not found on this machine: Python {', '.join(missing)}")
    if not found:
        sys.exit("No supported Python was found; install one, or add it to PATH.")
    for version in dict.fromkeys([min(found, key=minor), max(found, key=minor)]):
        print(f"Python {version} ({found[version]})", flush=True)
        with tempfile.TemporaryDirectory(prefix="release-") as folder:
            check(found[version], wheel, source, Path(folder))


def supported() -> list[str]:
    """The Python versions of pyproject.toml's classifiers, such as "3.12", oldest first."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    found = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)
    return sorted(found, key=minor)


def minor(version: str) -> int:
    return int(version.partition(".")[2])


def find_python(version: str) -> str | None:
    """An interpreter of this version, from PATH or pyenv; None if there is none that runs."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python{version}")
    for candidate in (shutil.which(f"python{version}"), *map(str, pyenv)):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def check(python: str, wheel: Path, source: Path, folder: Path) -> None:
    """Install and use both distributions; exit with the output of the first command that fails."""
    away = folder / "elsewhere"
    away.mkdir()
    run("make an empty environment", [python, "-m", "venv", folder / "env"], away)
    bin_folder = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
    inside, command = bin_folder / "python", bin_folder / "ml-pipeline"
    pip = [inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]

    run("install the wheel", [*pip, wheel], away)
    where = run("import it", [inside, "-c", "import ml_pipeline; print(ml_pipeline.__file__)"], away)
    if not Path(where.strip()).is_relative_to(folder.resolve()):
        sys.exit(f"ml_pipeline was imported from {where.strip()} instead of the environment.")
    for i, block in enumerate(readme_python()):
        (away / f"readme_{i}.py").write_text(block)
        run(f"run block {i + 1} of the README's Python", [inside, f"readme_{i}.py"], away)
    run("train on the built-in market", [command, "train", "--n-envs", "8"], away)
    if not list(away.glob("checkpoints/*/report.html")):
        sys.exit("The training wrote no report.html.")
    run("run the self-test", [command, "check"], away)

    run("install the source distribution", [*pip, "--force-reinstall", "--no-deps", source], away)
    run("run the self-test", [command, "check"], away)


def readme_python() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def run(what: str, command: list[str | Path], folder: Path) -> str:
    """Run a command that sees neither the repository nor the user's home; return its stdout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    pip_cache = {"PIP_CACHE_DIR": str(Path.home() / ".cache" / "pip")}
    began = time.monotonic()
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=pip_cache | kept | {"HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"Could not {what}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"  {what}: {time.monotonic() - began:.0f} s", flush=True)
    return done.stdout


if __name__ == "__main__":
    main()
