"""Settings files: flat YAML or JSON with the names of the flags, and one sentence about anything else."""

import json
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
        ("a: [1", "r.yaml", "is not valid YAML: expected ',' or ']', but got '<stream end>' in line 1."),
        ("a: \x01", "r.yaml", "is not valid YAML: unacceptable character #x0001"),
        ("a: 2024-02-30", "r.yaml", "is not valid YAML: day is out of range for month."),
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
        (b"[" * 3000, "too deep within each other"),
        (b"a: " + b"[" * 3000 + b"]" * 3000, "too deep within each other"),
        (b"{a: " * 3000, "too deep within each other"),
        (b"\n".join(b" " * i + b"- " for i in range(3000)), "too deep within each other"),
        (LAUGHS.encode(), "it holds more than 10,000 values, which are no settings."),
        (b"n_envs: " + LAUGHS.encode().replace(b"\n", b"\n  "), "mapping values are not allowed here"),
        (MERGED.encode(), "it holds more than 10,000 values"),
        (b"a: &a [*a]\n", "it holds more than 10,000 values"),
        (b"n_envs: " + b"9" * 5000, "Exceeds the limit"),
        (b"n_envs: |\n  two\n  lines\n", 'n_envs must be a whole number, but got "two lines"'),
        (b'"two\\nlines": 1\n', 'unknown setting "two lines"'),
        (b"n_envs: " + b"x" * 100_000, "xxx ..."),
        (b"data: !!python/object/apply:os.system [touch code-ran]\n", "could not determine a constructor for the tag"),
        (b"!!python/object/new:os.system [touch code-ran]\n", "could not determine a constructor for the tag"),
        (b"n_envs: 1\n---\nn_envs: 2\n", "found another document in line 2"),
        (bytes(range(256)), "is not UTF-8 text"),
        (b"\x7fELF\x00\x01\x02", "is not valid YAML: unacceptable character"),
        ("n_envs: 8\n".encode("utf-16"), "is not UTF-8 text"),
        ("n_envs: 8\n".encode("utf-16-le"), "unacceptable character #x0000"),
    ],
    ids=range(22),
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
        (b"[" * 100_000, "too deep within each other"),
        (b'{"n_envs": ' + b"9" * 5000 + b"}", "is not valid JSON: Exceeds the limit"),
        (b"\x00", "is not valid JSON"),
    ],
    ids=range(3),
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
