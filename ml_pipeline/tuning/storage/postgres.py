"""PostgreSQL as the storage of studies, through SQLAlchemy and psycopg 3: opens it, and explains its errors.

While the database is unavailable, a `RetryingStorage` waits and then continues, so a restarted server loses no trial.
"""

import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from optuna.exceptions import DuplicatedStudyError, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna.trial import TrialState
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.config.wording import in_one_line

# A server that vanished is noticed within half a minute instead of the system's two hours.
_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
    "application_name": "ml-pipeline",
}
_OPENING_LOCK = 0x6D6C5F74756E65  # "ml_tune": an advisory lock's key, while the tables are made
_COMING_S = 15.0  # longest wait for a server that is starting
_RETRY_S = 0.5

# Classes of SQLSTATE (PostgreSQL's documentation, appendix A).
_AWAY = ("08", "57P01", "57P02", "57P03", "57P05", "53300", "40001", "40P01")
_COMING = re.compile(r"starting up|shutting down|in recovery|not yet accepting", re.IGNORECASE)
_REFUSALS = (
    (r"resolve host|translate host name|name or service not known|nodename nor servname", "the host is unknown"),
    (r"password authentication failed|no password supplied|authentication failed", "the user or password is wrong"),
    (r'role "[^"]*" does not exist', "it has no such user"),
    (r'database "[^"]*" does not exist', "there is no such database; create it with `createdb`"),
    (r"connection refused|no such file or directory|timeout|no route|unreachable", "no PostgreSQL server answers"),
)
_OF_STATES = {
    "42501": "the user may not create or change tables in it; grant CREATE on its schema, or name another user",
    "25006": "it is read-only; name the primary server",
    "53100": "the disk of its server is full; make room and start again",
}


def open_postgres(
    named: str, say: Callable[[str], None], *, shown: str, wait: bool, stopped: Callable[[], bool]
) -> BaseStorage:
    """The storage in a PostgreSQL database; missing tables are created.

    shown: the URL without its password. The other arguments are those of `open_storage`.

    Raises UserError if the package is missing, the URL is invalid, or the server is unreachable or refuses.
    """
    url = _url(named)
    storage = _opened(url, shown, wait=wait, stopped=stopped)
    retrying = RetryingStorage(
        get_storage(storage), trouble=lambda error: _trouble(error, shown), shown=shown, say=say, stopped=stopped
    )
    weakref.finalize(retrying, storage.engine.dispose)
    return retrying


def _url(named: str) -> URL:
    try:
        import psycopg  # noqa: F401  # the driver in the URL
    except ImportError:
        raise UserError(f'PostgreSQL as storage needs the extra "postgres": {install_extra("postgres")}') from None
    try:
        url = make_url(named)
    except (ArgumentError, ValueError):  # its text may contain the password
        raise UserError(
            "--storage is not the URL of a database; expected postgresql://user@host:port/database, with characters "
            "such as @ or / in a password written as %40 and %2F."
        ) from None
    return url.set(drivername="postgresql+psycopg")


def _opened(url: URL, shown: str, *, wait: bool, stopped: Callable[[], bool]) -> RDBStorage:
    until = time.monotonic() + (PATIENCE_S if wait else 0.0)
    coming_until = time.monotonic() + _COMING_S
    while True:
        try:
            return _connected(url)
        except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
            why = _why(error)
            is_coming = _COMING.search(why) and time.monotonic() < coming_until
            is_away = wait and _is_away(error) and time.monotonic() < until
            if stopped() or not (is_coming or is_away):
                raise _refusal(error, shown) from error
        time.sleep(_RETRY_S)


def _connected(url: URL) -> RDBStorage:
    """One process at a time: Optuna fails to create tables if another process creates them too."""
    engine = create_engine(url, poolclass=NullPool, connect_args=_CONNECTION)
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _OPENING_LOCK})
        in_full = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")  # Optuna formats it
        # Without a pool first, so that a failure leaves no open connections behind.
        RDBStorage(in_full, engine_kwargs={"poolclass": NullPool, "connect_args": _CONNECTION})
        return RDBStorage(in_full, engine_kwargs={"pool_pre_ping": True, "connect_args": _CONNECTION})


