import csv
from dataclasses import replace
from itertools import pairwise

import pytest

from ml_pipeline.experiments.walk_forward import described, main
from ml_pipeline.trading.evaluation.implausible_results import ImplausibleResult
from ml_pipeline.trading.market.splits import walk_forward_folds
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask

pytestmark = pytest.mark.long


@pytest.mark.parametrize("window", ["rolling", "expanding"])
@pytest.mark.parametrize("n_folds", [1, 3, 7])
def test_tests_follow_one_another_to_the_end_each_after_its_training(window, n_folds):
    folds = walk_forward_folds(13, 1000, n_folds, window=window, embargo_bars=4)
    assert len(folds) == n_folds
    assert folds[-1]["test"].stop == 1000
    for fold, following in pairwise(folds):
        assert following["test"].start == fold["test"].stop - 1  # no transition is left out, none counts twice
    for fold in folds:
        assert fold["train"].stop + 4 == fold["validation"].start
        assert fold["validation"].stop + 4 == fold["test"].start + 1
        assert (fold["train"].start == 13) or window == "rolling"


def test_it_runs_as_a_command(tmp_path, capsys):
    assert main(["--folds", "2", "--total-timesteps", "4096", "--output-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split(",")[0] for line in lines[:3]] == ["fold 1", "fold 2", "stitched"]
    assert "random" in lines[0]
    assert lines[-1] == f"Written to {tmp_path}"
    page = (tmp_path / "report.html").read_text()
    assert "a new fold" in page
    assert "a grey line marks the start of each fold" in page
    for name in ("ledger.csv", "trades.csv", "evaluation.json", "equity.png"):
        assert (tmp_path / name).is_file()
    with (tmp_path / "walk_forward.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len({row["time"] for row in rows}) == len(rows) == 2 * (12_000 - 25) // 3 + 1


def test_a_folder_that_cannot_be_written_is_one_sentence_before_anything_is_trained(tmp_path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as stopped:
        main(["--output-dir", str(tmp_path / "file" / "walk")])
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("walk_forward: The report cannot be written to ")


@pytest.mark.slow
def test_it_takes_the_costs_and_limits_of_training_and_its_settings(tmp_path, capsys):
    dear = ["--fee-bps", "300", "--sell-fee-bps", "400", "--window", "3", "--training-window", "expanding"]
    args = ["--folds", "1", "--total-timesteps", "2048", "--no-allow-short"]
    outcomes = []
    for costs in ([], dear):
        assert main([*args, *costs]) == 0
        outcomes.append(capsys.readouterr().out)
    assert outcomes[0] != outcomes[1]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--folds", "0"], "walk_forward: folds must be a whole number of at least 1, but got 0."),
        (["--training-window", "rolled"], "walk_forward: --training-window must be rolling or expanding"),
        (["--train-fraction", "0.5"], "walk_forward: Unknown flag --train-fraction."),
        (["--max-gross", "21"], "walk_forward: max_gross must be above 0 and at most 20"),
    ],
)
def test_a_bad_flag_is_one_sentence(flags, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(flags)
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1


def test_a_fold_is_told_with_its_error_and_its_alarms():
    market = synthetic_market(n_bars=400)
    task = TradingTask(TradingConfig(features=("log_return_1",)), market=market)
    honest = task.compare(lambda seen: 2 if seen[0] > 0 else 0, "test").evaluation
    error = honest.figures["agent"]["sharpe_se"]
    assert f"± {error:.2f}, largest drawdown" in described(honest)
    assert described(honest).splitlines()[1].startswith("  Few bars (60) and few trades (")
    implausible = replace(honest, implausible=ImplausibleResult(("half of it",)))
    assert "\n  Implausible: half of it." in described(implausible)


def test_the_number_of_bars_per_year_can_be_given(capsys):
    sharpes = []
    for given in ("252", "1008"):
        assert main(["--folds", "1", "--total-timesteps", "2048", "--periods-per-year", given]) == 0
        sharpes.append(float(capsys.readouterr().out.splitlines()[0].partition("Sharpe ")[2].split()[0]))
    assert sharpes[1] == pytest.approx(2 * sharpes[0], abs=0.02)
