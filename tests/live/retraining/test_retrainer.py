"""Retrainings begin when they are due, one at a time, on the bars up to then, whatever the speed of the bars."""

from contextlib import closing
from functools import partial

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.retraining.config import RetrainConfig
from ml_pipeline.live.retraining.retrainer import RETRAINING_FOLDER
from ml_pipeline.live.retraining.task_folder import BARS, EARLIER, ORDER, OUTCOME, RUN, SETTINGS, read_order
from ml_pipeline.runs.train_config import read_train_settings, train_config
from ml_pipeline.trading.market.files import load_market
from ml_pipeline.trading.settings import TradingConfig
from tests.live.retraining import stand_in as code_of_a_process
from tests.live.retraining.small_sessions import HOUR, growing, market, retrainer, trained_model
from tests.models.rl.core.workers.probes import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
REFUSES = 'open(folder + "/outcome.json", "w").write(\'{"state": "refused", "sentence": "no better"}\')'
WAITS = 'import time\nopen(folder + "/waits", "w").close()\ntime.sleep(1000)'
BARS_OF_3_DAYS = market(72)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return trained_model(tmp_path_factory.mktemp("models") / "run")


@pytest.fixture
def stand_in(monkeypatch):
    """Lets the process of a retraining run this code in place of the training."""

    put = partial(code_of_a_process.put, monkeypatch)
    put(REFUSES)
    return put


