"""Flags are read into what was given and nothing else; whatever is wrong is one sentence."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import tyro

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.flags import read_flags


@dataclass(frozen=True)
class Options:
    """What to do.

    Not for the help.
    """

    n_envs: int = 1
    """Environments that are stepped side by side."""
    n_workers: int | Literal["auto"] = "auto"
    """Workers."""
    gamma: float = 0.99
    """Discount."""
    target_kl: float | None = None
    """Limit."""
    normalize_obs: bool = True
    """Whether to normalize."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Layers."""
    symbols: tuple[str, ...] | None = None
    """Markets."""
    data: Path | None = None
    """Prices."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments."""
    columns: dict[str, str] = field(default_factory=dict)
    """Titles."""

    def __post_init__(self) -> None:
        assert isinstance(self.n_envs, int), "flags build no group"


@dataclass(frozen=True)
class Program:
    options: Options = field(default_factory=Options)


@dataclass(frozen=True)
class Subject:
    checkpoint: tyro.conf.Positional[Path]
    """What to evaluate."""


@dataclass(frozen=True)
class Shell:
    shell: tyro.conf.Positional[Literal["bash", "zsh"]]
    """Who reads it."""


@dataclass(frozen=True)
class ProgramForShell:
    shell: Shell


@dataclass(frozen=True)
class ProgramOnSubject:
    subject: Subject
    options: Options = field(default_factory=Options)


def read(line: str, settings_class: type = Program) -> dict[str, object]:
    return read_flags(line.split(), settings_class, prog="train_ppo.py", description="Train.")


def test_what_is_not_given_is_absent():
    assert read("") == {}


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("--n-envs 8", {"n_envs": 8}),
        ("--n_envs 8", {"n_envs": 8}),
        ("--n-envs=8", {"n_envs": 8}),
        ("--n-envs -8", {"n_envs": -8}),
        ("--n-envs 1", {"n_envs": 1}),  # given, though it is the default
        ("--n-envs 1 --n-envs 2", {"n_envs": 2}),
        ("--n-workers auto", {"n_workers": "auto"}),
        ("--gamma 1e-3 --target-kl .5", {"gamma": 0.001, "target_kl": 0.5}),
        ("--target-kl none", {"target_kl": None}),
        ("--normalize-obs", {"normalize_obs": True}),
        ("--no-normalize_obs", {"normalize_obs": False}),
        ("--hidden-sizes 32", {"hidden_sizes": (32,)}),
        ("--hidden-sizes 32 16 --symbols BTC ETH", {"hidden_sizes": (32, 16), "symbols": ("BTC", "ETH")}),
        ("--hidden-sizes", {"hidden_sizes": ()}),
        ('--env-kwargs {"size":8,"map":null}', {"env_kwargs": {"size": 8, "map": None}}),
        ("--hidden-sizes 64,32", {"hidden_sizes": (64, 32)}),
        ("--hidden-sizes=[64,32]", {"hidden_sizes": (64, 32)}),
        ("--hidden-sizes [64, 32] --gamma 1", {"hidden_sizes": (64, 32), "gamma": 1.0}),
        ("--hidden-sizes (64,)", {"hidden_sizes": (64,)}),
        ("--symbols A,B", {"symbols": ("A,B",)}),  # a name may hold a comma
        ("--columns time=When close=Last", {"columns": {"time": "When", "close": "Last"}}),
        ("--columns time=When,close=Last", {"columns": {"time": "When", "close": "Last"}}),
        ('--columns {"close":"Last"}', {"columns": {"close": "Last"}}),
        ("--columns none", {"columns": {}}),
        ("--data a/b.csv --device cuda", {"data": Path("a/b.csv"), "device": "cuda"}),
    ],
)
def test_what_is_given_is_read(line, given):
    assert read(line) == given


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--n-env 8", 'Unknown flag --n-env. Did you mean "--n-envs"?'),
        ("--n_env=8", 'Unknown flag --n-env. Did you mean "--n-envs"?'),
        ("--no-normalise-obs", 'Unknown flag --no-normalise-obs. Did you mean "--no-normalize-obs"?'),
        ("--xyz", "Unknown flag --xyz. --help lists every flag."),
        ("-n 8", "Unknown flag -n. --help lists every flag."),
        ("eight", '"eight" belongs to no flag; --help lists what each flag takes.'),
        ("--n-envs 8 9", '"9" belongs to no flag; --help lists what each flag takes.'),
        ("--n-envs", "--n-envs needs a value, but got none; --help describes it."),
        ("--gamma -1 --n-envs", "--n-envs needs a value, but got none; --help describes it."),
        ("--n_envs --gamma 1", "--n-envs needs a value, but got --gamma; --help describes it."),
        ("--n-envs=", '--n-envs must be a whole number, but got "".'),
        ("--n-envs many", '--n-envs must be a whole number, but got "many".'),
        ("--n-envs 2.5", '--n-envs must be a whole number, but got "2.5".'),
        ("--hidden-sizes 64;64", '--hidden-sizes must be whole numbers, but got "64;64".'),
        ("--hidden-sizes 1,024", '--hidden-sizes must be whole numbers, but got "1,024".'),
        ("--gamma=0,99", '--gamma must be a number, but got "0,99"; write 0.99.'),
        ("--target-kl ,5", '--target-kl must be a number or none, but got ",5"; write .5.'),
        ("--n-envs 1,024", '--n-envs must be a whole number, but got "1,024"; write 1024.'),
        ("--n-envs 1.5M", '--n-envs must be a whole number, but got "1.5M"; write 1.5e6.'),
        ("--lr 3e-4", "Unknown flag --lr. --help lists every flag."),  # these options have no learning rate
        ("--num_envs=8", 'Unknown flag --num-envs. Did you mean "--n-envs"?'),
        (
            "--policy MlpPolicy",
            "Unknown flag --policy. The kind of network follows from the observations; "
            "--hidden-sizes gives its layers.",
        ),
        ("prices.csv", '"prices.csv" belongs to no flag; say --data prices.csv.'),
        ("--device cudda", '--device must be cpu or cuda, but got "cudda". Did you mean "cuda"?'),
        (
            "--no-normalize-obs true",
            '--no-normalize-obs takes no value, but got "true"; say --normalize-obs or --no-normalize-obs.',
        ),
        (
            "--normalize-obs=False",
            '--normalize-obs takes no value, but got "False"; say --normalize-obs or --no-normalize-obs.',
        ),
    ],
)
def test_what_cannot_be_read_is_told_in_one_sentence(line, sentence, capfd):
    with pytest.raises(UserError) as told:
        read(line)
    assert str(told.value) == sentence
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("line", ["latest.pt --data x.csv --symbols A B", "--symbols A B --data x.csv latest.pt"])
def test_a_positional_argument_may_stand_first_or_last(line):
    assert read(line, ProgramOnSubject) == {
        "checkpoint": Path("latest.pt"),
        "data": Path("x.csv"),
        "symbols": ("A", "B"),
    }


