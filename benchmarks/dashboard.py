"""The page in Chromium: time until 100,000 points are drawn, delay of a new line, and CPU of the server.

python benchmarks/dashboard.py

Needs the extras dashboard and dev, and Chromium.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.dashboard.run_folders import append, make_run, row

METRIC = "rollout/mean_return_100"
# As many names as an iteration of a real run writes.
MORE = {f"train/figure_{i}": 0.123456789 * (i + 1) for i in range(16)}
TARGETS = {"drawn_s": 1.0, "delay_s": 0.5, "cpu_percent": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=100_000, help="rows of the large run")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long four runs write")
    parser.add_argument("--lines-per-second", type=float, default=5.0, help="of each of the four runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        drawn, again = time_to_draw(Path(folder) / "large", arguments.points)
        told(
            "drawn_s",
            f"{arguments.points:,} points are drawn after",
            drawn,
            "s, file unread before",
        )
        print(f"{'':50}{again:8.3f} s when the page is opened again")
        delays, cpu = four_runs(Path(folder) / "four", arguments.seconds, arguments.lines_per_second)
        told(
            "delay_s",
            "a new line is on the page after",
            max(delays),
            f"s at most, {statistics.median(delays):.3f} s median",
        )
        told("cpu_percent", "the server uses, while four runs write", cpu, "% of a core")


def told(name: str, what: str, value: float, unit: str) -> None:
    verdict = "met" if value <= TARGETS[name] else "MISSED"
    print(f"{what:50}{value:8.3f} {unit} (target {TARGETS[name]:g}: {verdict})")


class Page:
    """The page over a folder, served by the command in a process of its own."""

    def __init__(self, root: Path) -> None:
        from playwright.sync_api import sync_playwright

        command = [sys.executable, "-m", "ml_pipeline", "dashboard", str(root), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self._playwright = sync_playwright().start()
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        self._browser = self._playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])

    def open(self):
        return self._browser.new_page(viewport={"width": 1440, "height": 900})

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.close()
        self._playwright.stop()
        self.process.terminate()
        self.process.wait()


def time_to_draw(root: Path, n_rows: int) -> tuple[float, float]:
    """Seconds from asking for the page until its curves are drawn: the first time, and once more."""
    make_run(root, "large", rows=[row(i, **MORE) for i in range(1, n_rows + 1)])
    times = []
    with Page(root) as served:
        served.open().goto(f"{served.address}assets/page.css")  # the browser itself has started
        for _ in range(2):
            page = served.open()
            begin = time.perf_counter()
            page.goto(served.address)
            page.wait_for_selector(f'[data-metric="{METRIC}"][data-points]')
            times.append(time.perf_counter() - begin)
            page.close()
    return times[0], times[1]


def four_runs(root: Path, seconds: float, lines_per_second: float) -> tuple[list[float], float]:
    """(delays of new lines in seconds, per cent of a core that the server used) while four runs write."""
    rows = [row(i, **MORE) for i in range(1, 501)]
    folders = [make_run(root, f"run-{i}", status="running", rows=rows) for i in range(4)]
    written = {}
    with Page(root) as served:
        page = served.open()
        page.goto(served.address)
        page.wait_for_selector(f'[data-metric="{METRIC}"][data-points]')
        page.evaluate(WATCH, METRIC)
        server = psutil.Process(served.process.pid)
        time.sleep(1)
        ending = threading.Event()

        def write(folder: Path, first: int) -> None:
            i = first
            while not ending.wait(1 / lines_per_second):
                append(folder, [row(i, **MORE)])
                if folder == folders[0]:
                    written[i] = time.time()
                i += 1

        writers = [threading.Thread(target=write, args=(folder, 501)) for folder in folders]
        before, begin = sum(server.cpu_times()[:2]), time.monotonic()
        for writer in writers:
            writer.start()
        page.wait_for_timeout(seconds * 1000)
        cpu = 100 * (sum(server.cpu_times()[:2]) - before) / (time.monotonic() - begin)
        ending.set()
        for writer in writers:
            writer.join()
        page.wait_for_timeout(1000)
        seen = page.evaluate("seenAt")
    # The page tells how many points it has drawn: 500 of each run before.
    delays = [at / 1000 - written[i] for i, at in ((500 + int(n), at) for n, at in seen.items()) if i in written]
    return delays, cpu


# When so many lines of the first run were drawn: the last value of its curve is the number of its iteration.
WATCH = """metric => {
  window.seenAt = {};
  let known = 500;
  const chart = document.querySelector(`[data-metric="${metric}"]`);
  new MutationObserver(() => {
    const last = Number(/run-0 ends at (\\d+)/.exec(chart.getAttribute("aria-label"))?.[1] || 0);
    for (; known < last; known++) window.seenAt[known + 1 - 500] = Date.now();
  }).observe(chart, { attributes: true });
}"""


if __name__ == "__main__":
    main()
