"""The scripts of `ml-pipeline completion`, read by the shells that they are for."""

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time

import pytest

from ml_pipeline import completion

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="bash and zsh are shells of Linux and macOS")
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")


@pytest.fixture
def script(capsys, tmp_path):
    """Writes the script of a shell; returns its path."""

    def write(shell):
        assert completion.main([shell]) == 0
        (tmp_path / shell).write_text(capsys.readouterr().out)
        return tmp_path / shell

    return write


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        completion.main(["fish"])
    assert capsys.readouterr().err == 'completion: SHELL must be bash or zsh, but got "fish".\n'


# Sources the script, and asks as bash does when <TAB> is pressed after these words, the last of which is not finished.
ASK_BASH = """
source "$1"; shift
function_name=$(complete -p ml-pipeline | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$function_name"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@needs_bash
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], {"train"}),
        (["t"], {"train", "tune", "tune-workers"}),
        (["--v"], {"--version"}),
        (["train", "--learning-r"], {"--learning-rate", "--learning-rate-schedule"}),
        (["train", "--n_env"], set()),
        (["tune-workers", "--n-env"], {"--n-envs", "--n-envs-schedule"}),
        (["train", "--normalize-ob"], {"--normalize-obs"}),
        (["train", "--no-normalize-ob"], {"--no-normalize-obs"}),
        (["train", "--learning-rate", "1e-3", "--env-i"], {"--env-id"}),
        (["train", "--hidden-sizes", "64", "64", "--env-i"], {"--env-id"}),
        (["train", "--activation", "t"], {"tanh"}),
        (["train", "--data", "pri"], {"prices.csv"}),
        (["evaluate", "pri"], {"prices.csv"}),
        (["evaluate", "--certi"], {"--certify"}),
        (["export", "prices.csv", "--format", "o"], {"onnx"}),
        (["sanity", "--fee-b"], {"--fee-bps"}),
        (["walk-forward", "--training-window", "r"], {"rolling"}),
        (["inspect-data", "--bar-time", "o"], {"open"}),
        (["check", "--h"], {"--help"}),
        (["completion", "z"], {"zsh"}),
    ],
    ids=lambda case: " ".join(case) if isinstance(case, list) else "",
)
def test_bash_completes(words, expected, script, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "prices.csv").touch()
    command = ["bash", "--norc", "-c", ASK_BASH, "bash", str(script("bash")), "ml-pipeline", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    assert (set(done.stdout.split()), done.stderr) == (expected, "")


@pytest.mark.system
@needs_zsh
def test_zsh_reads_the_script(script):
    subprocess.run(["zsh", "-n", str(script("zsh"))], timeout=60, check=True)


@pytest.mark.system
@needs_zsh
@pytest.mark.parametrize(
    ("typed", "got"),
    [
        ("ml-pipeline tr\t", "train"),
        ("ml-pipeline train --learning-rate-s\tlinear", "train --learning-rate-schedule linear"),
        ("ml-pipeline train --activation ta\t", "train --activation tanh"),
        ("ml-pipeline evaluate pri\t", "evaluate prices.csv"),
    ],
)
def test_zsh_completes(typed, got, script, tmp_path):
    """Types into an interactive zsh, in which ml-pipeline prints its arguments."""
    (tmp_path / "prices.csv").touch()
    setup = (
        "autoload -Uz compinit && compinit -u -D",
        f'eval "$(<{shlex.quote(str(script("zsh")))})"',
        'ml-pipeline() { print -r -- "<$*>" }',
        "PS1='REA''DY '",
    )
    with Terminal(["zsh", "-f", "-i"], cwd=tmp_path) as zsh:
        for line in setup:
            zsh.type(line + "\n")
        zsh.read_until(r"\n(.*)READY ")
        zsh.type(typed + "\n")
        assert zsh.read_until(r"<([^$>]*)>").strip() == got


class Terminal:
    """A program that believes a user sits before it."""

    def __init__(self, command, cwd):
        import pty

        self._fd, inside = pty.openpty()
        env = {**os.environ, "TERM": "dumb", "HOME": str(cwd), "ZDOTDIR": str(cwd)}
        self._process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
        )
        os.close(inside)
        self._shown = ""

    def type(self, text):
        os.write(self._fd, text.encode())

    def read_until(self, pattern, timeout_s=60):
        """The first group of the pattern, once it is shown after what was read before."""
        deadline = time.monotonic() + timeout_s
        while (found := re.search(pattern, self._shown)) is None:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{pattern} was not shown, but: {self._shown!r}"
            self._shown += os.read(self._fd, 4096).decode(errors="replace").replace("\r", "")
        self._shown = self._shown[found.end() :]
        return found[1]

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self._process.kill()
        self._process.wait()
        os.close(self._fd)
