"""Every line of the page for users of Stable-Baselines3 runs, theirs and ours."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "coming-from-stable-baselines3.md"
THEIRS, OURS = "Stable-Baselines3", "here"
BLOCK = re.compile(rf"^```python\n# ({THEIRS}|{OURS})\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE = re.compile(rf"^\| {THEIRS} \| {OURS} \|\n\| --- \| --- \|\n((?:\|.*\|\n)+)", re.MULTILINE)


def lines_of(text: str) -> dict[str, list[str]]:
    """The blocks and the cells of tables of each side, in the order of the page."""
    found = {THEIRS: [], OURS: []}
    places = [(block.start(), block[1], block[2]) for block in BLOCK.finditer(text)]
    for table in TABLE.finditer(text):
        for i, row in enumerate(table[1].splitlines()):
            theirs, ours = re.fullmatch(r"\| `([^`]+)` \| `([^`]+)` \|", row).groups()
            places += [(table.start() + i, THEIRS, theirs), (table.start() + i, OURS, ours)]
    for _, side, code in sorted(places):
        found[side].append(code)
    return found


def test_every_block_and_every_table_of_code_is_found():
    text = PAGE.read_text()
    assert len(BLOCK.findall(text)) == text.count("```python\n")
    assert len(TABLE.findall(text)) == text.count(f"| {THEIRS} | {OURS} |\n")
    assert all(len(lines) > 10 for lines in lines_of(text).values())


@pytest.mark.usefixtures("undrawn_reports")
@pytest.mark.parametrize("side", [THEIRS, OURS])
def test_every_line_runs(side, tmp_path, monkeypatch):
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path / "logs"))
    namespace = {"__name__": "__main__"}
    for code in lines_of(PAGE.read_text())[side]:
        shortened = re.sub(r'(total_timesteps"?[=:] ?)[\d_]+', r"\g<1>256", code)
        exec(compile(shortened, f"a block of {side}", "exec"), namespace)
    if side == OURS:
        namespace["trainer"].close()
    else:
        namespace["model"].get_env().close()  # with the files of its monitors
    assert namespace["best"].predict(namespace["best"].observation_space.sample())[0] in (0, 1)
    assert len(namespace["episodes"])
