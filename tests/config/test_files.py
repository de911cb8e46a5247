"""Settings files: flat YAML or JSON with the names of the flags, and one sentence about anything else."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_settings, write_yaml
from ml_pipeline.config.settings import flatten


@dataclass(frozen=True)
class Options:
    n_envs: int = 1
    learning_rate: float = 3e-4
    target_kl: float | None = None
    normalize_obs: bool = True
    symbols: tuple[str, ...] | None = None
    data: Path | None = None


@dataclass(frozen=True)
class Run:
    options: Options = field(default_factory=Options)


def told(path: Path) -> str:
    with pytest.raises(UserError) as error:
        read_settings(path, Run)
    return str(error.value)


@pytest.fixture
def file(tmp_path):
    def written(text: str, name: str = "run.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_yaml_is_read_with_underscores_or_dashes(file):
    path = file("n-envs: 8\nlearning_rate: 3e-4\ntarget_kl: null\nsymbols: [BTC, ETH]\ndata: a.csv\n")
    assert read_settings(path, Run) == {
        "n_envs": 8,
        "learning_rate": 0.0003,
        "target_kl": None,
        "symbols": ("BTC", "ETH"),
        "data": Path("a.csv"),
    }


def test_json_is_read(file):
    path = file(json.dumps({"n_envs": 8, "normalize_obs": False}), "run.json")
    assert read_settings(path, Run) == {"n_envs": 8, "normalize_obs": False}


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_an_empty_file_sets_nothing(file, text):
    assert read_settings(file(text), Run) == {}


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("n_env: 8", "r.yaml", 'unknown setting "n_env". Did you mean "n_envs"?'),
        ("n_envs: many", "r.yaml", 'n_envs must be a whole number, but got "many".'),
        ("n_envs: 1\nn_envs: 2", "r.yaml", "n_envs is set twice; keep one of the two."),
        ("n_envs: 1\nn-envs: 2", "r.yaml", "n_envs is set twice; keep one of the two."),
        ('{"n_envs": 1, "n_envs": 2}', "r.json", "n_envs is set twice; keep one of the two."),
    ],
)
def test_a_setting_that_cannot_be_used_is_told_with_the_file(file, text, name, sentence):
    path = file(text, name)
    assert told(path) == f"{path}: {sentence}"


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("a: [1", "r.yaml", "is not valid YAML: did not find expected ',' or ']' in line 2."),
        ("a: \x01", "r.yaml", "is not valid YAML: unacceptable character #x0001"),
        ("{1: 2", "r.json", "is not valid JSON: Expecting property name enclosed in double quotes in line 1."),
        ("[1, 2]", "r.json", 'must hold lines such as "n_envs: 8", but holds a list.'),
        ("just words", "r.yaml", 'must hold lines such as "n_envs: 8", but holds a str.'),
    ],
)
def test_a_file_that_holds_no_settings_is_told_with_the_reason(file, text, name, sentence):
    path = file(text, name)
    assert told(path).startswith(f"{path} {sentence}")
    assert "\n" not in told(path)


LAUGHS = "a0: &a0 [ha, ha]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 40))
MERGED = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 60))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"? [1, 2]\n: 3\n", "a name must be text, but got the list [1, 2]."),
        (b"? {a: 1}\n: 3\n", "a name must be text, but got the dict {'a': 1}."),
        (b"[1]: 2\n", "a name must be text, but got the list [1]."),
        (b"[" * 3000, "nested too deeply"),
        (b"a: " + b"[" * 3000 + b"]" * 3000, "nested too deeply"),
        (b"{a: " * 3000, "nested too deeply"),
        (b"\n".join(b" " * i + b"- " for i in range(1000)), "nested too deeply"),
        (LAUGHS.encode(), "it holds more than 10,000 values, too many for settings."),
        (b"n_envs: " + LAUGHS.encode().replace(b"\n", b"\n  "), "mapping values are not allowed in this context"),
        (MERGED.encode(), "it holds more than 10,000 values"),
        (b"a: &a [*a]\n", "no whole value above is named &a in line 1"),
        (b"n_envs: " + b"9" * 5000, "Exceeds the limit"),
        (b"n_envs: |\n  two\n  lines\n", 'n_envs must be a whole number, but got "two lines"'),
        (b'"two\\nlines": 1\n', 'unknown setting "two lines"'),
        (b"n_envs: " + b"x" * 100_000, "xxx ..."),
        (
            b"data: !!python/object/apply:os.system [touch code-ran]\n",
            "is not supported; leave it out",
        ),
        (b"!!python/object/new:os.system [touch code-ran]\n", "is not supported; leave it out"),
        (b"n_envs: 1\n---\nn_envs: 2\n", "found another document in line 2"),
        (bytes(range(256)), "is not UTF-8 text"),
        (b"\x7fELF\x00\x01\x02", "is not valid YAML: unacceptable character"),
        ("n_envs: 8\n".encode("utf-16"), "is not UTF-8 text"),
        ("n_envs: 8\n".encode("utf-16-le"), "unacceptable character #x0000"),
        (b"a: " + b"[" * 30_000, "nested too deeply"),
        (b"a: " + b"{" * 30_000, "nested too deeply"),
        (b"- " * 30_000, "nested too deeply"),
        (b"n_envs: 1" + b":59" * 200_000, 'n_envs must be a whole number, but got "1:59:59'),
        (b"learning_rate: 1" + b":59" * 1000 + b".5", 'learning_rate must be a number, but got "1:59:59'),
        (b"a: !!binary aGVsbG8=\n", "is not supported; leave it out"),
        (b"<<: 1\n", "<< must name a mapping, or a list of mappings, but got 1."),
        (b"n_envs: 1\n" + b"#" * 1_000_000, "is larger than 1 MB"),
        (b"".join(b"k%d: 1\n" % i for i in range(20_000)), "it holds more than 10,000 values"),
    ],
    ids=range(31),
)
def test_whatever_a_file_holds_it_is_one_sentence(tmp_path, monkeypatch, content, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_bytes(content)
    said = told(tmp_path / "run.yaml")
    assert sentence in said
    assert "\n" not in said
    assert len(said) < 600
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * 500 + b"]" * 500, "nested too deeply"),
        (b'{"a": [' + b"0, " * 20_000 + b"0]}", "it holds more than 10,000 values"),
        (b'{"n_envs": ' + b"9" * 5000 + b"}", "is not valid JSON: Exceeds the limit"),
        (b"\x00", "is not valid JSON"),
    ],
    ids=range(5),
)
def test_whatever_a_json_file_holds_it_is_one_sentence(tmp_path, content, sentence):
    (tmp_path / "run.json").write_bytes(content)
    assert sentence in told(tmp_path / "run.json")
    assert "\n" not in told(tmp_path / "run.json")


def test_a_byte_order_mark_and_a_few_aliases_are_fine(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_bytes("symbols: &s [A, B]\nn_envs: 8\n".encode("utf-8-sig"))
    assert read_settings(path, Run) == {"symbols": ("A", "B"), "n_envs": 8}
    path.write_text("symbols: [&a A, *a]\n")
    assert read_settings(path, Run) == {"symbols": ("A", "A")}


def test_merge_keys_fill_in_what_a_mapping_does_not_set(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("<<: [&a {n_envs: 8, learning_rate: 1.0}, {n_envs: 4, data: a.csv}]\nlearning_rate: 2\n")
    assert read_settings(path, Run) == {"n_envs": 8, "learning_rate": 2.0, "data": Path("a.csv")}


def test_what_yaml_takes_for_dates_or_other_bases_is_text(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("symbols: [2024-01-31, 0700, 0x1F, 12:30, 'yes', ! 1]\nlearning_rate: 1e-3\nn_envs: 1_000\n")
    assert read_settings(path, Run) == {
        "symbols": ("2024-01-31", "0700", "0x1F", "12:30", "yes", "1"),
        "learning_rate": 1e-3,
        "n_envs": 1000,
    }


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert told(tmp_path / name) == f"{tmp_path / name} cannot be read: it is not a regular file."


def test_a_file_that_cannot_be_read_is_told_with_the_reason(tmp_path):
    assert told(tmp_path / "nope.yaml") == f"{tmp_path / 'nope.yaml'} cannot be read: No such file or directory."
    assert told(tmp_path) == f"{tmp_path} cannot be read: Is a directory."
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    assert told(tmp_path / "binary.yaml").endswith("is not UTF-8 text; save it as YAML or JSON.")


def test_a_file_that_cannot_be_written_is_told_with_the_reason(tmp_path):
    with pytest.raises(UserError, match=r"cannot be written: No such file or directory; choose another folder"):
        write_yaml(tmp_path / "missing" / "config.yaml", flatten(Run()))


@given(
    n_envs=st.integers(),
    learning_rate=st.floats(allow_nan=False),
    target_kl=st.none() | st.floats(allow_nan=False),
    normalize_obs=st.booleans(),
    # "none" alone means None, in files as in flags: it is no name of a symbol.
    symbols=st.none() | st.lists(st.text(), min_size=1).map(tuple).filter(lambda names: names != ("none",)),
    data=st.none() | st.sampled_from(["a.csv", "../data/eur usd.csv", "/tmp/0700", "NO"]).map(Path),
)
@example(n_envs=0, learning_rate=0.0, target_kl=None, normalize_obs=False, symbols=("\x85", "NO", "0700"), data=None)
def test_written_settings_are_read_back_equal(tmp_path_factory, **values):
    path = tmp_path_factory.mktemp("run") / "config.yaml"
    write_yaml(path, flatten(Run(Options(**values))))
    assert read_settings(path, Run) == values
