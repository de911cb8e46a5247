"""The one command `ml-pipeline` and its subcommands, and all the other ways to start them."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ml_pipeline
from ml_pipeline.cli import main
from ml_pipeline.commands import COMMANDS

REPOSITORY = Path(__file__).resolve().parent.parent
NAMES = [
    *("train", "evaluate", "backtest", "enjoy", "compare", "export", "import-sb3"),
    *("serve", "submit", "status", "watch", "logs", "stop", "resume", "scale", "dashboard"),
    *("tune", "report", "promote", "rollback", "models", "paper-trade"),
    *("sanity", "walk-forward", "inspect-data", "tune-workers", "compile", "check", "completion"),
]


def run(*command, cwd=REPOSITORY):
    command = [sys.executable, *map(str, command)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


def exit_code(argv):
    """How the command ends, by whatever way it does."""
    try:
        return main(argv)
    except SystemExit as stop:
        return stop.code


def test_help_names_each_command_with_a_sentence(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    described = [line.split(maxsplit=1) for line in lines[2 : 2 + len(NAMES)]]
    assert [name for name, _ in described] == NAMES
    assert all(sentence.endswith(".") for _, sentence in described)


def test_no_command_is_answered_with_the_help_and_code_2(capsys):
    assert main([]) == 2
    assert "tune-workers" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ml-pipeline {ml_pipeline.__version__}\n"


@pytest.mark.parametrize("argument", ["--help", "--version", "trian"])
def test_what_needs_no_command_imports_no_library(argument):
    code = (
        "import sys\nfrom ml_pipeline.cli import main\n"
        f"try: main(['{argument}'])\nexcept SystemExit: pass\n"
        "imported = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*{'torch', 'numpy', 'gymnasium', 'pydantic', 'tyro', 'polars'} & imported)"
    )
    assert run("-c", code).stdout.splitlines()[-1] == ""


def test_no_command_imports_torch_before_it_is_needed():
    """Which takes two seconds and 290 MB: a service, or a refusal of flags, does without."""
    modules = sorted({command.module for command in COMMANDS.values()})
    code = f"import sys, importlib\nfor name in {modules}: importlib.import_module(name)\nprint('torch' in sys.modules)"
    assert run("-c", code).stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("trian", 'There is no command "trian". Did you mean "train"?'),
        ("walk_forward", 'There is no command "walk_forward". Did you mean "walk-forward"?'),
        ("--versoin", 'There is no command "--versoin". Did you mean "--version"?'),
        ("--n-envs", "The command comes before its flags, as in: ml-pipeline train --n-envs"),
        ("frobnicate", 'There is no command "frobnicate". `ml-pipeline --help` lists the commands.'),
        ("list", 'There is no command "list". `ml-pipeline --help` lists the commands.'),
    ],
)
def test_an_unknown_command_is_one_line_that_names_the_nearest(typed, answer, capsys):
    assert exit_code([typed]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"ml-pipeline: {answer}")


@pytest.mark.parametrize("name", NAMES)
def test_each_command_is_its_module(name, capsys):
    """The same help, but for the name of the program; the sentence of `ml-pipeline --help` stands in it."""
    assert exit_code([name, "--help"]) == 0
    through_cli = capsys.readouterr().out
    module = import_module(COMMANDS[name].module)
    with pytest.raises(SystemExit) as stop:
        module.main(["--help"])
    assert stop.value.code == 0
    assert after_usage(through_cli) == after_usage(capsys.readouterr().out)
    assert through_cli.startswith(f"usage: ml-pipeline {name} ")
    assert COMMANDS[name].sentence in " ".join(through_cli.split())


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_lines_of_help_break_between_words_at_any_width(width, monkeypatch, capsys):
    shown = {}
    for columns in (1_000, width):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown[columns] = [
            _help_of(name, capsys) for name in ("", "train", "evaluate", "paper-trade", "check", "compile")
        ]
    for wide, narrow in zip(shown[1_000], shown[width], strict=True):
        assert re.sub(r",\s+", ",", narrow).split() == re.sub(r",\s+", ",", wide).split()
        assert max(map(len, narrow.splitlines())) <= width


def _help_of(name, capsys):
    assert exit_code([*name.split(), "--help"]) == 0
    return capsys.readouterr().out


def after_usage(help_text):
    return help_text.partition("\n\n")[2]


@pytest.mark.parametrize("name", NAMES)
def test_complaints_name_the_program_as_it_was_typed(name, capsys):
    assert exit_code([name, "--no-such-flag", "--n-envs"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"ml-pipeline {name}: ")


def test_complaints_after_the_command_line_name_it_too(tmp_path, capsys):
    assert exit_code(["evaluate", str(tmp_path / "gone.pt")]) == 2
    assert capsys.readouterr().err.startswith("ml-pipeline evaluate: ")


PRESSES_CTRL_C = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    while True:  # the signal is on its way
        pass
except KeyboardInterrupt:
    pass  # as an import that catches everything does
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
@pytest.mark.parametrize("words", ["-m ml_pipeline compare", "-m ml_pipeline.train_ppo"])
def test_ctrl_c_while_modules_are_imported_is_one_line(words, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    for library in ("numpy", "tyro"):
        (tmp_path / f"{library}.py").write_text(PRESSES_CTRL_C)
    done = run(*words.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert re.fullmatch(r"\S+: Stopped by SIGINT\.\n", done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spelling", "prog"),
    [
        ("-m ml_pipeline train", "ml-pipeline train"),
        ("-m ml_pipeline.train_ppo", "train_ppo.py"),
        ("ml_pipeline/train_ppo.py", "train_ppo.py"),
        ("-m ml_pipeline.test_parallel_env", "test_parallel_env.py"),
        ("ml_pipeline/test_parallel_env.py", "test_parallel_env.py"),
    ],
)
def test_every_spelling_works(spelling, prog):
    done = run(*spelling.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {prog}")


@pytest.mark.slow
def test_a_file_may_be_run_from_its_own_folder():
    done = run("train_ppo.py", "--help", cwd=REPOSITORY / "ml_pipeline")
    assert done.stdout.startswith("usage: train_ppo.py ")


@pytest.mark.slow
def test_a_command_is_run_with_its_arguments(tmp_path):
    prices = tmp_path / "prices.csv"
    prices.write_text("time,close\n2024-01-01,1\n2024-01-02,2\n2024-01-03,1.5\n")
    done = run("-m", "ml_pipeline", "inspect-data", prices, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "prices.csv: 1 symbol, 3 bars" in done.stdout


def test_a_reader_that_leaves_gets_no_traceback():
    """As `ml-pipeline train --help | head` does."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ml_pipeline", "train", "--help"]
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=100, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
