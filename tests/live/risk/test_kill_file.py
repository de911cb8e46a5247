"""While the kill file exists nothing is ordered, and positions are held or closed as set."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.risk.account_guards import KillFile
from tests.live.risk.guarded_accounts import NOON, Books, bars, guards_of, order, seconds


@pytest.mark.parametrize("action", ["hold", "flatten"])
def test_nothing_is_ordered_while_it_exists(tmp_path, action):
    path, now = tmp_path / "kill", NOON + seconds(60)
    guards, books = guards_of("A", kill_file=path, on_kill_file=action), Books(holdings={"A": 5.0})

    def sent() -> list[float]:
        orders = [order("A", 1.0), order("A", -1.0), order("A", -5.0, closing=True)]
        return [each.quantity for each in guards.on_orders(orders, books, [100.0], now)[0]]

    assert guards.on_bars(bars(100.0), now, None).action == "trade"
    assert sent() == [1.0, -1.0, -5.0]
    path.touch()
    assert sent() == [-5.0]  # it appeared after the bar was judged
    verdict = guards.on_bars(bars(100.0), now, None)
    assert (verdict.action, verdict.ends) == (action, None)
    done = {"hold": "held", "flatten": "closed"}[action]
    assert verdict.refusals[0].sentence == f"The kill file {path} exists: nothing is ordered, and positions are {done}."
    assert sent() == [-5.0]
    path.unlink()
    assert guards.on_bars(bars(100.0), now, None).action == "trade"
    assert sent() == [1.0, -1.0, -5.0]


def test_a_link_to_nowhere_is_a_kill_file(tmp_path):
    (tmp_path / "kill").symlink_to("nowhere")
    guards = guards_of("A", kill_file=tmp_path / "kill")
    assert guards.on_bars(bars(100.0), NOON + seconds(60), None).action == "hold"


def test_a_file_that_cannot_be_looked_for_counts_as_one(tmp_path):
    def refused(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    verdict = KillFile(tmp_path / "kill", "hold", look=refused).before_orders()
    assert verdict.action == "hold"
    assert "cannot be checked (Permission denied): nothing is ordered" in verdict.refusals[0].sentence


def test_a_kill_file_in_a_folder_that_is_missing_is_refused(tmp_path):
    with pytest.raises(UserError, match="kill_file"):
        guards_of("A", kill_file=tmp_path / "none" / "kill")


@pytest.mark.parametrize("name", ["/", "folder"])
def test_a_folder_is_no_kill_file(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="is a folder; name a file"):
        guards_of("A", kill_file=tmp_path / name)
