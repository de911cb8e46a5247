"""The self-test: run as users run it, and with a check that fails."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ml_pipeline import test_parallel_env as self_test

FOLDER = Path(self_test.__file__).parent


@pytest.mark.long
def test_it_passes_as_a_script() -> None:
    done = subprocess.run(
        [sys.executable, "test_parallel_env.py"], cwd=FOLDER, capture_output=True, text=True, timeout=100, check=False
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[-2:] == ["✅ ALL TESTS PASSED!", "🎉 All tests completed successfully!"]
    assert all(line.startswith("✓ ") for line in lines[:-3])


def test_it_says_what_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise RuntimeError("no luck")

    checks: list[tuple[str, Callable[[], str | None]]] = [("breaks", broken), ("holds", lambda: "1.9x")]
    monkeypatch.setattr(self_test, "_checks", lambda: iter(checks))
    assert self_test.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["✗ breaks: no luck", "✓ holds (1.9x)"]
    assert lines[-1] == "❌ 1 failed: breaks"
