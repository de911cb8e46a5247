"""Proves that the suite catches each mistake of the catalogue.

    python -m tests.mutations              # every mistake, some seconds each
    python -m tests.mutations truncation   # those whose description contains the word

Each mistake is put into a copy of the repository, where its test must fail; without mistakes all tests pass there.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutations.catalogue import MUTATIONS, Mutation
from tests.mutations.trading_catalogue import TRADING_MUTATIONS

REPOSITORY = Path(__file__).resolve().parent.parent.parent
COPIED = ("ml_pipeline", "tests", "pyproject.toml")
PASSED, FAILED = 0, 1


def verdict(folder: Path, tests: Sequence[str]) -> int:
    """Pytest's exit code for these tests of the copy in `folder`; 0 is passed, 1 failed, others are no verdict."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


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


def main(words: Sequence[str]) -> int:
    """Check the mistakes whose description contains every word; return 0 if all are caught."""
    known = (*MUTATIONS, *TRADING_MUTATIONS)
    chosen = [mutation for mutation in known if all(word in mutation.mistake for word in words)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            copy = shutil.copytree if (REPOSITORY / part).is_dir() else shutil.copy
            copy(REPOSITORY / part, folder / part)
        if verdict(folder, sorted({mutation.caught_by for mutation in chosen})) != PASSED:
            print("Some test of the catalogue is not there, or does not pass as the source stands; run `make test`.")
            return 1
        survivors = 0
        for mutation in chosen:
            caught = is_caught(mutation, folder)
            survivors += not caught
            print(f"{'caught ' if caught else 'SURVIVES'}  {mutation.mistake}  ({mutation.source})", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} mistakes are caught.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
