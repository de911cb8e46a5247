"""A served folder of runs, and who asks it."""

import httpx
import pytest

from ml_pipeline.dashboard.server import serve


class FakeControls:
    """Remembers what it was asked for; raises `error` if there is one."""

    def __init__(self):
        self.asked = []
        self.error = None

    def stop(self, run):
        self._ask("stop", run)

    def resume(self, run, *, total_timesteps=None):
        self._ask("resume", run, total_timesteps)

    def scale(self, run, *, n_workers=None, n_envs=None):
        self._ask("scale", run, n_workers, n_envs)

    def _ask(self, *what):
        if self.error is not None:
            raise self.error
        self.asked.append(what)


@pytest.fixture
def controls():
    return FakeControls()


@pytest.fixture
def served():
    """`served(root, **options)` -> (server, client); both are closed at the end."""
    yield from _served()


@pytest.fixture(scope="module")
def served_once():
    """`served`, for the tests of a module that change nothing."""
    yield from _served()


def _served():
    opened = []

    def start(root, **options):
        server = serve(root, **{"port": 0, **options})
        opened.append(server)
        # Without certificates, which take 20 ms to read.
        client = httpx.Client(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, verify=False, timeout=30)
        opened.append(client)
        return server, client

    yield start
    for each in reversed(opened):
        each.close()
