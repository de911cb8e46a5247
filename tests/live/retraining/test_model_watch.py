"""A version that becomes current is made ready beside the one that trades, and given once it can decide."""

import os
import shutil
import threading

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.retraining.model_updates import ModelWatch
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.tuning.promotion.model_store import ModelStore, write_link
from tests.live.retraining.small_sessions import market

BARS = market(120)
PATIENCE_S = 30.0


class StandIn:
    """What decides by a version: it can once it has seen so many bars."""

    def __init__(self, folder, complete_at=20):
        self.folder, self.times = folder, []
        self._complete_at = complete_at

    def observe(self, bars):
        self.times.append(bars.time)
        return len(self.times) >= self._complete_at

    def observe_all(self, bars, stopping):
        for each in bars:
            if stopping():
                break
            self.observe(each)
        return len(self.times) >= self._complete_at


class Watched:
    """A watch over a model of small versions, asked after each of some bars."""

    def __init__(self, folder, load=StandIn):
        self.store = ModelStore(folder, "toy")
        self.promote()
        self.told = []
        self.n_bars = 30
        self.watch = ModelWatch(self.store.folder, 1, load, self.told.append)

    def promote(self):
        def fill(folder):
            (folder / "best.pt").write_text("weights")

        record = {"study": "toys", "trial": 5}
        return self.store.promote(fill, record, instead_of=self.store.current)

    def poll(self):
        self.n_bars += 1
        return self.watch.poll(lambda: BARS.bars(0, self.n_bars))

    def given(self):
        """What a few bars give, where each comes after the thread has ended."""
        found = []
        for _ in range(5):
            found.append(self.poll())
            assert self.watch.wait(PATIENCE_S)
        ready = [each for each in found if each is not None]
        assert len(ready) <= 1, "a model is given once"
        return ready[0] if ready else None


@pytest.fixture
def watched(tmp_path):
    made = Watched(tmp_path)
    yield made
    made.watch.close()


def test_the_version_that_trades_is_no_news(watched):
    assert watched.given() is None
    assert watched.told == []


def test_a_version_that_is_promoted_is_given_once_with_all_bars_seen(watched):
    watched.given()
    version = watched.promote()
    ready = watched.given()
    assert (ready.version, ready.folder) == ("v2", version.folder)
    assert ready.why == "v2, of trial 5 of the study toys, is current."
    seen = ready.decider.times
    assert seen == [bars.time for bars in bar_sets_of(BARS.bars(0, len(seen)))]
    assert watched.n_bars - 5 < len(seen) <= watched.n_bars
    assert watched.given() is None


def test_a_rollback_is_a_switch_like_any_other(watched):
    watched.promote()
    assert watched.given().version == "v2"
    watched.store.roll_back()
    assert watched.given().version == "v1"


def held_back(folder):
    """A watch that loads nothing until the event is set, and the event."""
    may_load = threading.Event()

    def slow(version):
        may_load.wait()
        return StandIn(version)

    return Watched(folder, slow), may_load


def test_nothing_waits_while_a_version_is_loaded(tmp_path):
    watched, may_load = held_back(tmp_path)
    watched.promote()
    assert [watched.poll() for _ in range(10)] == [None] * 10
    may_load.set()
    assert watched.watch.wait(PATIENCE_S)
    assert watched.poll().version == "v2"
    watched.watch.close()


def test_one_that_is_switched_away_while_it_loads_is_forgotten(tmp_path):
    watched, may_load = held_back(tmp_path)
    watched.promote()
    watched.poll()
    watched.promote()
    watched.poll()
    may_load.set()
    assert watched.given().version == "v3"
    watched.promote()
    watched.poll()
    watched.store.roll_back()
    assert watched.given() is None
    assert watched.told == []
    watched.watch.close()


def test_many_bars_that_came_while_it_loaded_are_seen_in_the_thread(tmp_path):
    threads = set()

    class Noting(StandIn):
        def observe(self, bars):
            threads.add((len(self.times) < 80, threading.current_thread() is threading.main_thread()))
            return super().observe(bars)

    watched = Watched(tmp_path, Noting)
    watched.promote()
    watched.poll()
    assert watched.watch.wait(PATIENCE_S)
    watched.n_bars = 80
    assert watched.given().version == "v2"
    assert (True, True) not in threads, "only the last few bars are seen by the loop"
    watched.watch.close()


def test_a_version_waits_until_it_has_seen_enough_bars(tmp_path):
    watched = Watched(tmp_path, lambda folder: StandIn(folder, complete_at=50))
    watched.promote()
    assert watched.given() is None
    assert watched.told == ["v2 of toy is current, and trades when it has enough bars for its features."]
    while (ready := watched.poll()) is None:
        pass
    assert len(ready.decider.times) == watched.n_bars == 50
    assert len(watched.told) == 1
    watched.watch.close()


def damage(version):
    path = version.folder / "best.pt"
    os.chmod(path, 0o644)
    path.write_text("other")


def leave_half(version):
    os.chmod(version.folder, 0o755)
    (version.folder / "promotion.json").unlink()


def remove(version):
    for path in (version.folder, *version.folder.iterdir()):
        os.chmod(path, 0o755)
    shutil.rmtree(version.folder)


@pytest.mark.parametrize(
    ("harm", "why"),
    [(damage, "was changed or is damaged"), (leave_half, "is damaged: "), (remove, "is damaged: ")],
)
def test_a_version_that_is_not_whole_is_told_once_and_never_loaded(watched, harm, why):
    version = watched.promote()
    harm(version)
    assert watched.given() is None
    assert watched.given() is None
    (sentence,) = watched.told
    assert sentence.startswith("v2 of toy cannot trade here, so the current model stays: ")
    assert why in sentence
    watched.promote()
    assert watched.given().version == "v3"


@pytest.mark.parametrize("error", [UserError("It was trained on 2 symbols."), RuntimeError("a user's\nown code")])
def test_a_version_that_does_not_fit_is_told_once(tmp_path, error):
    def refuse(folder):
        raise error

    watched = Watched(tmp_path, refuse)
    watched.promote()
    assert watched.given() is None
    assert watched.given() is None
    assert len(watched.told) == 1
    assert " ".join(str(error).split()) in watched.told[0]
    watched.watch.close()


def test_one_whose_features_fail_at_a_later_bar_is_told(tmp_path):
    class Failing(StandIn):
        def observe(self, bars):
            if len(self.times) == 34:
                raise UserError("There is no column feature_mood.")
            return super().observe(bars)

    watched = Watched(tmp_path, Failing)
    watched.n_bars = 31
    watched.promote()
    watched.poll()
    assert watched.watch.wait(PATIENCE_S)
    watched.n_bars = 40
    assert watched.given() is None
    assert "no column feature_mood" in watched.told[0]
    watched.watch.close()


def test_a_current_that_names_no_version_is_told_once(watched):
    current = watched.store.folder / "current"
    current.unlink()
    current.symlink_to("best")
    assert watched.given() is None
    assert watched.given() is None
    assert len(watched.told) == 1
    assert "which is not a version" in watched.told[0]
    current.unlink()
    write_link(current, 1)
    watched.promote()
    assert watched.given().version == "v2"


def test_it_leaves_no_thread(tmp_path):
    watched = Watched(tmp_path)
    watched.promote()
    watched.poll()
    watched.watch.close()
    watched.watch.close()
    assert not any(thread.name == "new-model" for thread in threading.enumerate())
