"""Each look at the test part of the data is recorded under their fingerprint, for every caller and folder."""

import json
import threading

import pytest

from ml_pipeline.trading.evaluation.looks import LOOKS_FILE, Look, looks_in_words, read_looks, record_look
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import traded_markets

DATA = "0123456789abcdef"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    return tmp_path / "state/ml_pipeline/test_looks"


@pytest.fixture(scope="module")
def market():
    return synthetic_market(n_bars=400)


def _hold(observation):
    return 2


def test_a_look_counts_for_its_data_alone_and_once_wherever_it_is_told(tmp_path):
    (tmp_path / "run").mkdir()
    look = Look("evaluate of a", beside=tmp_path / "run")
    record_look(look, [DATA, "other"])
    record_look(look, [DATA])
    record_look(Look("enjoy", when="2020-01-01T00:00:00"), [DATA])
    assert [each.what for each in read_looks([DATA, "other"], [tmp_path / "run"])] == ["enjoy", "evaluate of a"]
    assert [each.what for each in read_looks(["other"])] == ["evaluate of a"]
    assert [each.what for each in read_looks([], [tmp_path / "run"])] == ["evaluate of a"]
    assert read_looks(["a third"]) == []


@pytest.mark.parametrize(("split", "n"), [("test", 1), ("all", 1), ("validation", 0), ("train", 0)])
def test_an_evaluation_that_opens_the_test_split_is_a_look(market, split, n):
    task = TradingTask(TradingConfig(features=("log_return_1",)), market=market.select(market.symbols[:1]))
    task.evaluate(_hold, split)
    assert len(read_looks(task.fingerprints)) == n
    task.evaluation_env("train").close()
    task.score(_hold)
    assert len(read_looks(task.fingerprints)) == n


def test_a_look_is_written_before_the_policy_sees_a_bar(market):
    task = TradingTask(TradingConfig(features=("log_return_1",)), market=market.select(market.symbols[:1]))

    def broken(observation):
        raise RuntimeError("after the first bar")

    with pytest.raises(RuntimeError, match="after the first bar"):
        task.evaluate(broken, "test")
    assert len(read_looks(task.fingerprints)) == 1


def test_an_evaluation_of_several_accounts_is_one_look_at_the_data_of_each(market):
    markets = {"A": market, "B": synthetic_market(n_bars=401)}
    config = TradingConfig(features=("log_return_1",), per_symbol=True)
    task = TradingTask(config, accounts=traded_markets(config, markets))
    task.evaluate(_hold, "test")
    assert len(task.fingerprints) == 2
    assert [len(read_looks([each])) for each in task.fingerprints] == [1, 1]
    assert len(read_looks(task.fingerprints)) == 1


def test_of_many_that_look_at_once_each_is_counted():
    threads = [
        threading.Thread(target=record_look, args=(Look(f"look {i}", by=f"process {i}"), [DATA])) for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.what for each in read_looks([DATA])} == {f"look {i}" for i in range(20)}


def test_torn_and_odd_lines_take_nothing_with_them(state):
    record_look(Look("first"), [DATA])
    path = state / f"{DATA}.jsonl"
    odd = [b"null", b"[1]", b'{"what": 3}', b"\xff\xfe", b'{"a":' * 5000, b'{"what": "torn'][::1]
    path.write_bytes(path.read_bytes() + b"\n".join(odd))
    record_look(Look("second"), [DATA])
    assert [each.what for each in read_looks([DATA])] == ["first", "second"]
    assert json.loads(path.read_text(errors="replace").splitlines()[-1])["what"] == "second"


def test_a_state_folder_that_cannot_be_written_is_a_warning_and_the_run_has_the_look(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="is not counted: .*Set XDG_STATE_HOME") as found:
        record_look(Look("a look", beside=tmp_path), [DATA, "other"])
    assert len(found) == 1
    assert [each.what for each in read_looks([DATA], [tmp_path])] == ["a look"]


@pytest.mark.parametrize("name", ["../victim", "", "/etc/passwd", "a/b"])
def test_a_fingerprint_of_others_reads_nothing_elsewhere(name):
    assert read_looks([name]) == []


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path):
    (tmp_path / "victim").write_text("precious\n")
    (tmp_path / LOOKS_FILE).symlink_to(tmp_path / "victim")
    record_look(Look("a look", beside=tmp_path), [DATA])
    assert (tmp_path / "victim").read_text() == "precious\n"


def test_many_looks_are_told_by_what_looked_most():
    looks = [Look("evaluate of a", "2026-05-04")] * 3 + [Look(f"look {i}", "2026-05-06") for i in range(10)]
    sentence = looks_in_words(looks)
    assert sentence.startswith("The test part of these data was looked at 13 times, by evaluate of a (3 times), look 0")
    assert sentence.endswith("and 3 others, from 2026-05-04 to 2026-05-06.")
