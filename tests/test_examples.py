"""The examples run, from another folder, and say what they promise."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


def output_of(name, folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_one_environment_against_many(tmp_path):
    out = output_of("vectorized_training_example.py", tmp_path)
    for words in ("One environment:", "All of them:", "Speed-up:", "Training, all in:", "EURUSD, GBPUSD, test split"):
        assert words in out
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "logs"}
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"training.log", "vec_monitor.monitor.csv"}


@pytest.mark.long
def test_an_environment_of_ones_own_is_learned(tmp_path):
    before, after = (float(word) for word in output_of("own_environment.py", tmp_path).split() if word[0] == "-")
    assert after > before + 10


@pytest.mark.long
def test_ppo_in_one_file_learns_to_balance(tmp_path):
    means = [float(line.split()[-1]) for line in output_of("ppo_in_one_file.py", tmp_path).splitlines()]
    assert means[0] < 50
    assert means[-1] > 150


@pytest.mark.long
def test_the_notebook_trains_watches_and_evaluates(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    kernels = pytest.importorskip("ipykernel.kernelspec")
    manager, specs = (pytest.importorskip(f"jupyter_client.{name}") for name in ("manager", "kernelspec"))
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    before = psutil.Process().children(recursive=True)
    notebook = nbformat.read(EXAMPLES / "training.ipynb", as_version=4)

    class ThisInterpreter(manager.AsyncKernelManager):
        """Starts the kernel with the interpreter that runs the tests, whatever kernels are installed."""

        @property
        def kernel_spec(self):
            return specs.KernelSpec(argv=[sys.executable, *kernels.make_ipkernel_cmd()[1:]], display_name="test")

    client = nbclient.NotebookClient(
        notebook,
        kernel_manager_class=ThisInterpreter,
        resources={"metadata": {"path": str(tmp_path)}},
        timeout=100,
    )
    client.execute()
    shown = json.dumps(notebook)
    assert "best.pt" in shown
    assert "image/png" in shown
    assert "buy and hold" in shown
    of_jupyter = {path.name for path in tmp_path.iterdir() if path.name.startswith(("IPYTHON", "JUPYTER"))}
    assert {path.name for path in tmp_path.iterdir()} - of_jupyter == {"temporary"}
    assert not list((tmp_path / "temporary").iterdir())
    assert [each for each in psutil.Process().children(recursive=True) if each not in before] == []


def test_the_outputs_of_the_notebook_are_small_and_of_no_machine():
    text = (EXAMPLES / "training.ipynb").read_text()
    assert len(text) < 100_000
    assert str(Path.home()) not in text
    assert "/work/" not in text


@pytest.mark.long
def test_a_killed_training_ends_with_the_weights_of_an_uninterrupted_one(tmp_path):
    killed, resumed, *hashes = output_of("kill_and_resume.py", tmp_path).splitlines()
    assert killed.startswith("kill -9 ")
    assert "after iteration" in resumed
    assert len(hashes) == 2
    assert len({line.split()[-1] for line in hashes}) == 1
