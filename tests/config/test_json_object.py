"""Files with one JSON object, and what is said of others."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import read_json_object


def test_an_object_is_read(tmp_path):
    (tmp_path / "file.json").write_text('{"a": [1]}\n')

    assert read_json_object(tmp_path / "file.json") == {"a": [1]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "file.json is not valid JSON: "),
        (b"", "file.json is not valid JSON: "),
        (b"\xff", "file.json is not valid JSON: "),
        (b"[" * 100_000, "file.json is not valid JSON: "),
        (b"[" + b"[]," * 2_000_000 + b"0]", "file.json is not valid JSON: it holds more than 2,000,000 values."),
        (b" " * 20_000_000, "file.json cannot be read: it is larger than 16 MB."),
        (b"[1]", "file.json must hold a JSON object, but holds a list"),
    ],
)
def test_anything_else_is_told(tmp_path, content, said):
    (tmp_path / "file.json").write_bytes(content)

    with pytest.raises(UserError, match=said):
        read_json_object(tmp_path / "file.json")


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match=r"file\.json cannot be read: No such file or directory\."):
        read_json_object(tmp_path / "file.json")
