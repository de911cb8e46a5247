"""The secret key is seen nowhere: not in what is printed, logged, raised or written, nor in the list of processes."""

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.live.alpaca.conftest import config_for

SECRET = "recognizable-secret-key"
# Goes through every kind of failure with everything logged, then waits while somebody looks at the list of processes.
SCRIPT = """
import logging, pickle, sys, traceback
logging.basicConfig(level=logging.DEBUG, filename="everything.log")
from ml_pipeline.live.alpaca.config import AlpacaConfig
from ml_pipeline.live.alpaca.keys import find_keys
from ml_pipeline.live.alpaca.broker import open_alpaca
from ml_pipeline.live.brokers.broker import OrderRequest

def tell(error):
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        print(repr(error), getattr(error, "__dict__", {}), "".join(traceback.format_exception(error)))
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        print("".join(shown.format()))
        error = error.__cause__ or error.__context__

def attempt(call, *arguments):
    try:
        print(call(*arguments))
    except Exception as error:
        tell(error)

config = AlpacaConfig(alpaca_url=sys.argv[1], alpaca_stream_url=sys.argv[2], alpaca_timeout_s=0.5)
attempt(lambda: find_keys(live=False))
attempt(lambda: find_keys(live=True))
attempt(lambda: pickle.dumps(find_keys(live=False)))
attempt(open_alpaca, config)  # the server refuses these keys
print("ready", flush=True); sys.stdin.readline()
broker = open_alpaca(config)
broker._stream.wait_until_listening(30)
print(repr(broker), vars(broker), config)
for name in "abcdefgh":
    attempt(broker.submit, [OrderRequest(name, "AAPL", 1.0, 0.1)])
    attempt(broker.account)
    print(attempt(broker.poll, None))
print("faults", flush=True); sys.stdin.readline()
for call in (broker.account, broker.now, broker.orders, lambda: broker.poll(None)):
    attempt(call)
broker.close()
"""


@pytest.mark.slow
def test_a_secret_key_is_seen_nowhere(server, monkeypatch, tmp_path):
    monkeypatch.setenv("APCA_API_SECRET_KEY", SECRET)
    config = config_for(server)
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), config.alpaca_url, config.alpaca_stream_url]
    root = Path(__file__).resolve().parents[3]
    monkeypatch.setenv("PYTHONPATH", str(root))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=tmp_path, text=True, **pipes) as process:
        said = _until(process, "ready")
        server.trading.secret = server.updates.secret = SECRET
        for number, status in enumerate((401, 403, 422, 429, 500)):
            server.faults.answer("POST /v2/orders", status, after=number)
        server.faults.silence("POST /v2/orders", after=3)
        server.faults.cut("POST /v2/orders", after=4)
        seen = " ".join(each for pid in _family(process.pid) for each in psutil.Process(pid).cmdline())
        process.stdin.write("\n")
        process.stdin.flush()
        said += _until(process, "faults")
        server.updates.drop()
        server.faults.silence("", times=10**6)
        said += process.communicate("\n", timeout=60)[0]
        assert process.returncode == 0, said
    assert "does not accept these keys" in said
    assert "BrokerUnavailable" in said
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert b"/v2/orders" in written[tmp_path / "everything.log"]
    for where, text in {"output": said.encode(), "processes": seen.encode(), **written}.items():
        lines = [line for line in text.splitlines() if SECRET.encode() in line]
        assert not lines, f"the secret key is in {where}"


def _until(process, line):
    said = ""
    for each in process.stdout:
        said += each
        if each.strip() == line:
            return said
    raise AssertionError(said)


def _family(pid):
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
