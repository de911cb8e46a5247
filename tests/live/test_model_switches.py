"""A model is switched in the middle of a replay: the ledger is that of a backtest whose policy changes there."""

import csv
import json
import shutil

import pytest

from ml_pipeline.live.reconciliation.report import reconcile_session
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.retraining.model_updates import ModelUpdates
from ml_pipeline.live.session_files import JOURNAL_FILE
from ml_pipeline.runs.trained.restore import load_run, restore_policy
from ml_pipeline.trading.evaluation.baselines import run_policy
from ml_pipeline.trading.evaluation.report import write_ledger
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.trained_state import under_conditions
from ml_pipeline.tuning.promotion.model_store import ModelStore
from tests.live.loop.sessions import deploy, session, write_prices

pytestmark = pytest.mark.slow
SYMBOLS = ["A", "B"]


@pytest.fixture
def store(tmp_path):
    """models/toy has two versions that act differently on the same features, and v2 at other costs; v1 is current."""
    store = ModelStore(tmp_path / "models", "toy")
    for seed, fee_bps in ((1, 7.0), (2, 30.0)):
        run = deploy(tmp_path / f"run{seed}", SYMBOLS, seed=seed, fee_bps=fee_bps)
        record = {"study": "toys", "trial": seed}
        store.promote(
            lambda folder, run=run: shutil.copyfile(run / "best.pt", folder / "best.pt"),
            record,
            instead_of=store.current,
        )
    store.roll_back()
    return store


@pytest.fixture
def at_poll(monkeypatch):
    """Does something before the session asks for a model the n-th time, and lets it wait for what is loaded."""
    actions, polls = {}, []
    ask = ModelUpdates.poll

    def poll(updates, market):
        polls.append(None)
        actions.get(len(polls), lambda: None)()
        ready = ask(updates, market)
        updates._watch.wait(60)
        return ready

    monkeypatch.setattr(ModelUpdates, "poll", poll)
    return actions


def acting(store, version, env, trading):
    checkpoint = store.folder / version / "best.pt"
    config, saved = load_run(checkpoint)
    return restore_policy(config, env, saved, checkpoint).act


def backtest_of_both(store, prices, path, *, second_after):
    """The ledger where v2 decides after this time."""
    config, saved = load_run(store.folder / "v1" / "best.pt")
    task = TradingTask.from_state(saved["task"], under_conditions(config.trading, {"data": prices}), 0)
    env = task.evaluation_env("all")
    first, second = (acting(store, name, env, config.trading) for name in ("v1", "v2"))
    first_bar = task.account.first_bar
    times = [str(time)[:19] for time in task.account.market.times]
    n_first = times.index(second_after) + 1 - first_bar
    n_decided = 0

    def act(observation):
        nonlocal n_decided
        n_decided += 1
        return (first if n_decided <= n_first else second)(observation)

    write_ledger(path, run_policy(env, act))
    return path.read_bytes()


def events(folder, name):
    lines = map(json.loads, (folder / "live.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == name]


def test_a_promotion_in_the_middle_of_a_replay_changes_the_policy_there(tmp_path, store, at_poll):
    write_prices(tmp_path / "prices.csv", SYMBOLS)
    at_poll[30] = lambda: store.roll_back(to=2)
    result = session(store.folder / "current", tmp_path / "live", prices=tmp_path / "prices.csv").run()
    assert result.status == "finished", result.reason
    (switch,) = events(result.folder, "model")
    assert switch["from"].endswith("v1/best.pt")
    assert switch["to"].endswith("v2/best.pt")
    assert "trial 2 of the study toys" in switch["why"]
    expected = backtest_of_both(store, tmp_path / "prices.csv", tmp_path / "expected.csv", second_after=switch["bar"])
    assert (result.folder / "ledger.csv").read_bytes() == expected
    ledger = list(csv.DictReader(expected.decode().splitlines()))
    assert 5 < [row["time"][:19].replace(" ", "T") for row in ledger].index(switch["bar"]) < len(ledger) - 5
    journal = Journal(result.folder / JOURNAL_FILE, durable=False)
    assert [model.version for model in journal.models()] == ["v1", "v2"]
    journal.close()


def test_a_model_that_is_deployed_while_no_bar_comes_decides_at_the_next(tmp_path, store, at_poll):
    write_prices(tmp_path / "prices.csv", SYMBOLS)
    given = []

    def next_bars(feed, timeout_s):
        given.append(None if 20 <= len(given) < 24 else feed.next(timeout_s))
        return given[-1]

    at_poll[21] = lambda: store.roll_back(to=2)
    trading = session(store.folder, tmp_path / "live", prices=tmp_path / "prices.csv", next_item=next_bars)
    (switch,) = events(trading.run().folder, "model")
    assert switch["bar"] == str(given[19].time)[:19]


def test_a_rollback_returns_to_the_model_before(tmp_path, store, at_poll):
    write_prices(tmp_path / "prices.csv", SYMBOLS)
    at_poll[20] = lambda: store.roll_back(to=2)
    at_poll[40] = lambda: store.roll_back(to=1)
    folder = session(store.folder, tmp_path / "live", prices=tmp_path / "prices.csv").run().folder
    assert [event["to"].rsplit("/")[-2] for event in events(folder, "model")] == ["v2", "v1"]
    assert json.loads((folder / "live.json").read_text())["version"] == "v1"


def test_a_damaged_version_leaves_the_ledger_as_it_would_be(tmp_path, store, at_poll):
    write_prices(tmp_path / "prices.csv", SYMBOLS)
    alone = session(store.folder / "v1", tmp_path / "alone", prices=tmp_path / "prices.csv").run().folder

    def promote_damaged():
        store.roll_back(to=2)
        path = store.folder / "v2" / "best.pt"
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:100])

    at_poll.clear()
    at_poll[80] = promote_damaged  # of this session: those of the first are counted as well
    trading = session(store.folder / "current", tmp_path / "live", prices=tmp_path / "prices.csv")
    folder = trading.run().folder
    assert (folder / "ledger.csv").read_bytes() == (alone / "ledger.csv").read_bytes()
    assert events(folder, "model") == []
    (alert,) = [each for each in events(folder, "alert") if "was changed or is damaged" in each["sentence"]]
    assert alert["sentence"] in trading.told