def test_a_missing_positional_argument_is_told():
    with pytest.raises(UserError) as told:
        read("--n-envs 2", ProgramOnSubject)
    assert str(told.value) == "CHECKPOINT is missing; --help describes it."


def test_a_positional_argument_is_named_as_the_help_names_it():
    with pytest.raises(UserError) as told:
        read("fish", ProgramForShell)
    assert str(told.value) == 'SHELL must be bash or zsh, but got "fish".'


def test_a_positional_argument_is_no_flag_to_be_meant():
    with pytest.raises(UserError) as told:
        read("latest.pt --checkpoint other.pt", ProgramOnSubject)
    assert str(told.value) == "Unknown flag --checkpoint. --help lists every flag."


def test_help_shows_every_flag_with_its_sentence_and_default(capsys):
    with pytest.raises(SystemExit) as stop:
        read("--n-envs 8 --help")
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for flag, metavar, sentence, default in (
        ("--n-envs", "INT", "Environments that are stepped side by side.", "1"),
        ("--n-workers", "INT|{auto}", "Workers.", "auto"),
        ("--gamma", "FLOAT", "Discount.", "0.99"),
        ("--target-kl", "FLOAT", "Limit.", "none"),
        ("--normalize-obs,", "--no-normalize-obs", "Whether to normalize.", "true"),
        ("--hidden-sizes", "[INT ...]", "Layers.", "64 64"),
        ("--symbols", "[TEXT ...]", "Markets.", "none"),
        ("--data", "PATH", "Prices.", "none"),
        ("--device", "{cpu,cuda}", "Where.", "cpu"),
    ):
        assert f"{flag} {metavar} {sentence} (default: {default})" in shown
    assert "What to do." in shown
    assert "Not for the help" not in shown


@dataclass(frozen=True)
class SinkOptions:
    """Where to."""

    sink: tuple[str, ...] = ()
    """Sinks."""
    symbols: tuple[str, ...] = ()
    """Markets."""
    seed: int = 0
    """Seed."""


@dataclass(frozen=True)
class SinkSettings:
    options: SinkOptions = field(default_factory=SinkOptions)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--sink a:A --sink b:B", {"sink": ("a:A", "b:B")}),
        ("--sink a:A b:B --seed 3 --sink=c:C", {"sink": ("a:A", "b:B", "c:C"), "seed": 3}),
        ("--sink=a:A --seed -1 --sink b:B c:C", {"sink": ("a:A", "b:B", "c:C"), "seed": -1}),
        ("--symbols A B --symbols C", {"symbols": ("C",)}),  # as of other flags, the last one counts
    ],
)
def test_values_of_a_sink_add_up_where_the_flag_is_repeated(words, given):
    assert read_flags(words.split(), SinkSettings, prog="p", description="") == given
