"""The unit and the container files of examples/ start commands that exist, and fit how a session ends."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

import pytest

from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.settings import hints_of
from ml_pipeline.live.supervision.heartbeat import Heartbeat, ServiceManager

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "examples" / "paper-trade.service"
CONTAINER = ROOT / "examples" / "paper-trade.Containerfile"
TRAINING = ROOT / "examples" / "train.Containerfile"


def unit() -> ConfigParser:
    parser = ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read_string(UNIT.read_text())
    return parser


def uncommented(path: Path) -> str:
    """The text of a file, each command of its comments on one line."""
    return path.read_text().replace(" \\\n#", " ")


def command_lines() -> list[str]:
    """Every call of `ml-pipeline paper-trade` in both files, without the program that starts it."""
    text = "\n".join(map(uncommented, (UNIT, CONTAINER)))
    starts = re.findall(r"(?:bin/|exec eurusd )ml-pipeline (paper-trade.*)$", text, re.MULTILINE)
    runs = [f"paper-trade{rest}" for rest in re.findall(r"-v \S+ paper-trade(.*)$", text, re.MULTILINE)]
    return starts + runs


def known_flags(command: str) -> set[str]:
    module, _, name = str(COMMANDS[command].settings).partition(":")
    return {flag_of(each) for each in hints_of(getattr(import_module(module), name))}


def test_both_files_start_the_same_session():
    lines = command_lines()
    assert lines.count("paper-trade --model models/eurusd_5m/current --config trade.yaml") == 2
    assert len(lines) == 3


def test_their_flags_exist():
    for line in command_lines():
        assert {word for word in shlex.split(line) if word.startswith("--")} <= known_flags("paper-trade"), line


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    program = tmp_path / "trading" / ".venv" / "bin" / "ml-pipeline"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("%h", str(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=100, check=False
    )
    assert copy.name not in done.stderr  # of other units of this machine it may have something to say


def test_the_watchdog_waits_longer_than_the_heartbeat(tmp_path):
    seconds = int(unit()["Service"]["WatchdogSec"])
    manager = ServiceManager({"NOTIFY_SOCKET": "x", "WATCHDOG_USEC": f"{seconds}000000"})
    assert Heartbeat(tmp_path, manager=manager)._patience_s < seconds


def test_the_unit_starts_again_what_died_and_not_what_was_ended():
    service = unit()["Service"]
    assert (service["Type"], service["Restart"], service["KillSignal"]) == ("notify", "on-failure", "SIGTERM")
    assert service["SuccessExitStatus"] == "143"  # which SIGTERM ends in


def test_the_flags_of_the_training_container_exist():
    lines = re.findall(r"-v \S+ train (.*)$", uncommented(TRAINING), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert {word for word in shlex.split(line) if word.startswith("--")} <= known_flags("train"), line


@pytest.mark.parametrize(("path", "command"), [(CONTAINER, ["paper-trade"]), (TRAINING, ["train"])], ids=str)
def test_a_container_installs_what_exists_and_runs_without_root(path, command):
    text = path.read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"\$\(echo /dist/\*\.whl\)\[([\w,]+)\]"', text)
    assert {*extras.split(",")} <= {*project["optional-dependencies"]}
    (torch,) = [each for each in project["dependencies"] if each.startswith("torch")]
    assert f'"{torch}"' in text
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    assert all((ROOT / name).exists() for names in copied for name in names.split())
    assert f"ENTRYPOINT {json.dumps(['ml-pipeline', *command])}" in text
    (user,) = re.findall(r"^USER (\w+)$", text, re.MULTILINE)
    (volume,) = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    assert f"chown {user}: {volume}" in text
    assert f"WORKDIR {volume}\n" in text
    assert f"XDG_STATE_HOME={volume}/" in text
