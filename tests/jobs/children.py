"""Children of the tests of `Child`: what one does is the first word of its order.

As `python -m tests.jobs.children PID_FILE` it is a parent itself, whose child says where its own end is to be seen.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from ml_pipeline.jobs.child import Child, serve

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.jobs.children"
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def child(order, **options):
    return Child(MODULE, order, purpose="a test", environment={"PYTHONPATH": str(ROOT)}, **options)


def echo(order, parent):
    while True:
        parent.tell(heard=order, path=sys.path[-1])
        if order.get("last"):
            return order["code"]
        order = parent.next_order()


def noise(order, parent):
    print("a library prints")
    os.write(1, b"a library writes\n")
    subprocess.run([sys.executable, "-c", "print('a program prints')"], check=True)
    parent.tell(stdin=sys.stdin.read())
    return 0


def raises(order, parent):
    raise KeyError("out of ink")


def torn(order, parent):
    parent.tell(whole=1)
    parent._answers.write(b'{"torn": ')
    parent._answers.flush()
    return 3


def waits(order, parent):
    """Until it is asked to stop, which it may not heed; a file says that it saved, and another that it is there."""
    time.sleep(order.get("busy_s", 0.0))
    stopped = []
    parent.on_stop(stopped.append)
    started = subprocess.Popen(SLEEPER) if order.get("starts") else None
    parent.tell(pid=os.getpid(), started=started and started.pid)
    while not stopped or order.get("deaf"):
        time.sleep(0.01)
    if order.get("saves"):
        Path(order["saves"]).write_text(f"{stopped}")
    parent.tell(stopped=stopped)
    return 0


def parent_of_one(order, parent):
    """A parent that waits to be killed."""
    with child(order["child"]) as own:
        parent.tell(**next(own.events()))
        time.sleep(600)
    return 0


def main(parent):
    order = parent.next_order()
    return globals()[order["do"]](order, parent)


if __name__ == "__main__":
    serve(main, grace_s=float(os.environ.get("GRACE_S", "0")))
