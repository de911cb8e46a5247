"""What holds for every test."""

import faulthandler
import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import hypothesis
import pytest

from tests.browser import browser, browser_page  # noqa: F401  # fixtures for every test
from tests.collected import COLLECTED
from tests.leftovers import Leftovers

ENDING_SIGNALS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}

# Before torch is imported: on a busy machine its threads wait for each other by spinning, seconds in place of millis.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The parts of a contract are no test modules, whose asserts say by themselves what they compared.
pytest.register_assert_rewrite("tests.contracts", "ml_pipeline.testing")

# A shared machine may stop for longer than Hypothesis allows an example; pytest's timeout still holds. Without a
# database, what one session found does not decide what the next one tries. The same tree tries the same examples
# everywhere, so that it is green or red by itself; "search" looks for new ones.
for name, examples, chance in (
    ("daily", 24, False),
    ("thorough", 100, False),  # `make test-system`
    ("search", 100, True),  # by hand: --hypothesis-profile search
):
    hypothesis.settings.register_profile(
        name,
        max_examples=examples,
        derandomize=not chance,
        deadline=None,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("daily")

_LEFTOVERS = pytest.StashKey[Leftovers]()
_STDERR = pytest.StashKey[int]()
_LAST_RESORT_S = 900.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends a process with its stacks on stderr where pytest's own timeout does not reach: a test that was timed out
    and hangs as it is torn down, or waits where Python handles no signal."""
    faulthandler.dump_traceback_later(_LAST_RESORT_S, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)  # later, what tests print there is captured
    # As a shell has it for what runs in the background, and nohup.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Tells how a process of pytest-xdist ended that was lost."""
    if error is not None:
        exit_code = node.gateway._io.popen.wait(10)
        os.write(node.config.stash[_STDERR], f"\n{node.gateway.id} ended with exit code {exit_code}.\n".encode())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects no garbage while modules are imported, a third of that time, and looks at none of it later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Looks for doctests only in modules that have some: searching a module imports it, and all that it needs."""
    collectors = yield
    if file_path.suffix == ".py" and ">>>" not in file_path.read_text(encoding="utf-8"):
        return [collector for collector in collectors if type(collector) is pytest.Module]
    return collectors


@pytest.hookimpl(tryfirst=True)  # before any are left out by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sends what test modules define to workers by value, and starts with the files that have most slow tests."""
    config.stash[COLLECTED] = frozenset(item.nodeid for item in items)
    # Worker processes may not find test modules, or import torch with them.
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
    # A file that is begun last keeps one process busy while the others have nothing left.
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives the session a TMPDIR of its own, and fails where files, processes or shared memory are left at its end."""
    kept = tmp_path_factory.getbasetemp()  # stays where pytest keeps the folders of its last sessions
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(kept / "torchinductor")  # made by torch's first optimizer
    os.environ["XDG_STATE_HOME"] = os.environ["LOCALAPPDATA"] = str(kept / "state")  # for keys of tests, not yours
    with Leftovers() as leftovers:
        pytestconfig.stash[_LEFTOVERS] = leftovers
        yield
        del pytestconfig.stash[_LEFTOVERS]
        if found := leftovers.find():
            pytest.fail("These tests leave behind:\n" + "\n".join(found), pytrace=False)


@pytest.fixture(autouse=True)
def signals_are_handled_as_before() -> Iterator[None]:
    """A handler that a test leaves behind would run in another test that sends itself the signal; a signal that is
    pending, as one that was raised while it was blocked, would end this process in any later test."""
    before = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    yield
    left = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert left == before, "This test leaves a signal handler behind."
    assert not _blocked_or_pending(), "This test leaves a signal blocked or pending."


def _blocked_or_pending() -> set[int]:
    if not hasattr(signal, "sigpending"):  # as on Windows
        return set()
    return (signal.pthread_sigmask(signal.SIG_BLOCK, ()) | signal.sigpending()) & ENDING_SIGNALS


@pytest.fixture(scope="module")
def short_built_in_market() -> Iterator[None]:
    """1,000 bars in place of 12,000, in this process: the report of a small run takes longer than all else of it."""
    from ml_pipeline.trading import configured_market
    from ml_pipeline.trading.market.synthetic import synthetic_market

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configured_market, "synthetic_market", partial(synthetic_market, n_bars=1000))
        yield


@pytest.fixture(scope="module")
def brief_evaluations() -> Iterator[None]:
    """Evaluations of tasks in this process stand beside 2 random policies in place of 10, their intervals come from 200
    resamples in place of up to 20,000: both took longer than all else of an evaluation."""
    from ml_pipeline.trading import traded_market
    from ml_pipeline.trading.evaluation import baselines, comparison, uncertainty

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uncertainty, "_MOST_RESAMPLES", 200)
        patch.setattr(baselines, "_CALIBRATIONS", 1)
        patch.setattr(baselines, "_CALIBRATION_RUNS", 1)
        patch.setattr(traded_market, "compare_with_baselines", partial(comparison.compare_with_baselines, n_policies=2))
        yield


@pytest.fixture(scope="module")
def undrawn_reports(brief_evaluations: None) -> Iterator[None]:
    """The pictures in reports of runs of this process are empty: one takes longer than the steps of a small run."""
    from matplotlib.figure import Figure

    from ml_pipeline.runs import gym_task
    from ml_pipeline.trading.evaluation import page, report

    with pytest.MonkeyPatch.context() as patch:
        drawn = ((gym_task, "learning_curve_figure"), (report, "equity_figure"), (page, "sensitivity_figure"))
        for module, name in drawn:
            patch.setattr(module, name, lambda *_, **__: Figure(figsize=(1, 1)))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    if (leftovers := item.config.stash.get(_LEFTOVERS, None)) is not None:
        leftovers.note(item.nodeid)
