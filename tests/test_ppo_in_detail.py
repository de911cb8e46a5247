"""The page on PPO's details has all 37 of them, and each function that it names is in the file that it links."""

import ast
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "ppo-in-detail.md"
LINKS = re.findall(r"\[`(\w+)`\]\((\.\./ml_pipeline/[^)]+\.py)\)", PAGE.read_text())


def names_in(path):
    """The functions and classes of a module."""
    definitions = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, definitions)}


def test_every_detail_is_there_once_and_links_the_code():
    numbered = re.findall(r"^\*\*(\d+)\. (.*?)(?=^\*\*|^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in numbered] == list(range(1, 38))
    assert [number for number, text in numbered if "](../ml_pipeline/" not in text] == []


def test_every_function_is_in_the_file_that_is_linked():
    missing = [name for name, path in LINKS if name not in names_in((PAGE.parent / path).resolve())]
    assert missing == []
    assert len(LINKS) >= 37


def test_the_page_stays_short():
    assert len(PAGE.read_text().split()) <= 2500
    assert len((PAGE.parent / "when-not-to-use-it.md").read_text().split()) <= 500
