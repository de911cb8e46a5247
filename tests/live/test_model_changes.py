"""A session switches to another model between two bars, and decides then as if it had always had it."""

from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.live.decisions.deployed_policy import load_deployed_policy
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.model_changes import model_to_begin_with, runner_loader
from ml_pipeline.live.retraining.bars import write_bars
from ml_pipeline.live.retraining.config import RetrainConfig
from ml_pipeline.live.retraining.model_updates import ModelUpdates
from ml_pipeline.live.retraining.retrainer import RetrainedSession
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.tuning.promotion.model_store import ModelStore
from tests.live.retraining.small_sessions import TRADING, deployed, market, trained_model

pytestmark = pytest.mark.slow

BARS = market(120)
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """models/toy/v1 sees two features in two bars; v2 other ones, acts otherwise and costs more; v3 trades two symbols;
    v4 needs a column that the session's bars lack. v1 is current."""
    folder = tmp_path_factory.mktemp("models")
    for name, symbols in (("one", ("AAA",)), ("two", ("AAA", "BBB"))):
        write_bars(market(150, symbols=symbols), folder / f"{name}.parquet")
    mood = market(150)
    write_bars(replace(mood, columns={"feature_mood": mood.close.copy()}), folder / "mood.parquet")
    others = {
        1: {"data": folder / "one.parquet"},
        2: {
            **{"data": folder / "one.parquet", "features": ("log_return_5",), "window": 4, "fee_bps": 9.0},
            "action_mode": "target_weights",
        },
        3: {"data": folder / "two.parquet"},
        4: {"data": folder / "mood.parquet", "features": ("log_return_1", "feature_mood")},
    }
    for number, changes in others.items():
        run = trained_model(folder / f"run{number}", trading=replace(TRADING, **changes))
        deployed(folder / "models", run)
    return folder / "models"


@pytest.fixture
def store(models):
    """The models, of which v1 is current before and after a test."""
    store = ModelStore(models, "toy")
    if store.current != 1:
        store.roll_back(to=1)
    return store


class Session:
    """Deciders over the same bars, one after another."""

    def __init__(self, folder, store):
        self.told = []
        policy = load_deployed_policy(store.folder)
        self.decider = PolicyRunner(policy, BARS.symbols, BARS.timing, BARS.calendar)
        session = RetrainedSession(
            folder=folder, named=store.folder, checkpoint=policy.checkpoint, trading=policy.config
        )
        load = runner_loader(policy, BARS, {})
        self.updates = ModelUpdates(RetrainConfig(), session, load=load, tell=self.told.append, log=print)
        self._bars = iter(bar_sets_of(BARS))

    def poll(self):
        tape = self.decider.tape
        return self.updates.poll(tape.market) if tape.n_bars else None

    def pass_bars(self, n):
        """Observe so many bars; the models that were switched to."""
        switched = []
        for _ in range(n):
            if (ready := self.poll()) is not None:
                self.decider = ready.decider
                switched.append(ready.version)
            self.decider.observe(next(self._bars))
            self.updates._watch.wait(PATIENCE_S)
        return switched


@pytest.fixture
def session(tmp_path, store):
    made = Session(tmp_path, store)
    yield made
    made.updates.close()


def test_the_new_model_decides_as_if_it_had_seen_every_bar(session, store):
    session.pass_bars(40)
    assert store.roll_back(to=2).after == 2
    assert session.pass_bars(10) == ["v2"]
    alone = PolicyRunner(load_deployed_policy(store.folder / "v2"), BARS.symbols, BARS.timing, BARS.calendar)
    alone.observe_all(list(bar_sets_of(BARS))[:50])
    held = [0.25]
    ours, theirs = session.decider.decide(held), alone.decide(held)
    np.testing.assert_array_equal(ours.features, theirs.features)
    np.testing.assert_array_equal(ours.scaled, theirs.scaled)
    assert ours.weights == theirs.weights
    assert ours.time == BARS.times[49]


def test_its_actions_are_its_own_and_its_costs_the_sessions(session, store):
    session.pass_bars(40)
    store.roll_back(to=2)
    session.pass_bars(10)
    rules = session.decider.policy.rules
    assert rules.action_mode == "target_weights"
    assert rules.fee_bps == TRADING.fee_bps
    assert load_deployed_policy(store.folder / "v2").rules.fee_bps == 9.0


def test_there_is_nothing_to_switch_to_before_the_first_bar(session, store):
    store.roll_back(to=2)
    assert session.poll() is None


def test_a_rollback_while_it_trades_returns_to_the_one_before(session, store):
    session.pass_bars(40)
    store.roll_back(to=2)
    assert session.pass_bars(5) == ["v2"]
    store.roll_back(to=1)
    assert session.pass_bars(5) == ["v1"]
    assert session.told == []


@pytest.mark.parametrize(
    ("number", "why"),
    [(3, "trained on 2 symbols, but the session trades 1"), (4, "no column that begins with feature_")],
)
def test_a_model_that_does_not_fit_the_session_is_told_and_the_old_one_goes_on(session, store, number, why):
    session.pass_bars(40)
    store.roll_back(to=number)
    assert session.pass_bars(5) == []
    (sentence,) = session.told
    assert sentence.startswith(f"v{number} of toy cannot trade here, so the current model stays: ")
    assert why in sentence
    store.roll_back(to=2)
    assert session.pass_bars(5) == ["v2"]


def test_a_new_model_waits_for_its_window(session, store):
    session.pass_bars(16)  # v1 has its window; v2 sees four bars of five
    assert session.decider.ready
    store.roll_back(to=2)
    assert session.pass_bars(3) == ["v2"]


def test_a_session_of_a_fixed_model_begins_with_what_it_deployed_last(tmp_path, models):
    run = models.parent / "run1"

    def begun(named, traded_last=None):
        return model_to_begin_with(RetrainConfig(), named=named, folder=tmp_path, traded_last=traded_last)

    assert begun(run) == run
    deployed(tmp_path / "models", run, name="run1")
    assert load_deployed_policy(begun(run)).version == "v1"
    assert begun(models / "toy") == models / "toy"


def test_a_session_goes_on_with_what_traded_last_of_the_model_that_it_follows(tmp_path, models):
    def begun(named, traded_last):
        return model_to_begin_with(RetrainConfig(), named=named, folder=tmp_path, traded_last=traded_last)

    run, toy = models.parent / "run1", models / "toy"
    of_v2, of_run = toy / "v2" / "best.pt", run / "best.pt"
    assert begun(toy, of_v2) == begun(toy / "current", of_v2) == of_v2
    assert begun(toy / "v1", of_v2) == toy / "v1", "a fixed version was named"
    assert begun(run, of_v2) == run, "another model was named"
    assert begun(toy, toy / "v77" / "best.pt") == toy, "it was deleted"
    deployed(tmp_path / "models", run, name="run1")
    assert begun(run, of_run) == run, "what was deployed since is taken between two bars"
    assert begun(run, tmp_path / "models" / "run1" / "v1" / "best.pt").parent.name == "v1"
