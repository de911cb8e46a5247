"""A PostgreSQL as the storage of studies, through SQLAlchemy and psycopg 3: opening it, and what its errors mean."""

import re
import time
import weakref
from collections.abc import Callable, Iterator

from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, get_storage
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from ml_pipeline.config.errors import UserError, install_extra
from ml_pipeline.config.wording import in_one_line
from ml_pipeline.tuning.storage.patient_storage import PATIENCE_S, PatientStorage

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
    patient = PatientStorage(
        get_storage(storage), trouble=lambda error: _trouble(error, shown), shown=shown, say=say, stopped=stopped
    )
    weakref.finalize(patient, storage.engine.dispose)
    return patient


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
