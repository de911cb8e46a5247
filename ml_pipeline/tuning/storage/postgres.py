"""A PostgreSQL as the storage of studies, through SQLAlchemy and psycopg 3: opening it, and what its errors mean.

While the database is away, a `RetryingStorage` waits and then goes on: no trial is lost by a server that is restarted.
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

# A server that vanished without a word is noticed within half a minute, in place of the system's two hours.
_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
    "application_name": "ml-pipeline",
}
_OPENING_LOCK = 0x6D6C5F74756E65  # "ml_tune": an advisory lock's key, while the tables are made
_COMING_S = 15.0  # a server that is just starting is waited for so long
_RETRY_S = 0.5

# Classes of SQLSTATE (PostgreSQL's documentation, appendix A).
_AWAY = ("08", "57P01", "57P02", "57P03", "57P05", "53300", "40001", "40P01")
_COMING = re.compile(r"starting up|shutting down|in recovery|not yet accepting", re.IGNORECASE)
_REFUSALS = (
    (r"resolve host|translate host name|name or service not known|nodename nor servname", "the host is not known"),
    (r"password authentication failed|no password supplied|authentication failed", "the user or password is wrong"),
    (r'role "[^"]*" does not exist', "it has no such user"),
    (r'database "[^"]*" does not exist', "there is no such database; make it by `createdb`"),
    (r"connection refused|no such file or directory|timeout|no route|unreachable", "no PostgreSQL answers there"),
)
_OF_STATES = {
    "42501": "the user may not create or change tables in it; grant CREATE on its schema, or name another user",
    "25006": "it is read-only; name the primary server",
    "53100": "the disk of its server is full; make room and go on",
}


def open_postgres(
    named: str, say: Callable[[str], None], *, shown: str, wait: bool, stopped: Callable[[], bool]
) -> BaseStorage:
    """The storage in a PostgreSQL, whose tables are made where they are missing.

    shown: the URL without its password. The other arguments are those of `open_storage`.

    Raises UserError where the package is missing, the URL is none, or the server is not there or refuses.
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
        import psycopg  # noqa: F401  # named by the URL's driver
    except ImportError:
        raise UserError(f'A PostgreSQL as storage takes the extra "postgres": {install_extra("postgres")}') from None
    try:
        url = make_url(named)
    except (ArgumentError, ValueError):  # whose text may hold the password
        raise UserError(
            "--storage is no URL of a database; expected is postgresql://user@host:port/database, where signs such as "
            "@ or / in a password are written as %40 and %2F."
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
    """One process at a time, since Optuna's making of tables fails where another makes them too."""
    engine = create_engine(url, poolclass=NullPool, connect_args=_CONNECTION)
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": _OPENING_LOCK})
        in_full = url.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")  # Optuna formats it
        # Where this fails, no pool is left behind with open connections, which nobody could close.
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
    """Why the database is away; None where the error is none of the database's. Raises UserError where it refuses."""
    if isinstance(
        error, DuplicatedStudyError
    ):  # raised over the database's refusal of a second one: the study is there
        return None
    if not any(isinstance(each, DBAPIError) for each in _chain(error)):
        return None
    if _is_away(error):
        return _why(error)
    raise _refusal(error, shown) from error


def _is_away(error: BaseException) -> bool:
    """Whether the connection is the trouble, or a passing conflict, and not what was asked."""
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
    """What the server or the driver says, in a line and without SQL."""
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
"""So long is a database waited for."""


class StorageAway(UserError):
    """The database is away, and the caller was to stop or has waited for an hour."""


def _waiting(name: str) -> Callable[..., Any]:
    """The method of this name, tried again as long as the database is away."""

    def method(self: "RetryingStorage", *args: Any, **kwargs: Any) -> Any:
        return self._call(getattr(self._inner, name), args, kwargs)

    method.__name__ = name
    return method


class RetryingStorage(BaseStorage):
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
