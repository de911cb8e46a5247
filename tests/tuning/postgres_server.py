"""A PostgreSQL of its own for tests: from Debian's packages, in a temporary folder, as an unprivileged user."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ml_pipeline.runs.ranks.launcher import free_port

_PATIENCE_S = 60


def find_programs() -> Path | None:
    """The folder with initdb and pg_ctl, of the newest version; None where there is none."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    on_path = shutil.which("pg_ctl")
    folders = [*reversed(debian), *([Path(on_path).resolve().parent] if on_path else [])]
    return next((folder for folder in folders if (folder / "initdb").is_file()), None)


class PostgresServer:
    """A server on a free port of this machine, with a user "tuner" (password "se{c}r@t") and a database "tuning"."""

    password = "se{c}r@t"

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder, self._programs = folder, programs
        self.user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self.port = free_port()
        if os.geteuid() == 0:
            shutil.chown(folder, self.user)
        self._run(
            "initdb", "-D", f"{folder}/data", "-U", "owner", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C"
        )
        with (folder / "data" / "pg_hba.conf").open("w") as file:
            file.write("host all owner 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n")

    @property
    def url(self) -> str:
        return self.url_of("tuner:se%7Bc%7Dr%40t")

    def url_of(self, user: str, database: str = "tuning") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -c fsync=off"
        log = f"{self._folder}/server.log"
        self._run(
            "pg_ctl", "-D", f"{self._folder}/data", "-w", "-t", str(_PATIENCE_S), "-l", log, "-o", options, "start"
        )

    def stop(self) -> None:
        """As `systemctl stop postgresql`: connections are cut."""
        self._run("pg_ctl", "-D", f"{self._folder}/data", "-w", "-t", str(_PATIENCE_S), "-m", "fast", "stop")

    def query(self, statement: str, *, database: str = "tuning") -> str:
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "owner", "-d", database]
        return self._run("psql", *where, "-v", "ON_ERROR_STOP=1", "-At", "-c", statement)

    def make_database(self) -> None:
        self.query(f"CREATE ROLE tuner LOGIN PASSWORD '{self.password}'", database="postgres")
        self.query("CREATE DATABASE tuning OWNER tuner", database="postgres")

    def _run(self, program: str, *arguments: str) -> str:
        command: Sequence[str] = [str(self._programs / program), *arguments]
        if os.geteuid() == 0:  # which initdb and the server refuse
            command = ["runuser", "-u", self.user, "--", *command]
        # A file, since a started server keeps a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command, stdout=output, stderr=output, cwd=self._folder, timeout=2 * _PATIENCE_S, check=False
            )
            output.seek(0)
            told = output.read()
        assert done.returncode == 0, told
        return told.strip()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; needs `find_programs`."""
    programs = find_programs()
    assert programs is not None
    # Not in pytest's folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        server = PostgresServer(Path(folder), programs)
        server.start()
        try:
            server.make_database()
            yield server
        finally:
            server.stop()