def _refusal(error: Exception, shown: str) -> UserError:
    why = _why(error)
    state = _state(error)
    if state in _OF_STATES:
        return UserError(f"The database {shown} cannot be used: {_OF_STATES[state]}.")
    for pattern, meaning in _REFUSALS:
        if re.search(pattern, why, re.IGNORECASE):
            return UserError(f"The database {shown} cannot be opened: {meaning} ({why}).")
    return UserError(f"The database {shown} cannot be used: {why}.")


def _trouble(error: Exception, shown: str) -> str | None:
    """Why the database is unavailable; None if the error has another source. Raises UserError if it refuses."""
    if isinstance(error, DuplicatedStudyError):  # caused by the database's refusal of a second one: the study exists
        return None
    if not any(isinstance(each, DBAPIError) for each in _chain(error)):
        return None
    if _is_away(error):
        return _why(error)
    raise _refusal(error, shown) from error


def _is_away(error: BaseException) -> bool:
    """Whether the cause is the connection or a temporary conflict, not the request itself."""
    for each in _chain(error):
        if isinstance(each, DBAPIError):
            state = getattr(each.orig, "sqlstate", None)
            is_refused = state is None and type(each).__name__ == "OperationalError"
            return each.connection_invalidated or is_refused or str(state).startswith(_AWAY)
    return False


def _state(error: BaseException) -> str | None:
    states = (getattr(each.orig, "sqlstate", None) for each in _chain(error) if isinstance(each, DBAPIError))
    return next(filter(None, states), None)


def _why(error: BaseException) -> str:
    """The message of the server or the driver, in one line and without SQL."""
    for each in _chain(error):
        if isinstance(each, DBAPIError):
            lines = [line.strip() for line in str(each.orig).splitlines() if line.strip()]
            fatal = next((line for line in lines if "FATAL" in line), lines[0] if lines else type(each.orig).__name__)
            return in_one_line(fatal.rpartition("FATAL:")[2].strip()).rstrip(".")
    return in_one_line(error).rstrip(".")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0

PATIENCE_S = 3600.0
"""Longest wait for a database."""


class StorageAway(UserError):
    """The database is unavailable, and the caller was stopped or has waited for an hour."""


def _waiting(name: str) -> Callable[..., Any]:
    """The method of this name, retried as long as the database is unavailable."""

    def method(self: "RetryingStorage", *args: Any, **kwargs: Any) -> Any:
        return self._call(getattr(self._inner, name), args, kwargs)

    method.__name__ = name
    return method


class RetryingStorage(BaseStorage):
    """Another storage whose calls wait for its database. It reports the start and the end of an outage once each.

    inner: the storage. trouble: why the database is unavailable, if an error means that it is so temporarily; raises
    UserError if the database refuses a request for good. shown: the name of the database, without a password.
    stopped: whether to give up; called while a call waits.

    A write during which the connection broke may be repeated. This changes nothing, except that a new trial may be left
    behind: RUNNING without a heartbeat, and failed as lost within a minute.
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
        """As Optuna's, but repeating a write that the server had stored before the connection broke is no error."""
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
                if times > 1:  # the first error may only mean that an idle connection broke long ago
                    self._note_away(why)
                if self._stopped() or time.monotonic() - began > PATIENCE_S:
                    raise StorageAway(
                        f"The database {self._shown} is unavailable ({why}), so nothing more of this study can be "
                        "stored; start the database, then run the same command again to continue."
                    ) from error
            else:
                self._note_back()
                return result
            time.sleep(wait_s * random.uniform(0.5, 1.0))  # so that workers do not retry all at once
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _note_away(self, why: str) -> None:
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = time.monotonic()
        self._say(f"The database {self._shown} is unavailable ({why}); waiting for it.")

    def _note_back(self) -> None:
        if self._away_since is None:
            return
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            self._say(f"The database {self._shown} is back after {time.monotonic() - since:.0f} s; continuing.")


def _has_ended_so(trial: Any, state: TrialState, values: Any) -> bool:
    return trial.state == state and (values is None or list(trial.values or ()) == list(values))
