"""A broker of your own is named as module:Class; the one in examples/ trades a whole replay."""

import sys
from contextlib import closing
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.record.journal import Journal
from ml_pipeline.live.session_files import JOURNAL_FILE, LEDGER_FILE
from tests.live.loop.sessions import deploy, session, trade, write_prices

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_broker.py"


@pytest.fixture
def replay(tmp_path, monkeypatch):
    """(model, prices); my_broker.py has the broker of examples/ and two invalid ones."""
    more = "\n\nclass Half:\n    name = 'half'\n    def __init__(self, *session): pass\n\n"
    more += "class Failing:\n    def __init__(self, *session): raise OSError('no line')\n"
    (tmp_path / "my_broker.py").write_text(EXAMPLE.read_text() + more)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_broker", raising=False)
    write_prices(tmp_path / "prices.csv", ["A"])
    return deploy(tmp_path / "model", ["A"]), tmp_path / "prices.csv"


def test_a_broker_that_is_named_trades_a_replay(tmp_path, replay):
    model, prices = replay

    result = trade(model, tmp_path / "live", prices, broker="my_broker:NextCloseBroker")

    assert result.status == "finished", result.reason
    assert len((result.folder / LEDGER_FILE).read_text().splitlines()) > 50
    with closing(Journal(result.folder / JOURNAL_FILE, durable=False)) as journal:
        assert journal.n_fills() > 5
        assert all(fill.quantity == round(fill.quantity) for fill in journal.fills())  # its step is 1


@pytest.mark.parametrize(
    ("broker", "sentence"),
    [
        ("alpacca", "broker must be .*simulated.*alpaca.*module:Class.*alpacca"),
        ("my_broker:Missing", 'my_broker has no "Missing"'),
        ("my_broker:Half", "is not a broker: it lacks sizes_at_fill, real_money, quantities, account, orders, submit"),
        ("my_broker:Failing", "my_broker:Failing failed in line .* of my_broker.py: OSError: no line"),
    ],
)
def test_what_is_no_broker_is_refused_in_a_sentence(tmp_path, replay, broker, sentence):
    model, prices = replay
    with pytest.raises(UserError, match=sentence):
        session(model, tmp_path / "live", prices=prices, broker=broker).run()
