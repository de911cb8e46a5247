"""A retraining learns from earlier bars, is judged on the latest, and is deployed by the rule of promotion."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.retraining import retraining_run, training_process_main
from ml_pipeline.live.retraining.bars import write_bars
from ml_pipeline.live.retraining.config import RetrainConfig
from ml_pipeline.live.retraining.retrainer import RETRAINING_FOLDER
from ml_pipeline.live.retraining.retraining_run import RetrainingTask, retrain, walk_forward
from ml_pipeline.live.retraining.task_folder import RUN, Outcome, read_outcome
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.trained import export
from ml_pipeline.runs.trained.restore import load_run
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.tuning.promotion.model_store import ModelStore
from tests.live.retraining import stand_in
from tests.live.retraining.small_sessions import TRADING, deployed, growing, market, retrainer, trained_model
from tests.small_runs import weights

pytestmark = pytest.mark.slow

BARS_OF_MODEL = market(300, seed=1)
BARS = market(250)
ANY = {"retrain_every": 199, "retrain_timesteps": 128, "retrain_min_dsr": 0.0, "retrain_margin": 0.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_bars(BARS_OF_MODEL, folder / "bars.parquet")
    return trained_model(folder / "run", trading=replace(TRADING, data=folder / "bars.parquet"))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Retrainings are prepared as ever and trained by the test itself; writing ONNX and pages takes seconds."""
    stand_in.put(monkeypatch, "pass")
    monkeypatch.setattr(export, "export_checkpoint", lambda config: config.path.write_text("exported"))
    monkeypatch.setattr(RetrainingTask, "report", lambda task, act, folder: "")


def prepared(folder, model, *, bars=BARS, every=1, **settings):
    """The folder of a retraining that is due at bar 199."""
    made = retrainer(folder, RetrainConfig(**{**ANY, **settings}), models=folder / "models")
    for i, tape in enumerate(growing(bars)):
        if i % every == 0 or i == bars.n_bars - 1:
            made.poll(tape.market, model, model.name)
    made.wait(60)
    made.close()
    ready = folder / RETRAINING_FOLDER / "1"
    (ready / "outcome.json").unlink()
    return ready


def better(monkeypatch):
    """Lets any policy that is retrained earn more on each bar than the one before."""
    monkeypatch.setattr(retraining_run, "compare_on_validation", lambda ours, theirs: Difference(1.0))


class Difference:
    """Of some standard errors."""

    def __init__(self, n):
        self._n = n

    def exceeds(self, margin):
        return self._n > margin

    def as_json(self):
        return {"difference": self._n}

    def __str__(self):
        return f"{self._n}"


def test_the_same_bars_and_seed_give_the_same_weights_at_any_speed(tmp_path, model):
    folders = [prepared(tmp_path / str(every), model, every=every) for every in (1, 49)]
    for folder in folders:
        retrain(folder)
    assert torch.equal(*(weights(folder / RUN, "latest.pt") for folder in folders))


def test_one_that_was_cut_off_gives_the_same_weights(tmp_path, model, monkeypatch):
    whole, cut = (prepared(tmp_path / name, model) for name in ("whole", "cut"))
    retrain(whole)
    begin = Run.__init__

    def stopped(run, *arguments, **keywords):
        stop = StopRequest()
        stop.request("power cut")
        begin(run, *arguments, **keywords, stop=stop)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "__init__", stopped)
        with pytest.raises(UserError, match="Its run was stopped: power cut"):
            retrain(cut)
    assert (cut / RUN / "latest.pt").exists()
    retrain(cut)
    assert torch.equal(weights(cut / RUN), weights(whole / RUN))


def test_it_learns_from_the_bars_before_those_that_judge_it(tmp_path, model):
    """Other prices in the bars for judging change no weight, and other ones before do."""
    later, earlier = BARS.close.copy(), BARS.close.copy()
    later[165:] *= np.linspace(1.0, 1.5, len(later) - 165)[:, None]
    earlier[100:120] *= 1.02
    folders = {}
    for name, close in (("same", BARS.close), ("later", later), ("earlier", earlier)):
        bars = replace(BARS, close=close, open=close, high=close * 1.001, low=close * 0.999)
        folders[name] = prepared(tmp_path / name, model, bars=bars)
        retrain(folders[name])
    same, later, earlier = (weights(folders[name] / RUN) for name in ("same", "later", "earlier"))
    assert torch.equal(same, later)
    assert not torch.equal(same, earlier)


def test_the_splits_are_training_then_judging_up_to_the_end():
    config = walk_forward(TRADING, bars := synthetic_market(), validation=0.2)
    splits = RetrainingTask(config, market=bars).account.splits_by(
        train=config.train_fraction, validation=config.validation_fraction
    )
    first, n = splits["train"].start, bars.n_bars
    assert splits["validation"].stop == n - 2
    assert splits["validation"].n_bars == round((n - first) * 0.2)
    assert splits["train"].stop == splits["validation"].start