class Killed(BaseException):
    """The end of a session that could do nothing more."""


def killed():
    raise Killed


def traded_on(tmp_path, at_poll, first, then):
    """The folder of a session of one model that was killed, and started again with another."""
    prices = tmp_path / "prices.csv"
    with pytest.raises(Killed):
        session(first, tmp_path / "live", prices=prices).run()
    at_poll.clear()
    result = session(then, tmp_path / "live", prices=prices).run()
    assert result.status == "finished", result.reason
    return result.folder


def assert_as_backtested(store, tmp_path, folder, *, second_after):
    expected = backtest_of_both(store, tmp_path / "prices.csv", tmp_path / "expected.csv", second_after=second_after)
    assert (folder / "ledger.csv").read_bytes() == expected
    assert reconcile_session(folder).found.is_equal


def test_a_session_started_again_goes_on_with_the_model_and_the_costs_that_it_had(tmp_path, store, at_poll):
    write_prices(tmp_path / "prices.csv", SYMBOLS)
    at_poll |= {20: lambda: store.roll_back(to=2), 40: killed}
    folder = traded_on(tmp_path, at_poll, store.folder, store.folder)
    (switch,) = events(folder, "model")
    assert_as_backtested(store, tmp_path, folder, second_after=switch["bar"])


def test_a_model_that_was_deployed_while_the_session_was_down_is_taken_between_two_bars(tmp_path, store, at_poll):
    write_prices(tmp_path / "prices.csv", SYMBOLS)

    def killed_before_it_is_seen():
        store.roll_back(to=2)
        killed()

    at_poll[30] = killed_before_it_is_seen
    folder = traded_on(tmp_path, at_poll, store.folder, store.folder)
    (switch,) = events(folder, "model")
    assert switch["why"].startswith("v2, of trial 2")
    assert_as_backtested(store, tmp_path, folder, second_after=switch["bar"])


def test_a_damaged_version_deployed_while_the_session_was_down_does_not_end_it(tmp_path, store, at_poll):
    write_prices(tmp_path / "prices.csv", SYMBOLS)

    def killed_after_damage():
        store.roll_back(to=2)
        (store.folder / "v2" / "best.pt").chmod(0o644)
        (store.folder / "v2" / "best.pt").write_bytes(b"torn")
        killed()

    at_poll[30] = killed_after_damage
    folder = traded_on(tmp_path, at_poll, store.folder, store.folder)
    assert events(folder, "model") == []
    assert any("was changed or is damaged" in each["sentence"] for each in events(folder, "alert"))


def test_the_choices_of_a_model_that_a_session_is_started_again_with_follow_from_what_is_held(tmp_path, store, at_poll):
    write_prices(tmp_path / "prices.csv", SYMBOLS, missing=0.0)
    at_poll[31] = killed
    folder = traded_on(tmp_path, at_poll, store.folder / "v1", store.folder / "v2")
    (switch,) = events(folder, "model")
    assert switch["why"] == "the session was started with it"
    journal = Journal(folder / JOURNAL_FILE, durable=False)
    last_of_first = list(journal.bars())[journal.models()[1].number - 1]
    journal.close()
    assert_as_backtested(store, tmp_path, folder, second_after=str(last_of_first.time)[:19])


@pytest.mark.long
def test_a_replay_that_retrains_gives_the_same_account_at_any_speed(tmp_path):
    """Real processes train on the bars so far, and a better model takes over at the bar where it was due."""
    write_prices(tmp_path / "prices.csv", SYMBOLS, n_bars=160)
    model = deploy(tmp_path / "run", SYMBOLS, ppo={"n_steps": 32, "minibatch_size": 32})
    settings = {
        **{"retrain_every": 100, "retrain_timesteps": 64, "retrain_min_dsr": 0.0, "retrain_margin": 0.0},
        **{"retrain_wait": True, "retrain_from": "anew"},
    }
    folders = []
    for name, speed in (("fast", None), ("paced", 600.0)):
        trading = session(model, tmp_path / name, prices=tmp_path / "prices.csv", speed=speed, **settings)
        folders.append(trading.run().folder)
    fast, paced = folders
    for file in ("ledger.csv", "bars.csv"):
        assert (fast / file).read_bytes() == (paced / file).read_bytes()
    for name in ("retrain", "model"):
        ours, theirs = (events(folder, name) for folder in folders)
        assert [(each["bar"], each.get("state")) for each in ours] == [
            (each["bar"], each.get("state")) for each in theirs
        ]
    states = [each["state"] for each in events(fast, "retrain")]
    assert states == ["begun", "promoted"]
    (switch,) = events(fast, "model")
    assert switch["to"] == str(fast / "models" / "run" / "v1" / "best.pt")
    assert "retraining 1 of the session NAME" in switch["why"]
