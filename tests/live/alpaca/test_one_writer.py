"""One account has one writer: a second session on this machine is refused before it orders anything."""

import pytest

from ml_pipeline.config.errors import UserError
from tests.live.alpaca.timed_session import Machine, timed_session


def test_of_two_sessions_that_start_while_the_account_is_flat_one_trades(tmp_path, monkeypatch, server, open_broker):
    machine = Machine(monkeypatch, server)
    refused = []

    def start_another(minutes):
        if minutes >= 1 and not refused:
            before = len(server.trading.exchange.orders)
            second = timed_session(tmp_path / "other", machine, open_broker(), n_bars=1, at=lambda minutes: None)
            with pytest.raises(UserError, match=r"The account PA1234567890 at alpaca is traded by .*NAME") as error:
                second.run()
            refused.append(str(error.value))
            assert len(server.trading.exchange.orders) == before

    first = timed_session(tmp_path, machine, open_broker(), n_bars=4, at=start_another)

    assert first.run().status == "stopped"
    assert len(refused) == 1
    assert len(server.trading.exchange.orders) > 0
    other = timed_session(tmp_path, machine, open_broker(), n_bars=1, at=lambda minutes: None)
    assert other.run().status == "stopped"  # the lock went with the first


@pytest.mark.parametrize("kind", ["open", "filled", "bought and sold"])
def test_orders_of_another_machine_end_the_session_within_a_bar(tmp_path, monkeypatch, server, open_broker, kind):
    machine = Machine(monkeypatch, server)
    exchange, seen = server.trading.exchange, []

    def order(name, **changes):
        fields = {"client_order_id": name, "symbol": "AAPL", "qty": "1", "side": "buy", "type": "market"}
        exchange.submit({**fields, "time_in_force": "day", **changes})

    def at(minutes):
        seen.append(minutes)
        if minutes >= 5 and "other-1" not in exchange.orders:
            order("other-1", **({"type": "limit", "limit_price": "1"} if kind == "open" else {}))
            if kind == "bought and sold":
                order("other-2", side="sell")

    result = timed_session(tmp_path, machine, open_broker(), n_bars=20, at=at).run()

    assert not result.asked
    assert seen[-1] <= 7
    assert "order other-1 - in the books, AAPL" in result.reason
