"""`ml-pipeline promote`, as a user types it: what it prints, how it ends, and what it needs."""

import os
import signal
import subprocess
import sys

import pytest

import ml_pipeline
from ml_pipeline.tuning import study_files
from ml_pipeline.tuning.commands import promote
from ml_pipeline.tuning.promotion.model_store import ModelStore
from tests.small_runs import trained
from tests.tuning.small_studies import add_trial, new_study


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A study "toy" with a finished trial, and one "empty"."""
    root = tmp_path_factory.mktemp("root")
    study, folder = new_study(root)
    add_trial(study, folder, trained(root / "run", iterations=1).folder, value=1.0)
    new_study(root, "empty")
    return root


def run(*words, capsys):
    code = 0
    try:
        code = promote.main([str(word) for word in words])
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


@pytest.mark.slow
def test_it_deploys_and_says_so_once(root, tmp_path, capsys, monkeypatch):
    from ml_pipeline.runs.trained import export

    monkeypatch.setattr(export, "export_checkpoint", lambda config: config.path.write_text("exported"))
    words = ("toy", "--root", root, "--models-dir", tmp_path, "--name", "best")
    code, out, err = run(*words, capsys=capsys)
    assert (code, err) == (0, "")
    assert out.startswith("v1 of best is deployed. Its deflated Sharpe ratio was not checked")
    assert out.splitlines()[-1] == str(tmp_path / "best/current")
    code, out, _ = run(*words, capsys=capsys)
    assert (code, out.splitlines()[0]) == (0, "Trial 0 is already deployed, as v1 of best.")
    assert ModelStore(tmp_path, "best").deployed().promotion["package_version"] == ml_pipeline.__version__


def test_a_refusal_is_one_sentence_and_code_1(root, tmp_path, capsys):
    code, out, err = run("empty", "--root", root, "--models-dir", tmp_path, capsys=capsys)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "The study empty has no finished trial yet." in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "STUDY is missing"),
        (("toyy",), 'Did you mean "toy"?'),
        (("../toy",), '"../toy" cannot be the name of a model'),
        (("../toy", "--name", "toy"), '"../toy" is not the name of a study'),
        (("toy", "--name", "a/b"), '"a/b" cannot be the name of a model'),
        (("toy", "--min-dsr", "2"), "--min-dsr is a probability from 0 to 1, but got 2."),
        (("toy", "--margin", "-1"), "--margin is a number of standard errors, 0 or more, but got -1."),
        (("toy", "--trial", "5"), "toy has no finished trial 5; finished trials: 0."),
        (("toy", "--trial", "0", "--watch"), "use one of them"),
        (("toy", "--watch", "--interval-s", "0"), "interval_s"),
        (("toy", "--storage", "sqlite:///x.db"), "A study cannot be stored in SQLite"),
    ],
)
def test_wrong_input_is_one_sentence_and_code_2(root, tmp_path, capsys, words, sentence):
    code, _, err = run(*words, "--root", root, "--models-dir", tmp_path, capsys=capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert list(tmp_path.iterdir()) == []


def test_without_optuna_it_says_which_extra_to_install(root, capsys, monkeypatch):
    monkeypatch.setattr(study_files, "find_spec", lambda name: None)
    code, _, err = run("toy", "--root", root, capsys=capsys)
    assert (code, 'pip install -e ".[tune]"' in err) == (2, True)
    with pytest.raises(SystemExit) as stop:
        promote.main(["--help"])
    assert stop.value.code == 0


@pytest.mark.long
def test_watching_ends_by_ctrl_c_with_code_0(root, tmp_path):
    command = [sys.executable, "-m", "ml_pipeline", "promote", "empty", "--watch", "--interval-s", "0.05"]
    command += ["--root", str(root), "--models-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as watch:
        try:
            assert "The study empty has no finished trial yet." in watch.stdout.readline()
            watch.send_signal(signal.SIGINT)
            out, err = watch.communicate()
        finally:
            watch.kill()
    assert (watch.returncode, out, err) == (0, "", "")
