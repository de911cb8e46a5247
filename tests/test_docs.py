"""README, CONTRIBUTING and the pages of docs/ say what is true: links, commands, flags, names and examples."""

import ast
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import yaml

from ml_pipeline import cli
from ml_pipeline.commands import COMMANDS
from ml_pipeline.config.familiar_names import ALIASES
from ml_pipeline.config.flags import flag_of
from ml_pipeline.config.settings import flatten, hints_of
from ml_pipeline.models.rl.algorithms.iteration_statistics import IterationStatistics, TimeSpent
from ml_pipeline.models.rl.update.ppo_update import UpdateStatistics
from ml_pipeline.monitoring.resources import Usage
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import SECTIONS
from ml_pipeline.trading.envs.rewards import make_reward
from ml_pipeline.trading.features.indicators import make_features

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
NOT_PAGES = {DOCS / "learning" / "table.md"}  # which `make learn` writes, and evidence.md shows
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if path not in NOT_PAGES]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
RUN_AS_A_WHOLE = DOCS / "guides" / "coming-from-stable-baselines3.md"  # by tests/test_coming_from_sb3.py
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: [^>]+ -->\n\Z")
FLAG = re.compile(r"--[a-z][a-z0-9-]*")
# Flags that every command takes.
COMMON = {"--version", "--help", "--help-all", *map(flag_of, ALIASES), *(flag_of(f"no_{each}") for each in ALIASES)}


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def extras_of_project() -> dict[str, list[str]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def section(text: str, heading: str) -> str:
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def spans(text: str) -> list[str]:
    """What stands between backticks in a line."""
    return re.findall(r"(?<!`)`([^`]+)`(?!`)", re.sub(r"\n(?!\n)", " ", FENCED.sub("", text)))


def anchors(text: str) -> set[str]:
    """What the headings of a page are linked by."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[str]:
    """Every command line of a page, in blocks and in sentences, without comments."""
    for language, block in FENCED.findall(text):
        if not language:
            joined = block.replace("\\\n", " ")
            yield from (line.partition(" #")[0].strip() for line in joined.splitlines() if line.strip())
    starts = ("ml-pipeline ", "python ", "make ", "pip ")
    yield from (span for span in spans(text) if span.startswith(starts))


def blocks(path: Path) -> list[tuple[str, bool]]:
    """The Python of a page, and whether it is to be run."""
    text = path.read_text()
    return [
        (found[2], not NOT_RUN.search(text[: found.start()])) for found in FENCED.finditer(text) if found[1] == "python"
    ]


def flags_of(settings: str) -> set[str]:
    """The flags that fill a settings class, named as module:class."""
    module, _, name = settings.partition(":")
    hints = hints_of(getattr(import_module(module), name))
    return {flag_of(each) for each in hints} | {flag_of(f"no_{each}") for each, hint in hints.items() if hint is bool}


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """The flags of each command and of each script, by what it is called as."""
    known = {}
    for name, command in COMMANDS.items():
        found = flags_of(command.settings) if command.settings else set()
        known[f"ml-pipeline {name}"] = known[command.module] = found
    for script in [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tests/*.py")]:
        module = named(script).removesuffix(".py").replace("/", ".")
        known[named(script)] = known[module] = set(re.findall(r'add_argument\("(--[a-z-]+)"', script.read_text()))
    return known


# Links and pages


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_links_lead_somewhere(path):
    text = path.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", text)):
        if target.startswith("https://"):
            continue
        place, _, anchor = target.partition("#")
        file = (path.parent / place).resolve() if place else path
        assert file.exists(), f"{target} is not there"
        assert not anchor or anchor in anchors(file.read_text()), f"{target} has no such heading"


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_named_test_files_exist(path):
    for name in re.findall(r"[\w/]*test_\w+\.py\b", FENCED.sub("", path.read_text())):
        assert any((ROOT / place / name).exists() for place in ("", "tests", "tests/live")), name


def test_every_page_is_in_the_navigation_once():
    def pages(nav: object) -> Iterator[str]:
        if isinstance(nav, str):
            yield nav
        for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
            yield from pages(each)

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages(nav)) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


@pytest.mark.parametrize(("path", "most"), [(ROOT / "README.md", 100)], ids=str)
def test_short_pages_stay_short(path, most):
    assert len(path.read_text().splitlines()) <= most


# Words

DIALECT = re.compile(r"\b(anew|whoever|somebody|nobody|likeliest|goes? on|beside|not yet)\b", re.IGNORECASE)
"""Words that only this project once used for what others call again, continues, compared with, and so on."""


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_pages_are_written_in_plain_words(path):
    prose = re.sub(r"<!--.*?-->|`[^`]*`|\*\*`.*?`\*\*", "", FENCED.sub("", path.read_text()), flags=re.DOTALL)
    assert DIALECT.findall(prose) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_written_in_plain_words(name, capsys):
    """Without markup and names of our classes too. "anew" is a value of --retrain-from."""
    with contextlib.suppress(SystemExit):
        cli.main([name, "--help-all" if COMMANDS[name].settings else "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("usage: ")
    assert not re.findall(r"`|\bRaises\b|\b[A-Z][a-z]+(?:Config|Error|Task|Env)\b", shown)
    assert {*DIALECT.findall(shown)} <= {"anew"}


def test_errors_are_written_in_plain_words():
    found = {}
    for path in ROOT.glob("ml_pipeline/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise):
                texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                if words := DIALECT.findall(" ".join(each for each in texts if isinstance(each, str))):
                    found[f"{named(path)}:{node.lineno}"] = words
    assert found == {}


# Commands


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_commands_exist_and_take_the_flags_that_are_shown(path, flags):
    makefile = (ROOT / "Makefile").read_text()
    extras = extras_of_project()
    for line in commands(path.read_text()):
        program, *words = shlex.split(line)
        match [program, *words]:
            case ["ml-pipeline", name, *_] if not name.startswith("-"):
                assert name in COMMANDS, line
                called = f"ml-pipeline {name}"
            case ["python" | ".venv/bin/python", "-m", "pytest", *paths]:
                assert all((ROOT / each).exists() for each in paths), line
                continue
            case ["python", "-m", module, *_]:
                file = ROOT / f"{module.replace('.', '/')}.py"
                assert file.is_file() or (file.with_suffix("") / "__main__.py").is_file(), line
                called = module
            case ["python", script, *_] if script.endswith(".py"):
                assert (ROOT / script).is_file(), line
                called = script
            case ["make", target, *_]:
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{line}: the Makefile has no {target}"
                continue
            case ["pip", "install", *_]:
                named_extras = ",".join(re.findall(r"\.\[([\w,]+)\]", line))
                assert set(named_extras.split(",")) - {""} <= {*extras}, line
                continue
            case _:
                continue
        shown = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert shown <= {*flags.get(called, ()), *COMMON}, line


def test_an_extra_is_installed_in_one_way():
    """In double quotes, which every shell takes, and from the clone: `ml-pipeline` of PyPI is another project."""
    found = []
    for path in TEXTS:
        found += re.findall(r"install [^`\n]*\[[\w,-]+\]['\"]?", path.read_text())
    taken = r'install (-e "\.\[[\w,]+\]"|"gymnasium\[[\w-]+\]")'
    assert [each for each in found if not re.fullmatch(taken, each)] == []
    assert 'install -e ".[fast,dashboard]"' in found


def test_messages_name_extras_that_exist():
    text = {path: path.read_text() for path in ROOT.glob("ml_pipeline/**/*.py")}
    named_extras = {name for each in text.values() for name in re.findall(r"install_extra\(['\"](\w+)['\"]\)", each)}
    assert {"tune", "dashboard", "alpaca"} <= named_extras <= {*extras_of_project()}
    by_hand = re.compile(r"pip install[^\n]*\.?\[(?!\{name)|ml-pipeline\[")
    assert [path for path, each in text.items() if by_hand.search(each)] == []


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_flags_in_sentences_exist(path, flags):
    known = set().union(*flags.values()) | COMMON
    in_spans = {span.split()[0] for span in spans(path.read_text()) if FLAG.match(span)}
    assert in_spans <= known


def test_the_reference_lists_every_command_once():
    page = (DOCS / "reference" / "commands-and-files.md").read_text()
    assert sorted(re.findall(r"^\| `ml-pipeline ([a-z0-9-]+)", page, re.MULTILINE)) == sorted(COMMANDS)


# Examples

BLOCKS = [(path, number, *block) for path in TEXTS for number, block in enumerate(blocks(path))]
BLOCK_IDS = [f"{named(path)}-{number}" for path, number, *_ in BLOCKS]


@pytest.mark.parametrize(("path", "number", "source", "runs"), BLOCKS, ids=BLOCK_IDS)
def test_python_compiles(path, number, source, runs):
    compile(source, f"{named(path)}, block {number}", "exec")


@pytest.mark.usefixtures("short_built_in_market", "undrawn_reports")
@pytest.mark.parametrize(
    "source",
    [pytest.param(b[2], id=i) for b, i in zip(BLOCKS, BLOCK_IDS, strict=True) if b[3] and b[0] != RUN_AS_A_WHOLE],
)
def test_python_runs(source, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shortened = re.sub(r"total_timesteps=[\d_]+", "total_timesteps=64", source)  # one iteration
    exec(compile(shortened, "a block", "exec"), {"__name__": "__main__"})


@pytest.mark.long
def test_the_script_of_several_ranks_runs_under_torchrun(tmp_path):
    (source, _), *others = blocks(DOCS / "guides" / "train-on-several-machines.md")
    assert not others
    (tmp_path / "script.py").write_text(source)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    done = subprocess.run(
        [*torchrun, "--log-dir", str(tmp_path / "logs"), "--nproc-per-node", "2", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 4,096 of 4,096") == 1


@pytest.mark.parametrize("path", TEXTS, ids=named)
def test_files_of_settings_are_taken(path, tmp_path):
    file = tmp_path / "settings.yaml"
    for language, block in FENCED.findall(path.read_text()):
        is_search_space = block.startswith("# space.yaml")  # which tests/tuning/search/test_space.py reads
        if language == "yaml" and not is_search_space:
            file.write_text(block)
            config = parse_train_start(["--config", str(file)]).config
            settings = {name: value for name, value in yaml.safe_load(block).items() if name not in SECTIONS}
            assert settings.items() <= flatten(config).items()


# Names and measurements


def test_the_tree_names_every_folder_and_no_other():
    fenced = [block for _, block in FENCED.findall((ROOT / "CONTRIBUTING.md").read_text())]
    (tree,) = [block for block in fenced if block.startswith("ml_pipeline/")]
    shown, above = set(), {-1: Path()}
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        folder = above[max(level for level in above if level < indent)] / line.split()[0]
        above = {level: path for level, path in above.items() if level < indent} | {indent: folder}
        assert line.split(maxsplit=1)[1], f"{folder} has no phrase"
        shown.add(folder)
    missing = [folder for folder in shown if not (ROOT / folder).is_dir()]
    assert missing == []
    modules = {path.parent.relative_to(ROOT) for path in ROOT.glob("ml_pipeline/**/*.py") if path.stem != "__init__"}
    assert modules <= shown


def test_every_metric_is_explained_and_no_other():
    numbers = dict.fromkeys(IterationStatistics.__dataclass_fields__, 1)
    update = UpdateStatistics(*np.ones(len(UpdateStatistics._fields)))
    statistics = IterationStatistics(**{**numbers, "update": update, "time_spent": TimeSpent(1, 1, 1, 1, 1)})
    explained = re.findall(r"^\| `(\w+/\w+)` \|", (DOCS / "reference" / "metrics.md").read_text(), re.MULTILINE)
    resources = [f"system/{name}" for name in Usage._fields]
    by_runs = ["time/evaluating_s", "eval/score", "workers/count"]
    assert sorted(explained) == sorted([*statistics.metrics(), *resources, *by_runs])


def test_features_and_rewards_exist():
    page = (DOCS / "guides" / "train-on-a-market.md").read_text()
    for name in re.findall(r"^\| `([a-z_]+(?:_N)?)` \|", section(page, "Features"), re.MULTILINE):
        make_features(name.replace("_N", "_20"))
    rewards = re.findall(r"^\| (`[a-z_`, ]+`) \|", section(page, "Rewards"), re.MULTILINE)
    for name in re.findall(r"`(\w+)`", " ".join(rewards)):
        make_reward(name, 1.0)
    assert len(rewards) >= 5


def test_the_learning_table_is_what_was_measured():
    assert (DOCS / "learning" / "table.md").read_text() in (DOCS / "evidence.md").read_text()


@pytest.fixture(scope="module")
def said() -> str:
    """Every text that the program may print, with a blank for each value, in one line."""
    texts = []
    for path in ROOT.glob("ml_pipeline/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "_" for part in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return " ".join(" ".join(texts).split())


MESSAGES = re.findall(r"\*\*`([^`]+)`\*\*", (DOCS / "reference" / "errors.md").read_text())


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_those_of_the_program(message, said):
    """Any four words of it in a row: values differ."""
    words = message.replace("\n", " ").split()
    runs = [" ".join(words[i : i + 4]) for i in range(len(words) - 3)]
    assert any(run in said for run in runs)


# The built pages


@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_pages_build_without_a_warning_and_load_nothing_from_elsewhere(tmp_path, flags):
    venv, site = tmp_path / "venv", tmp_path / "site"
    subprocess.run(
        ["make", "docs", f"PYTHON={sys.executable}", f"DOCS_VENV={venv}", f"SITE={site}"], cwd=ROOT, check=True
    )
    hooks = [DOCS / "hooks" / name for name in ("docstrings.py", "source_links.py")]
    subprocess.run([venv / "bin/python", "-m", "doctest", *hooks], cwd=ROOT, check=True)
    for page in site.rglob("*.html"):
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//', page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text()), style
    assert not (site / "hooks").exists()

    settings = (site / "reference" / "settings.html").read_text()
    missing = flags["ml-pipeline train"] - set(FLAG.findall(settings))
    assert [flag for flag in missing if not flag.startswith("--no-")] == []
    assert "--no-normalize-obs" in settings
    parallel_env = (site / "api" / "parallel-env.html").read_text()
    assert re.search(r"<li><strong><code>num_workers</code></strong>: \S", parallel_env)
    assert "&gt;&gt;&gt; </span>" in parallel_env  # a doctest as code, no quotation
