"""`ml-pipeline models` and `rollback`, as a user types them."""

import json
import shutil
import sys

import pytest
from rich.console import Console

from ml_pipeline.tuning.commands import models, rollback
from ml_pipeline.tuning.promotion.model_store import ModelStore
from tests.tuning.small_models import promote

STUDY = "eurusd_5m_with_a_name_that_is_long"


@pytest.fixture
def root(tmp_path):
    store = ModelStore(tmp_path, "eurusd")
    promote(store, "first", study=STUDY, when="2026-01-02T03:04:05+00:00", statistics={"dsr": 0.97})
    compared = {"version": "v1", "difference": 3e-5, "standard_error": 1e-5}
    promote(store, "second", study=STUDY, when="2026-01-03T03:04:05+00:00", compared_with=compared)
    promote(ModelStore(tmp_path, "cart"), "first", study="cart")
    return tmp_path


def run(command, root, *words, capsys):
    code = 0
    try:
        code = command.main([*words, "--models-dir", str(root)])
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def test_models_are_listed_in_a_pipe_in_full(root, capsys):
    code, out, _ = run(models, root, capsys=capsys)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0] == ["MODEL", "CURRENT", "VERSIONS", "SINCE", "STUDY", "TRIAL", "VALUE"]
    assert [line[:3] for line in lines[1:]] == [["cart", "v1", "1"], ["eurusd", "v2", "2"]]
    assert lines[2][-3:] == [STUDY, "3", "0.25"]


def test_versions_of_a_model_are_listed_with_their_switches(root, capsys):
    run(rollback, root, "eurusd", capsys=capsys)
    _, out, _ = run(models, root, "eurusd", capsys=capsys)
    table = [line.split() for line in out.splitlines()]
    assert table[1][:2] == ["v1", "current"]
    assert table[1][-2:] == ["0.97", "-"]
    assert table[2][:2] == ["v2", "earlier"]
    assert table[2][-2:] == ["3.0", "SE"]
    assert [line[2:] for line in table[3:]] == [
        ["promote", "v1"],
        ["promote", "v1", "->", "v2"],
        ["rollback", "v2", "->", "v1"],
    ]


@pytest.mark.parametrize("words", [(), ("eurusd",)])
def test_tables_fit_into_80_columns(root, capsys, monkeypatch, words):
    narrow = Console(highlight=False, width=80, force_terminal=True, file=sys.stdout)
    narrow._file = None  # whatever stdout is by then
    monkeypatch.setattr(models, "Console", lambda **options: narrow)
    _, out, _ = run(models, root, *words, capsys=capsys)
    import re

    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in out.splitlines()]
    assert max(map(len, lines)) <= 80
    title = {(): "VALUE", ("eurusd",): "BETTER BY"}[words]
    assert title in lines[0]
    assert "eurusd" in out


def test_json_tells_everything(root, capsys):
    _, out, _ = run(models, root, "eurusd", "--json", capsys=capsys)
    (model,) = json.loads(out)
    assert (model["name"], model["current"]) == ("eurusd", "v2")
    assert [version["version"] for version in model["versions"]] == ["v1", "v2"]
    assert [switch["to"] for switch in model["history"]] == ["v1", "v2"]


def test_damaged_and_deleted_versions_are_shown_as_such(root, capsys):
    record = root / "eurusd/v1/promotion.json"
    record.chmod(0o644)
    record.write_text("{")
    shutil.rmtree(root / "eurusd/v2")
    _, out, _ = run(models, root, "eurusd", capsys=capsys)
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["v1", "damaged"], ["v2", "deleted"]]
    _, out, _ = run(models, root, capsys=capsys)
    assert "v2, deleted" in out


def test_a_rollback_says_what_is_deployed(root, capsys):
    code, out, _ = run(rollback, root, "eurusd", capsys=capsys)
    assert (code, out.startswith("v1 of eurusd is deployed in place of v2: ")) == (0, True)


@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        (rollback, ("eurusd", "--to", "x"), '--to must be a version, such as v2, but got "x".'),
        (rollback, ("eurusd", "--to", "v9"), "eurusd has no version v9; its versions: v1, v2."),
        (rollback, ("eurusd", "--to", "v2"), "v2 of eurusd is already deployed."),
        (rollback, ("cart",), "No version of cart from before v1 still exists; there is no other version."),
        (rollback, ("../eurusd",), '"../eurusd" cannot be the name of a model'),
        (rollback, (), "NAME is missing"),
        (models, ("eurus",), 'Did you mean "eurusd"?'),
        (models, ("eurusd", "cart"), 'Name one model at a time, but got "eurusd" and "cart".'),
    ],
)
def test_wrong_input_is_one_sentence_and_code_2(root, capsys, command, words, sentence):
    code, _, err = run(command, root, *words, capsys=capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err


def test_an_empty_folder_of_models_says_what_to_do(tmp_path, capsys):
    code, out, _ = run(models, tmp_path, capsys=capsys)
    assert (code, "promote one with `ml-pipeline promote STUDY`" in out) == (0, True)