@pytest.mark.parametrize(("embargo", "expected"), [(0, [4, 2, 2]), (5, [2, 4, 2])])
def test_few_bars_are_split_or_refused_in_a_sentence(embargo, expected):
    trading = replace(TRADING, embargo_bars=embargo)
    with pytest.raises(UserError, match=r"A retraining needs more bars: there are 17, of which 15 are the warm-up"):
        walk_forward(trading, market(17), validation=0.2)
    enough = market(15 + 8 + 2 * embargo)
    config = walk_forward(trading, enough, validation=0.2)
    task = RetrainingTask(config, market=enough)
    assert [task.account.split(name).n_bars for name in ("train", "validation", "test")] == expected


@pytest.mark.parametrize("begin", ["deployed", "anew"])
def test_it_begins_with_the_scaling_of_the_model_or_with_its_own(tmp_path, model, begin):
    folder = prepared(tmp_path, model, retrain_from=begin)
    retrain(folder)
    theirs, ours = (load_checkpoint(each / "best.pt")["task"]["scaler"] for each in (model, folder / RUN))
    assert (theirs == ours) == (begin == "deployed")


def test_a_better_one_is_deployed_and_its_version_says_where_it_came_from(tmp_path, model, monkeypatch):
    better(monkeypatch)
    folder = prepared(tmp_path, model)
    outcome = retrain(folder)
    assert (outcome.state, outcome.version) == ("promoted", "v1")
    version = ModelStore(tmp_path / "models", "toy").deployed()
    version.require_whole()
    record = version.promotion
    expected = {"session": tmp_path.name, "retraining": 1, "begun_from": "deployed", "replaces": "run", "min_dsr": 0.0}
    assert {name: record[name] for name in expected} == expected
    assert record["bars"] == {"first": str(BARS.times[0]), "last": str(BARS.times[199]), "count": 200}
    assert record["statistics"]["n_checkpoints"] == 2
    assert load_run(version.folder / "best.pt")[0].trading.data == folder / "bars.parquet"
    assert (version.folder / "validation" / "ledger.csv").exists()


def test_one_that_is_no_better_is_refused_with_the_figures(tmp_path, model):
    folder = prepared(tmp_path, model, retrain_margin=1e6)
    outcome = retrain(folder)
    assert outcome.state == "refused"
    assert "does not beat the deployed run by more than 1e+06 standard errors (--retrain-margin)" in outcome.sentence
    assert ModelStore(tmp_path / "models", "toy").current is None


def test_one_that_may_be_luck_is_refused_with_the_figures(tmp_path, model):
    outcome = retrain(prepared(tmp_path, model, retrain_min_dsr=1.0))
    assert outcome.state == "refused"
    assert "as the best of 2 checkpoints, but at least 1 is required (--retrain-min-dsr)" in outcome.sentence


def test_it_is_compared_with_what_is_deployed_by_then(tmp_path, model, monkeypatch):
    """Somebody promotes another version while it trains, and one more while it is judged."""
    folder = prepared(tmp_path, model)
    other = deployed(tmp_path / "models", model)
    compared = []

    def compare(ours, theirs):
        compared.append(theirs.checkpoint.parent.name)
        if len(compared) == 1:
            deployed(tmp_path / "models", model)
        return Difference(1.0)

    monkeypatch.setattr(retraining_run, "compare_on_validation", compare)
    assert other.name == "v1"
    assert retrain(folder).version == "v3"
    assert compared == ["v1", "v2"]


def test_one_that_was_killed_after_it_was_deployed_is_deployed_once(tmp_path, model, monkeypatch):
    better(monkeypatch)
    folder = prepared(tmp_path, model)
    assert retrain(folder).version == "v1"
    assert retrain(folder).version == "v1"
    assert len(ModelStore(tmp_path / "models", "toy").versions()) == 1


def test_the_process_writes_what_came_of_it(tmp_path, model, monkeypatch):
    folder = prepared(tmp_path, model)
    monkeypatch.setattr(training_process_main, "_step_back", lambda cores: None)
    session = SimpleNamespace(next_order=lambda: {"folder": str(folder)})
    monkeypatch.setattr(retraining_run, "retrain", lambda folder: Outcome(state="refused", sentence="no"))
    assert training_process_main.main(session) == 0
    assert read_outcome(folder) == Outcome(state="refused", sentence="no")

    def broken(folder):
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(retraining_run, "retrain", broken)
    with pytest.raises(ZeroDivisionError):
        training_process_main.main(session)
    assert read_outcome(folder).sentence == "It failed with ZeroDivisionError: by zero"


@pytest.mark.long
def test_a_real_process_trains_judges_and_deploys(tmp_path, model, monkeypatch):
    monkeypatch.undo()
    v1 = deployed(tmp_path / "models", model)
    config = RetrainConfig(**{**ANY, "retrain_min_dsr": 0.0})
    made = retrainer(tmp_path, config, models=tmp_path / "models")
    events = []
    for tape in growing(BARS):
        events += made.poll(tape.market, v1.folder, v1.name)
        made.wait(100)
    made.close()
    assert [event.state for event in events][:1] == ["begun"]
    assert events[1].state in {"promoted", "refused"}
    folder = tmp_path / RETRAINING_FOLDER / "1"
    assert json.loads((folder / "outcome.json").read_text())["state"] == events[1].state
    assert (folder / RUN / "report.html").exists()
    assert load_market(folder / "bars.parquet").n_bars == 200
