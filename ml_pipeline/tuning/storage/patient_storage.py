"""A storage that waits while its database is away, and then goes on: no trial is lost by a server that is restarted."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from ml_pipeline.config.errors import UserError

_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0

PATIENCE_S = 3600.0
"""So long is a database waited for."""


class StorageAway(UserError):
    """The database is away, and the caller was to stop or has waited for an hour."""


def _waiting(name: str) -> Callable[..., Any]:
    """The method of this name, tried again as long as the database is away."""

    def method(self: "PatientStorage", *args: Any, **kwargs: Any) -> Any:
        return self._call(getattr(self._inner, name), args, kwargs)

    method.__name__ = name
    return method


class PatientStorage(BaseStorage):
    """Another storage, whose calls wait for its database. Both the waiting and its end are said once.

    inner: the storage. trouble: why the database is away, where an error says that it is so for the moment; raises
    UserError where the database refuses what was asked for good. shown: what to call the database, without a password.
    stopped: whether to give up; asked while a call waits.

    What was written just as the connection broke may be written twice. All is the same then, except that a new trial
    may be left behind: RUNNING, with no heartbeat, and failed as lost within a minute.
    """

    def __init__(
        self,
        inner: BaseStorage,
        *,
        trouble: Callable[[Exception], str | None],
        shown: str,
        say: Callable[[str], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._inner = inner
        self._trouble = trouble
        self._shown = shown
        self._say = say
        self._stopped = stopped
        self._lock = threading.Lock()
        self._away_since: float | None = None

    create_new_study = _waiting("create_new_study")
    delete_study = _waiting("delete_study")
    set_study_user_attr = _waiting("set_study_user_attr")
    set_study_system_attr = _waiting("set_study_system_attr")
    get_study_id_from_name = _waiting("get_study_id_from_name")
    get_study_name_from_id = _waiting("get_study_name_from_id")
    get_study_directions = _waiting("get_study_directions")
    get_study_user_attrs = _waiting("get_study_user_attrs")
    get_study_system_attrs = _waiting("get_study_system_attrs")
    get_all_studies = _waiting("get_all_studies")
    create_new_trial = _waiting("create_new_trial")
    set_trial_param = _waiting("set_trial_param")
    get_trial_id_from_study_id_trial_number = _waiting("get_trial_id_from_study_id_trial_number")
    set_trial_intermediate_value = _waiting("set_trial_intermediate_value")
    set_trial_user_attr = _waiting("set_trial_user_attr")
    set_trial_system_attr = _waiting("set_trial_system_attr")
    get_trial = _waiting("get_trial")
    get_all_trials = _waiting("get_all_trials")
    get_best_trial = _waiting("get_best_trial")

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Any = None) -> bool:
        """As Optuna's; where the connection broke after the server had stored it, storing it again is no error."""
        tries = 0

        def store() -> bool:
            nonlocal tries
            tries += 1
            try:
                return self._inner.set_trial_state_values(trial_id, state, values)
            except UpdateFinishedTrialError:
                if tries > 1 and _has_ended_so(self._inner.get_trial(trial_id), state, values):
                    return True
                raise

        return bool(self._call(store, (), {}))

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began, wait_s, times = time.monotonic(), _SHORTEST_WAIT_S, 0
        while True:
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                why = self._trouble(error)
                if why is None:
                    raise
                times += 1
                if times > 1:  # once is a connection that broke long ago, and is only now seen to
                    self._note_away(why)
                if self._stopped() or time.monotonic() - began > PATIENCE_S:
                    raise StorageAway(
                        f"The database {self._shown} is away ({why}), so that nothing more can be stored of this "
                        "study; start the database, and then the same command again to go on."
                    ) from error
            else:
                self._note_back()
                return result
            time.sleep(wait_s * random.uniform(0.5, 1.0))  # not all workers at once
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _note_away(self, why: str) -> None:
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = time.monotonic()
        self._say(f"The database {self._shown} is away ({why}); waiting for it.")

    def _note_back(self) -> None:
        if self._away_since is None:
            return
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            self._say(f"The database {self._shown} is back after {time.monotonic() - since:.0f} s; the study goes on.")


def _has_ended_so(trial: Any, state: TrialState, values: Any) -> bool:
    return trial.state == state and (values is None or list(trial.values or ()) == list(values))
