"""What `models/NAME/current` means to whoever loads, evaluates, plays or backtests it."""

import shutil

import pytest

from ml_pipeline import backtest, enjoy, evaluate_ppo, train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.trained.deployed import is_version_folder, resolved
from ml_pipeline.runs.trained.load_policy import load_policy
from ml_pipeline.tuning.promotion.model_store import ModelStore

SMALL = ["--n-envs", "2", "--n-steps", "32", "--minibatch-size", "32", "--hidden-sizes", "8", "--n-epochs", "1"]
SMALL += ["--iterations", "1", "--eval-interval", "1", "--vec-env", "serial"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A market's model in two versions."""
    folder = tmp_path_factory.mktemp("deployed")
    run, store = folder / "run", ModelStore(folder / "models", "market")
    assert train_ppo.main([*SMALL, "--checkpoint-dir", str(run)]) == 0

    def fill(version):
        for name in ("best.pt", "config.yaml"):
            shutil.copyfile(run / name, version / name)

    store.promote(fill, {}, instead_of=None)
    store.promote(fill, {}, instead_of=1)
    return store.models


@pytest.mark.slow
@pytest.mark.parametrize("named", ["market/current", "market", "market/current/best.pt"])
def test_what_is_deployed_is_loaded_from_the_version_that_it_names(models, named):
    policy = load_policy(str(models / named))
    assert policy.checkpoint == models / "market/v2/best.pt"


@pytest.mark.slow
def test_the_report_on_a_version_lies_beside_it(models, capsys):
    before = sorted((models / "market/v2").iterdir())
    assert evaluate_ppo.main([str(models / "market/current"), "--split", "validation"]) == 0
    assert (models / "market/evaluations/v2-validation/evaluation.json").is_file()
    assert sorted((models / "market/v2").iterdir()) == before
    assert "evaluations/v2-validation" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("named", ["market/current", "market/current/config.yaml", "market/v2"])
def test_a_deployed_model_is_backtested(models, tmp_path, capsys, named):
    out = tmp_path / "report"
    flags = ["--config", str(models / named), "--output-dir", str(out), "--split", "validation"]
    assert backtest.main(flags) == 0
    assert (out / "evaluation.json").is_file()


@pytest.mark.slow
def test_a_deployed_model_plays(models, capsys):
    assert enjoy.main([str(models / "market/current")]) == 0
    assert "market/v2/best.pt" in capsys.readouterr().out


def test_a_version_is_told_from_any_other_folder(models, tmp_path):
    (tmp_path / "v1").mkdir()
    assert is_version_folder(models / "market/v1")
    assert not is_version_folder(tmp_path / "v1")


def test_a_folder_called_current_that_is_no_deployed_model_stays_itself(tmp_path):
    (tmp_path / "current").mkdir()
    assert resolved(tmp_path / "current") == tmp_path / "current"
    assert resolved(tmp_path) == tmp_path
    (tmp_path / "other").mkdir()
    (tmp_path / "link").mkdir()
    (tmp_path / "link/current").symlink_to("../other")
    assert resolved(tmp_path / "link/current") == tmp_path / "link/current"


def test_a_deployed_version_that_was_deleted_is_told(tmp_path):
    (tmp_path / "market").mkdir()
    (tmp_path / "market/current").symlink_to("v3")
    for named in ("market/current", "market", "market/current/best.pt"):
        with pytest.raises(UserError, match=r"names v3, which does not exist: it was deleted.*rollback market"):
            load_policy(tmp_path / named)


def test_a_model_that_was_never_promoted_is_told_with_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"nothing is deployed there.*`ml-pipeline promote STUDY`, or name a run"):
        load_policy(str(tmp_path / "models/first/current"))
