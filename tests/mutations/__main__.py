"""Proves that the suite catches each mistake of the catalogue.

    python -m tests.mutations                  # every mistake, some seconds each
    python -m tests.mutations trading fees     # those whose subject, clause or description contain all of the words

Each mistake is put into a copy of the repository, where its test must fail; without mistakes all tests pass there.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation

REPOSITORY = Path(__file__).resolve().parent.parent.parent
COPIED = (
    "benchmarks",
    "conftest.py",
    "ml_pipeline",
    "tests",
    "pyproject.toml",
)  # a few tests use the parts of benchmarks
PASSED, FAILED = 0, 1


def verdict(folder: Path, tests: Sequence[str], output: int | None = subprocess.DEVNULL) -> int:
    """Pytest's exit code for these tests of the copy in `folder`; 0 is passed, 1 failed, others are no verdict."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "thorough"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    pytest = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        return pytest.wait()
    finally:  # a mistake may leave workers behind
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pytest.pid, signal.SIGKILL)


def is_caught(mutation: Mutation, folder: Path) -> bool:
    """Whether the test fails with the mistake in the copy; the copy is as before afterwards."""
    source = folder / mutation.source
    original = source.read_text()
    assert original.count(mutation.old) == 1, f"{mutation.source} must hold once: {mutation.old}"
    source.write_text(original.replace(mutation.old, mutation.new))
    try:
        return verdict(folder, [mutation.caught_by]) == FAILED
    finally:
        source.write_text(original)


def chosen_by(words: Sequence[str]) -> dict[str, list[Mutation]]:
    """By subject, the mistakes whose subject, clause or description contain every word."""
    chosen = {
        subject: [m for m in known if all(word in f"{subject} {m.clause} {m.mistake}" for word in words)]
        for subject, known in MUTATIONS.items()
    }
    return {subject: mutations for subject, mutations in chosen.items() if mutations}


def main(words: Sequence[str]) -> int:
    """Check the mistakes that the words choose; return 0 if all are caught."""
    chosen = chosen_by(words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            copy = shutil.copytree if (REPOSITORY / part).is_dir() else shutil.copy
            copy(REPOSITORY / part, folder / part)
        tests = sorted({mutation.caught_by for of_subject in chosen.values() for mutation in of_subject})
        if verdict(folder, tests, output=None) != PASSED:
            print("Some test of the catalogue is not there, or does not pass as the source stands; run `make test`.")
            return 1
        n_caught = dict.fromkeys(chosen, 0)
        for subject, mutations in chosen.items():
            for mutation in mutations:
                caught = is_caught(mutation, folder)
                n_caught[subject] += caught
                about = f"{mutation.clause}: {mutation.mistake}" if mutation.clause else mutation.mistake
                print(f"{'caught ' if caught else 'SURVIVES'}  {about}  ({mutation.source})", flush=True)
    n_missed = {subject: len(mutations) - n_caught[subject] for subject, mutations in chosen.items()}
    counts = ", ".join(f"{subject} {n_caught[subject]} / {n_missed[subject]}" for subject in chosen)
    print(f"Caught / not caught: {counts}; in all {sum(n_caught.values())} / {sum(n_missed.values())}.")
    return 1 if any(n_missed.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
