"""What is said where a PostgreSQL cannot be opened, or refuses in the middle of a study."""

import threading
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.storage.open_storage import open_storage
from ml_pipeline.tuning.storage.postgres import StorageAway
from tests.tuning.postgres_server import PostgresServer, find_programs, postgres_server

needs_postgres = pytest.mark.skipif(find_programs() is None, reason="PostgreSQL is not installed")


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("postgresql://ann:secret@127.0.0.1:1/tuning", "no PostgreSQL server answers"),
        ("postgresql:///tuning?host=/not/there&password=secret", "no PostgreSQL server answers"),
        ("postgres://ann:secret@no.such.host.invalid/tuning", "the host is unknown"),
        ("postgresql+psycopg://ann:secret@127.0.0.1:99999/tuning", "invalid port number"),
    ],
)
def test_a_server_that_is_not_there_is_one_sentence_without_the_password(named: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as refused:
        open_storage(named, Path("unused"), pytest.fail)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_waiting_for_a_server_ends_with_a_stop() -> None:
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) > 1

    with pytest.raises(UserError, match="no PostgreSQL server answers"):
        open_storage("postgresql://127.0.0.1:1/tuning", Path("unused"), pytest.fail, wait=True, stopped=stopped)
    assert len(asked) == 2


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        running.query("CREATE ROLE reader LOGIN PASSWORD 'reads'")
        running.query("CREATE ROLE frozen LOGIN PASSWORD 'reads'")
        running.query("ALTER ROLE frozen SET default_transaction_read_only = on")
        yield running


@pytest.mark.system
@needs_postgres
@pytest.mark.parametrize(
    ("user", "database", "sentence"),
    [
        ("tuner:secret", "tuning", "the user or password is wrong"),
        ("tuner", "tuning", "the user or password is wrong"),
        ("nobody_here:secret", "tuning", "the user or password is wrong"),
        ("owner", "elsewhere", "there is no such database; create it with `createdb`"),
        ("reader:reads", "tuning", "the user may not create or change tables in it"),
        ("frozen:reads", "tuning", "it is read-only; name the primary server"),
    ],
)
def test_a_server_that_refuses_is_one_sentence(
    server: PostgresServer, user: str, database: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with pytest.raises(UserError, match=sentence) as refused:
        open_storage(server.url_of(user, database), Path("unused"), pytest.fail)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.system
@needs_postgres
def test_many_may_open_a_new_database_at_once(server: PostgresServer) -> None:
    server.query("CREATE DATABASE fresh OWNER tuner")
    url = server.url.replace("/tuning", "/fresh")
    opened: list[object] = []
    threads = [
        threading.Thread(target=lambda: opened.append(open_storage(url, Path("unused"), pytest.fail))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 6


@pytest.mark.system
@needs_postgres
def test_a_study_that_is_there_is_joined(server: PostgresServer) -> None:
    studies = [
        optuna.create_study(
            study_name="joined", storage=open_storage(server.url, Path("unused"), pytest.fail), load_if_exists=True
        )
        for _ in range(2)
    ]
    studies[0].set_user_attr("a", 1)
    assert studies[1].user_attrs == {"a": 1}


@pytest.mark.system
@needs_postgres
def test_what_the_server_refuses_in_mid_study_is_told_and_not_waited_for(server: PostgresServer) -> None:
    study = optuna.create_study(storage=open_storage(server.url, Path("unused"), pytest.fail))
    server.query("ALTER ROLE tuner SET default_transaction_read_only = on")
    try:
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tuner'")
        with pytest.raises(UserError, match="it is read-only; name the primary server"):
            study.set_user_attr("a", 1)
    finally:
        server.query("ALTER ROLE tuner RESET default_transaction_read_only")
        server.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tuner'")
    study.set_user_attr("a", 2)
    assert study.user_attrs == {"a": 2}


@pytest.mark.system
@needs_postgres
def test_waiting_in_mid_study_ends_with_a_stop(server: PostgresServer) -> None:
    stop, said = threading.Event(), list[str]()

    def say(sentence: str) -> None:
        said.append(sentence)
        stop.set()

    study = optuna.create_study(storage=open_storage(server.url, Path("unused"), say, stopped=stop.is_set))
    server.stop()
    try:
        with pytest.raises(StorageAway, match="start the database, then run the same command again"):
            study.set_user_attr("a", 1)
    finally:
        server.start()
    assert len(said) == 1
    assert server.password not in said[0]