@pytest.fixture
def begin(tmp_path, model, stand_in):
    """Makes retrainers of one session, closed at the end."""
    made = []

    def make(**settings):
        config = RetrainConfig(**{"retrain_every": "1d", **settings})
        made.append(retrainer(tmp_path / "session", config, models=tmp_path / "models"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def replayed(retrainer, model, bars=BARS_OF_3_DAYS, *, every=1, waiting=True):
    """The events of a session that asks at each bar, or, as where it is behind, at some."""
    events = []
    for i, tape in enumerate(growing(bars)):
        if i % every == 0 or i == bars.n_bars - 1:
            events += retrainer.poll(tape.market, model, "v1")
            if waiting:
                assert retrainer.wait(PATIENCE_S)
    return events


def folders(tmp_path):
    return sorted((tmp_path / "session" / RETRAINING_FOLDER).glob("[1-9]*"))


def test_each_begins_when_it_is_due_and_is_told(begin, model):
    events = replayed(begin(), model)
    assert [(event.state, event.number, (event.bar - BARS_OF_3_DAYS.times[0]) // HOUR) for event in events] == [
        *(("begun", 1, 24), ("refused", 1, 24), ("begun", 2, 48), ("refused", 2, 48)),
    ]
    assert events[1].sentence == "no better"
    assert events[0].as_json()["due"] == "2024-01-02T00:00:00"


@pytest.mark.parametrize("every", [1, 7, 23])
def test_it_has_the_bars_up_to_when_it_was_due_at_any_speed(begin, model, tmp_path, every):
    replayed(begin(), model, every=every)
    first, second = folders(tmp_path)
    for folder, n in ((first, 25), (second, 49)):
        bars = load_market(folder / BARS)
        np.testing.assert_array_equal(bars.close, BARS_OF_3_DAYS.close[:n])
        assert read_order(folder).due == str(BARS_OF_3_DAYS.times[n - 1])


def test_it_may_use_the_latest_bars_alone(begin, model, tmp_path):
    replayed(begin(retrain_every=30, retrain_bars=20), model)
    first = load_market(folders(tmp_path)[0] / BARS)
    np.testing.assert_array_equal(first.close, BARS_OF_3_DAYS.close[11:31])


def test_it_is_told_how_to_read_bars_from_before_the_session(begin, model, tmp_path):
    replayed(begin(retrain_every=30, retrain_bars=100, retrain_data=tmp_path / "years.parquet"), model)
    first = folders(tmp_path)[0]
    earlier = train_config(read_train_settings(first / EARLIER)).trading
    assert earlier.data == tmp_path / "years.parquet"
    assert (read_order(first).n_bars, read_order(first).earlier_bars) == (31, 69)


def test_it_trains_by_the_settings_of_the_model_at_the_costs_of_the_session(tmp_path, model, stand_in):
    config = RetrainConfig(retrain_every="1d", retrain_timesteps=512)
    costly = TradingConfig(fee_bps=7.0)
    with closing(retrainer(tmp_path / "session", config, models=tmp_path / "models", trading=costly)) as made:
        replayed(made, model)
    folder = folders(tmp_path)[0]
    settings = read_train_settings(folder / SETTINGS)
    assert settings["fee_bps"] == 7.0
    assert settings["hidden_sizes"] == (8,)
    assert (settings["total_timesteps"], settings["iterations"]) == (512, None)
    assert settings["init_from"] == model / "best.pt"
    assert settings["checkpoint_dir"] == folder / RUN


def test_anew_begins_with_no_weights(begin, model, tmp_path):
    replayed(begin(retrain_from="anew"), model)
    assert read_train_settings(folders(tmp_path)[0] / SETTINGS)["init_from"] is None


def test_one_that_still_goes_on_when_the_next_is_due_is_told_and_left_alone(begin, model, stand_in):
    stand_in(WAITS)
    retrainer = begin()
    events = replayed(retrainer, model, waiting=False)
    assert [event.state for event in events] == ["begun", "skipped"]
    assert "retraining 1 is still running" in events[1].sentence
    assert retrainer.under_way == 1


def test_a_failure_is_told_and_the_next_begins_when_it_is_due(begin, model, stand_in):
    stand_in("raise SystemExit(4)")
    states = [event.state for event in replayed(begin(), model)]
    assert states == ["begun", "failed", "begun", "failed"]


def test_a_model_that_is_gone_is_a_failure_and_the_session_goes_on(begin, tmp_path):
    events = replayed(begin(), tmp_path / "nowhere.pt")
    assert events[1].state == "failed"
    assert "the current model stays: It could not start: There is no checkpoint" in events[1].sentence


def leave_training(begin, model, folder, stand_in):
    """A session that ends while a retraining goes on."""
    stand_in(WAITS)
    first = begin()
    replayed(first, model, BARS_OF_3_DAYS.bars(0, 30), waiting=False)
    wait_until(lambda: list(folder.rglob("waits")))
    first.close()


def test_a_session_started_again_takes_it_up(begin, model, tmp_path, stand_in):
    leave_training(begin, model, tmp_path, stand_in)
    assert not (folders(tmp_path)[0] / OUTCOME).exists()
    stand_in(REFUSES)
    events = replayed(begin(), model)
    assert [(event.state, event.number) for event in events] == [
        *(("resumed", 1), ("refused", 1), ("begun", 2), ("refused", 2)),
    ]
    assert "had no checkpoint and starts over" in events[0].sentence


def test_one_with_a_checkpoint_goes_on_from_it(begin, model, tmp_path, stand_in):
    leave_training(begin, model, tmp_path, stand_in)
    (folders(tmp_path)[0] / RUN).mkdir()
    (folders(tmp_path)[0] / RUN / "latest.pt").touch()
    stand_in(REFUSES)
    assert "continues from its last checkpoint" in replayed(begin(), model)[0].sentence


def test_a_session_started_again_retrains_when_it_would_have(begin, model):
    first = begin()
    replayed(first, model, BARS_OF_3_DAYS.bars(0, 40))
    first.close()
    events = replayed(begin(), model)
    assert [(event.state, (event.bar - BARS_OF_3_DAYS.times[0]) // HOUR) for event in events] == [
        *(("begun", 48), ("refused", 48)),
    ]


def test_a_folder_that_was_never_begun_is_begun_again(begin, model, tmp_path):
    first = begin()
    replayed(first, model, BARS_OF_3_DAYS.bars(0, 24))
    first.close()
    half_written = tmp_path / "session" / RETRAINING_FOLDER / "1"
    half_written.mkdir()
    (half_written / BARS).write_text("half")
    events = replayed(begin(), model, BARS_OF_3_DAYS.bars(0, 40))
    assert [event.state for event in events] == ["begun", "refused"]
    assert (half_written / ORDER).exists()


def test_a_task_of_several_accounts_is_refused(tmp_path):
    each = TradingConfig(per_symbol=True)
    with pytest.raises(UserError, match="one account that trades all symbols"):
        retrainer(tmp_path, RetrainConfig(retrain_every="7d"), models=tmp_path, trading=each)
