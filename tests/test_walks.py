"""How many modules a reader meets on the way from a command to what it is for, counted while the command runs.

A walk is the set of modules of the package of which a function is entered in the thread that does the work. The
numbers below are those of today, and a change that shortens a walk lowers its number.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ml_pipeline import compile_kernels
from tests.live.loop.sessions import deploy, write_prices
from tests.training_commands import REPOSITORY

pytest.importorskip("numba", reason="without the compiler, walks go other ways")

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

N_MODULES = {
    "train: from the command to the first step": 107,
    "train: one iteration": 43,
    "paper-trade: from the command to the first bar": 126,
    "paper-trade: one bar": 65,
    "tune: what a trial adds around its run": 41,
}

# Runs in every process of a command, before anything of the package is imported. A mark begins the next part of the
# walk; parts are written as they end, since some processes end without a word.
_COUNTING = """
import json, os, sys

_INSIDE, _OUT, _MARKS = os.environ["WALK_PACKAGE"], os.environ["WALK_OUT"], json.loads(os.environ["WALK_MARKS"])
_CODE_OF_A_FUNCTION = 0x1
_parts = [set()]


def _count(frame, event, argument):
    code = frame.f_code
    if event not in ("call", "return") or not code.co_filename.startswith(_INSIDE):
        return
    module = code.co_filename[len(_INSIDE):]
    if [event, module, code.co_qualname] in _MARKS:
        with open(f"{_OUT}/{os.getpid()}", "a") as file:
            file.write(json.dumps([code.co_qualname, sorted(_parts[0])]) + chr(10))
        _parts[0] = set()
    elif event == "call" and code.co_flags & _CODE_OF_A_FUNCTION:
        _parts[0].add(module)


sys.setprofile(_count)
"""


def parts_of(folder: Path, command: list[Any], *marks: tuple[str, str, str]) -> list[tuple[str, list[str]]]:
    """The modules entered before the first mark, between that and the next, and so on, of the process with the most
    marks; each with the function whose mark ended the part.

    marks: ("call" or "return", module's path in the package, qualified name of a function).
    """
    out = folder / "walk"
    out.mkdir()
    (folder / "sitecustomize.py").write_text(_COUNTING)
    environment = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]),
        "WALK_PACKAGE": str(REPOSITORY / "ml_pipeline") + os.sep,
        "WALK_OUT": str(out),
        "WALK_MARKS": json.dumps(marks),
    }
    done = subprocess.run(
        [sys.executable, "-m", "ml_pipeline", *map(str, command)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return max(([json.loads(line) for line in path.read_text().splitlines()] for path in out.iterdir()), key=len)


def check(walk: str, parts: list[tuple[str, list[str]]]) -> None:
    modules = sorted({module for _, part in parts for module in part})
    assert 0 < len(modules) <= N_MODULES[walk], f"{walk}: {len(modules)} modules\n" + "\n".join(modules)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_compiled_on_the_way() -> None:
    assert compile_kernels.main(["perceptron"]) == 0


FEW = ["--n-envs", 8, "--n-workers", 0, "--iterations", 6]


def test_a_training_of_an_environment(tmp_path):
    parts = parts_of(
        tmp_path,
        ["train", "--env-id", "CartPole-v1", *FEW],
        ("call", "models/rl/algorithms/ppo_trainer.py", "PPOTrainer._iterate"),
        ("call", "models/rl/core/stepping/env_block.py", "EnvBlock._step"),
    )
    ends = [ended_by for ended_by, _ in parts]
    iterations = [i for i, ended_by in enumerate(ends) if ended_by == "PPOTrainer._iterate"]
    check("train: from the command to the first step", parts[: ends.index("EnvBlock._step") + 1])
    check("train: one iteration", parts[iterations[3] + 1 : iterations[4] + 1])


def test_a_replay_on_paper(tmp_path):
    write_prices(tmp_path / "prices.csv", ["A"])
    model = deploy(tmp_path / "model", ["A"])
    bars = parts_of(
        tmp_path,
        ["paper-trade", "--model", model, "--replay", "prices.csv"],
        ("call", "live/feeds/replay.py", "ReplayFeed.next"),
    )
    check("paper-trade: from the command to the first bar", bars[:1])
    check("paper-trade: one bar", [max(bars[10:30], key=lambda bar: len(bar[1]))])


def test_what_a_trial_adds_around_its_run(tmp_path):
    around = parts_of(
        tmp_path,
        [
            "tune",
            "--env-id",
            "CartPole-v1",
            "--n-trials",
            3,
            "--n-jobs",
            1,
            "--pruner",
            "none",
            "--study-name",
            "s",
            *FEW,
        ],
        ("call", "runs/run.py", "Run.train"),
        ("return", "runs/run.py", "Run.train"),
    )
    check("tune: what a trial adds around its run", around[2:3])
