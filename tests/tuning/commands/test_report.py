"""`ml-pipeline report`: what it prints, and what it says about what it cannot use."""

import re

import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from ml_pipeline.tuning.commands.report import main
from tests.tuning.written_studies import noise_study


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "eurusd_5m"
    folder.mkdir()
    storage = JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    noise_study(folder, 4, name="eurusd_5m", storage=storage)
    return tmp_path


def test_it_prints_the_verdict_and_where_the_page_is(root, capsys):
    assert main(["eurusd_5m", "--root", str(root), "--n-trials", "9"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No evidence")
    assert "4 of 9 trials have finished" in out
    assert out.rstrip().endswith("eurusd_5m/report.html")
    assert (root / "eurusd_5m" / "report.html").is_file()


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["eurusd"], 'There is no study eurusd.*Did you mean "eurusd_5m"'),
        (["eurusd_5m", "--n-trials", "0"], "n.trials must be"),
        (["eurusd_5m", "--no-open-test", "--open-test-again"], "keeps it closed; use one of them"),
        ([], "STUDY is missing"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(root, capsys, argv, sentence):
    with pytest.raises(SystemExit) as ended:
        main([*argv, "--root", str(root)])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert re.search(sentence, " ".join(told.split()))


def test_the_test_can_be_kept_closed(root, capsys):
    main(["eurusd_5m", "--root", str(root), "--n-trials", "4", "--no-open-test"])
    assert "The test was not opened, because of --no-open-test." in capsys.readouterr().out
    assert not (root / "eurusd_5m" / "test_opened.jsonl").exists()
