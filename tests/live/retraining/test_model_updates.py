"""A session's model is watched and retrained where its versions belong, and a replay may wait for it."""

import shutil

import pytest

from ml_pipeline.live.retraining.config import RetrainConfig
from ml_pipeline.live.retraining.model_updates import ModelUpdates, model_written_to
from ml_pipeline.live.retraining.retrainer import RetrainedSession
from ml_pipeline.live.retraining.task_folder import read_order
from ml_pipeline.runs.trained.restore import find_policy
from ml_pipeline.tuning.promotion.model_store import ModelStore
from tests.live.retraining import stand_in
from tests.live.retraining.small_sessions import TRADING, deployed, growing, market, trained_model

BARS = market(72)
PROMOTES = """
import json, os
order = json.load(open(folder + "/order.json"))
model = order["models"] + "/" + order["name"]
os.symlink("v2", model + "/.new")
os.replace(model + "/.new", model + "/current")
json.dump({"state": "promoted", "sentence": "better", "version": "v2"}, open(folder + "/outcome.json", "w"))
"""


class StandIn:
    def __init__(self, folder):
        self.n_seen = 0

    def observe(self, bars):
        self.n_seen += 1
        return True

    def observe_all(self, bars, stopping):
        self.n_seen += len(bars)
        return True


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_model(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def two_versions(tmp_path_factory, run):
    models = tmp_path_factory.mktemp("models")
    for _ in range(2):
        deployed(models, run)
    ModelStore(models, "toy").roll_back()
    return models


@pytest.fixture
def models(tmp_path, two_versions, monkeypatch):
    """models/toy has two versions, the first of which is current."""
    stand_in.put(monkeypatch, PROMOTES)
    shutil.copytree(two_versions, tmp_path / "models", symlinks=True)
    return tmp_path / "models"


def updates(folder, named, *, told=None, logged=None, stopping=lambda: False, **settings):
    checkpoint = find_policy(named)
    session = RetrainedSession(folder=folder, named=named, checkpoint=checkpoint, trading=TRADING)
    return ModelUpdates(
        RetrainConfig(**settings),
        session,
        load=StandIn,
        tell=([] if told is None else told).append,
        log=([] if logged is None else logged).append,
        stopping=stopping,
    )


def switches(kept, bars=BARS):
    """(number of bars seen, version) of each switch."""
    found = [(tape.n_bars, kept.poll(tape.market)) for tape in growing(bars)]
    return [(n, ready.version) for n, ready in found if ready is not None]


@pytest.mark.slow
def test_versions_belong_to_the_model_that_is_followed_or_to_the_session(tmp_path, run, models):
    def place(named, checkpoint, models_dir=None):
        return model_written_to(checkpoint, models_dir, folder=tmp_path, named=named)

    version = models / "toy" / "v1" / "best.pt"
    for followed in (models / "toy", models / "toy" / "current", models / "toy" / "current" / "best.pt"):
        assert place(followed, version) == models / "toy"
    for fixed in (models / "toy" / "v1", version):
        assert place(fixed, version) == tmp_path / "models" / "toy"
    assert place(run, run / "best.pt") == tmp_path / "models" / "run"
    assert place(run, run / "best.pt", tmp_path / "others") == tmp_path / "others" / "run"


@pytest.mark.slow
def test_a_replay_that_waits_switches_at_the_bar_where_it_is_due(tmp_path, models):
    logged = []
    kept = updates(tmp_path / "s", models / "toy", logged=logged, retrain_every="1d", retrain_wait=True)
    assert switches(kept) == [(25, "v2")]
    assert [event.state for event in logged] == ["begun", "promoted", "begun", "promoted"]
    assert kept.status()["version"] == "v2"
    orders = [read_order(tmp_path / "s" / "retraining" / number) for number in "12"]
    assert [order.incumbent_name for order in orders] == ["v1", "v2"]
    kept.close()


@pytest.mark.slow
def test_a_session_that_is_to_stop_waits_no_longer(tmp_path, models, monkeypatch):
    stand_in.put(monkeypatch, "import time; time.sleep(1000)")
    kept = updates(tmp_path / "s", models / "toy", retrain_every="1d", retrain_wait=True, stopping=lambda: True)
    assert switches(kept, BARS.bars(0, 30)) == []
    kept.close()


@pytest.mark.slow
def test_without_retraining_a_promotion_is_noticed_all_the_same(tmp_path, models):
    kept = updates(tmp_path / "s", models / "toy" / "current")
    assert switches(kept) == []
    ModelStore(models, "toy").roll_back(to=2)
    tapes = growing(BARS)
    while (ready := kept.poll(next(tapes).market)) is None:
        kept._watch.wait(60)
    assert ready.version == "v2"
    assert kept.status() is None
    kept.close()
    kept.close()


@pytest.mark.slow
def test_a_session_of_a_fixed_version_stays_with_it(tmp_path, models):
    kept = updates(tmp_path / "s", models / "toy" / "v1")
    ModelStore(models, "toy").roll_back(to=2)
    assert switches(kept) == []
    kept.close()
