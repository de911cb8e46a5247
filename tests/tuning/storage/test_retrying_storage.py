"""A storage whose database is away is waited for, and what it stored just before that is not stored twice."""

from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import InMemoryStorage
from optuna.trial import TrialState

from ml_pipeline.tuning.storage import postgres
from ml_pipeline.tuning.storage.postgres import RetryingStorage, StorageAway


class Away(Exception):
    """Of the database."""


class Failing(InMemoryStorage):
    """Each entry of `outages` breaks one call, before or after it was done."""

    def __init__(self) -> None:
        super().__init__()
        self.outages: list[str] = []

    def _broken(self, call: Callable[[], Any]) -> Any:
        when = self.outages.pop(0) if self.outages else None
        if when == "before":
            raise Away
        result = call()
        if when == "after":
            raise Away
        return result

    def set_trial_state_values(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._broken(lambda: super(Failing, self).set_trial_state_values(*args, **kwargs)))

    def set_trial_user_attr(self, *args: Any, **kwargs: Any) -> None:
        self._broken(lambda: super(Failing, self).set_trial_user_attr(*args, **kwargs))


@pytest.fixture
def inner(monkeypatch: pytest.MonkeyPatch) -> Failing:
    monkeypatch.setattr(postgres, "_SHORTEST_WAIT_S", 0.001)
    return Failing()


def _study(inner: Failing, said: list[str], stopped: Callable[[], bool] = lambda: False) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = RetryingStorage(
        inner,
        trouble=lambda error: "it was stopped" if isinstance(error, Away) else None,
        shown="postgresql://host/db",
        say=said.append,
        stopped=stopped,
    )
    return optuna.create_study(storage=storage, direction="maximize")


def test_the_waiting_and_its_end_are_said_once(inner: Failing) -> None:
    said: list[str] = []
    trial = _study(inner, said).ask()
    inner.outages = ["before"] * 4
    trial.set_user_attr("a", 1)
    assert said[0] == "The database postgresql://host/db is unavailable (it was stopped); waiting for it."
    assert said[1].startswith("The database postgresql://host/db is back after ")
    assert len(said) == 2
    assert inner.get_trial(trial._trial_id).user_attrs == {"a": 1}


def test_a_connection_that_broke_long_ago_is_not_mentioned(inner: Failing) -> None:
    trial = _study(inner, said := []).ask()
    inner.outages = ["before"]
    trial.set_user_attr("a", 1)
    assert said == []


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.FAIL])
def test_an_end_that_was_stored_as_the_connection_broke_is_no_error(inner: Failing, state: TrialState) -> None:
    study = _study(inner, [])
    trial = study.ask()
    inner.outages = ["after"]
    study.tell(trial, *([7.0] if state is TrialState.COMPLETE else [None, state]))
    assert study.trials[0].state is state


def test_an_end_that_another_process_stored_meanwhile_is_an_error(inner: Failing) -> None:
    study = _study(inner, [])
    trial = study.ask()
    inner.outages = ["after"]
    with pytest.raises(Away):
        inner.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    inner.outages = ["before"]
    with pytest.raises(UpdateFinishedTrialError):
        study._storage.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [7.0])


def test_a_stop_ends_the_waiting(inner: Failing) -> None:
    stopped: list[int] = []
    trial = _study(inner, [], lambda: bool(stopped)).ask()
    inner.outages = ["before"] * 100
    stopped.append(1)
    with pytest.raises(
        StorageAway, match=r"is unavailable \(it was stopped\), so nothing more of this study can be stored"
    ):
        trial.set_user_attr("a", 1)
    assert len(inner.outages) == 99


def test_other_errors_are_raised_as_they_are(inner: Failing) -> None:
    with pytest.raises(KeyError):
        _study(inner, [])._storage.get_study_id_from_name("elsewhere")
